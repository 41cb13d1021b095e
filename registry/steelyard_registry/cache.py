"""The last lists on disk, so that a consumer can start while the registry is away.

One file a registry and interface, in a folder of this user alone: a header line of JSON, then one entry a line, as the
registry had it (nothing is encoded anew: a list of ten thousand is written for the price of a join). Files are replaced
whole and never changed, so that a reader sees the old list or the new one; a checksum tells what a crash left behind.
Old, foreign, torn and oversized files are ignored with a line in the log: a cache that can prevent a start is worse
than none.

Bounded in each direction: age, entries and bytes of a file, files of a registry, registries.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import RegistryError
from .folder import cache_folder, private_folder

log = logging.getLogger(__name__)

FORMAT = 1
MAX_AGE_S = 7 * 86400.0
"""Older lists are not started from: after a week most addresses of a cluster belong to somebody else."""
MAX_BYTES = 64 * 1024 * 1024
MAX_ENTRIES = 200_000
MAX_FILES = 2_000
MAX_REGISTRIES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A list that was kept; ``age_s`` seconds old."""

    entries: tuple[str, ...]
    age_s: float


class Cache:
    """The lists of the registry at *url* (without secrets). Blocking; raises nothing: trouble is logged, once a kind.

    *place*: empty for the user's own folder, ``off``, or a folder that is there.
    """

    def __init__(self, url: str, place: str = "") -> None:
        self._url = url
        self._folder: Path | None = None
        self._told: set[str] = set()
        if place == "off":
            return
        try:
            base = private_folder(Path(place) / "steelyard") if place else cache_folder()
            self._folder = private_folder(base / "registry") / _digest(url)
        except RegistryError as error:
            self._tell("off", f"no lists are kept: {error}")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing at all to start from."""
        return self._folder is None or not any(self._files())

    def load(self, interface: str) -> Kept | None:
        """The list of *interface*, or None."""
        if self._folder is None:
            return None
        path = self._path(interface)
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it is larger than {MAX_BYTES} bytes")
            header, _, body = path.read_text("utf-8").partition("\n")
            return self._read(interface, header, body)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s: the kept list of %s is not used: %s", self._url, interface, error)
            return None

    def store(self, interface: str, entries: Sequence[str]) -> bool:
        """Keep *entries* as the list of *interface*. Whether that worked."""
        if self._folder is None:
            return False
        entries = [entry for entry in entries if "\n" not in entry][:MAX_ENTRIES]
        body = "\n".join(entries)
        header = {
            "format": FORMAT,
            "registry": self._url,
            "interface": interface,
            "saved_at": time.time(),
            "entries": len(entries),
            "sha256": _digest(body),
        }
        content = f"{json.dumps(header)}\n{body}".encode("utf-8", "surrogatepass")
        if len(content) > MAX_BYTES:
            self._tell("size", f"the list of {interface} is not kept: {len(content)} bytes")
            return False
        try:
            self._write(self._folder, self._path(interface), content)
        except OSError as error:
            self._tell("write", f"lists are not kept ({error.strerror}); a start without the registry will not work")
            return False
        self._told.discard("write")
        return True

    def _read(self, interface: str, header: str, body: str) -> Kept:
        facts = json.loads(header)
        if facts["format"] != FORMAT:
            raise ValueError(f"it has format {facts['format']!r}")
        if (facts["registry"], facts["interface"]) != (self._url, interface):
            raise ValueError("it is another registry's")
        if facts["sha256"] != _digest(body):
            raise ValueError("it is torn")
        age_s = max(0.0, time.time() - float(facts["saved_at"]))  # a clock set back makes nothing older
        if age_s > MAX_AGE_S:
            raise ValueError(f"it is {age_s / 86400:.0f} days old")
        return Kept(entries=tuple(body.split("\n")) if body else (), age_s=age_s)

    def _write(self, folder: Path, path: Path, content: bytes) -> None:
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)
            _keep_newest([other for other in folder.parent.iterdir() if other.is_dir()], MAX_REGISTRIES)
        part = path.with_suffix(f".{os.getpid()}.part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        files = self._files()
        if len(files) > MAX_FILES:
            _keep_newest(files, MAX_FILES)

    def _files(self) -> list[Path]:
        try:
            return list(self._folder.glob("*.list")) if self._folder is not None else []
        except OSError:
            return []

    def _path(self, interface: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{_digest(interface)}.list"

    def _tell(self, kind: str, message: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            log.warning("%s: %s", self._url, message)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _keep_newest(paths: Sequence[Path], count: int) -> None:
    for path in sorted(paths, key=_modified_at, reverse=True)[count:]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
