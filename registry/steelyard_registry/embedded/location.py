"""Where the file is when the URL does not say: in the user's own runtime folder.

The folder has to belong to the user and be closed to others: whoever can write the file can send our calls anywhere,
and a folder with a well-known name below /tmp could have been made by somebody else first.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..errors import MalformedUrl, RegistryError
from ..locator import Locator

FILE_NAME = "registry.db"


def database_path(locator: Locator, environment: Mapping[str, str] = os.environ) -> Path:
    """The file of an ``embedded://`` URL; makes the default folder. Raises MalformedUrl or RegistryError."""
    if locator.authority:
        raise MalformedUrl(
            f"embedded://{locator.authority}{locator.path} names a host; a file is written with three slashes: "
            f"embedded:///{locator.authority}{locator.path}"
        )
    if locator.path in ("", "/"):
        return _own_folder(environment) / FILE_NAME
    if locator.path.endswith("/"):
        raise MalformedUrl(f"embedded://{locator.path} names a folder; name a file in it")
    return Path(locator.path)


def _own_folder(environment: Mapping[str, str]) -> Path:
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK | os.X_OK):
        folder = Path(runtime) / "steelyard"
    else:
        folder = Path(tempfile.gettempdir()) / f"steelyard-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise RegistryError(f"the default folder {folder} cannot be used: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise RegistryError(
            f"the default folder {folder} is not a folder of this user alone (owner {found.st_uid}, mode "
            f"{stat.S_IMODE(found.st_mode):03o}); remove it, or name a file with embedded:///path/to/file"
        )
    return folder
