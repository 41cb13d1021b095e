"""Where the file is: where the URL says, or in the user's own runtime folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..errors import MalformedUrl
from ..folder import runtime_folder
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
        return runtime_folder(environment) / FILE_NAME
    if locator.path.endswith("/"):
        raise MalformedUrl(f"embedded://{locator.path} names a folder; name a file in it")
    return Path(locator.path)
