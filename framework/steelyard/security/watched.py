"""Files that change under a running process: keys, certificates, tokens.

They are looked at when they are needed and not by a timer: a look is one ``stat`` a file, and whoever replaces a file
finds it in use at the next connection and not up to a period later. What was read last stays in use while the new
content cannot be used, because a rotation that writes two files one after the other is half done for a moment.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from steelyard.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")

Source = str | Path | bytes
"""A file's path, or the content itself."""

# A key, a chain or a set of keys has a few kilobytes; what is larger was meant to be another file.
MOST_BYTES = 1024 * 1024

Stamp = tuple[object, ...]


class Watched(Generic[T]):
    """What *make* gives for the contents of *sources*, made anew when a file has changed. From any thread.

    ``value()`` raises ConfigError as long as there has never been a good value; later failures are logged, once for
    each change, and the last good value stays.
    """

    def __init__(self, what: str, sources: Sequence[Source], make: Callable[[list[bytes]], T]) -> None:
        self._what = what
        self._sources = tuple(sources)
        self._make = make
        self._lock = threading.Lock()
        self._stamp: Stamp | None = None
        self._made: list[T] = []
        self.changes = 0

    def value(self) -> T:
        with self._lock:
            stamp = tuple(_stamp(source) for source in self._sources)
            if stamp != self._stamp:
                self._renew(stamp)
            return self._made[0]

    def _renew(self, stamp: Stamp) -> None:
        try:
            made = self._make([read_source(self._what, source) for source in self._sources])
        except ConfigError as error:
            if not self._made:
                raise
            log.warning("%s: the new files cannot be used, the last good ones stay in use: %s", self._what, error)
            self._stamp = stamp
            return
        if self._made:
            log.info("%s: taken in anew", self._what)
            self.changes += 1
        # Of before the reading: a file that changed in between is read again at the next look.
        self._made, self._stamp = [made], stamp


def checked_source(name: str, value: object) -> Source | None:
    """Raises ConfigError for what is neither a path nor bytes."""
    if value is None or (isinstance(value, str | Path | bytes) and value not in ("", b"")):
        return value
    # Not shown: it may be a secret that was put where a path belongs.
    raise ConfigError(f"{name}: the path of a file, or its content as bytes, not {type(value).__name__}")


def read_source(what: str, source: Source) -> bytes:
    """Raises ConfigError naming the file, and never what is in it."""
    if isinstance(source, bytes):
        return source
    try:
        with open(source, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{what}: {source} cannot be read: {error.strerror or error}") from error
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{what}: {source} has more than {MOST_BYTES} bytes")
    return content


def _stamp(source: Source) -> object:
    if isinstance(source, bytes):
        return None
    try:
        facts = os.stat(source)
    except OSError as error:
        return error.errno
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
