"""Checking and cleaning the file from outside, for an operator. Living holders restore their entries by themselves."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ..errors import MalformedUrl, RegistryError
from ..url import parse_provider_url
from .store import as_text, explained, is_text


@dataclass(frozen=True, slots=True)
class Repair:
    """``expired`` and ``unreadable`` entries were removed; a file that is not sound cannot be mended here."""

    is_sound: bool
    expired: int
    unreadable: int


def repair_file(path: Path) -> Repair:
    """Raises RegistryError when *path* is not there or not a registry's file."""
    if not path.is_file():
        raise RegistryError(f"{path} is not there; nothing to repair")
    try:
        with closing(sqlite3.connect(path, timeout=5.0, isolation_level=None)) as connection:
            connection.text_factory = as_text
            if connection.execute("PRAGMA quick_check").fetchone()[0] != "ok":
                return Repair(is_sound=False, expired=0, unreadable=0)
            return _clean(connection)
    except sqlite3.Error as error:
        raise explained(path, error) from error


def _clean(connection: sqlite3.Connection) -> Repair:
    connection.execute("BEGIN IMMEDIATE")
    now_s = time.monotonic()  # after the lock: see store
    alive = "beat_at_s <= ?1 AND ?1 < beat_at_s + lease_s"
    expired = connection.execute(f"DELETE FROM nodes WHERE NOT ({alive}) RETURNING entry", (now_s,)).fetchall()
    rows = connection.execute("SELECT entry, url FROM nodes").fetchall()
    unreadable = [(entry,) for entry, url in rows if not _is_readable(url)]
    connection.executemany("DELETE FROM nodes WHERE entry = ?", unreadable)
    if expired or unreadable:
        connection.execute("UPDATE lists SET version = version + 1")
    connection.execute("COMMIT")
    return Repair(is_sound=True, expired=len(expired), unreadable=len(unreadable))


def _is_readable(url: object) -> bool:
    if not isinstance(url, str) or not is_text(url):
        return False
    try:
        parse_provider_url(url)
    except MalformedUrl:
        return False
    return True
