"""Folders of this user alone, for what others must not be able to write: the embedded registry and the caches of lists.

Whoever can write these files can send our calls anywhere, and a folder with a well-known name below /tmp could have
been made by somebody else first. So a folder has to belong to the user and be closed to others, and is refused
otherwise.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .errors import RegistryError


def runtime_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """For what need not survive a reboot. Made if it is not there; raises RegistryError."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK | os.X_OK):
        return private_folder(Path(runtime) / "steelyard")
    return private_folder(Path(tempfile.gettempdir()) / f"steelyard-{os.getuid()}")


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """For what should survive one. Made if it is not there; raises RegistryError."""
    base = environment.get("XDG_CACHE_HOME", "")
    home = environment.get("HOME", "")
    if not base.startswith("/"):
        base = f"{home}/.cache" if home.startswith("/") else ""
    try:
        if base:
            Path(base).mkdir(mode=0o700, exist_ok=True)
        if base and os.access(base, os.W_OK | os.X_OK):
            return private_folder(Path(base) / "steelyard")
    except OSError:  # a home that is not there, or is read-only
        pass
    return runtime_folder(environment)


def private_folder(folder: Path) -> Path:
    """*folder*, made if it is not there (its parent has to be). Raises RegistryError when it is not this user's
    alone."""
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
