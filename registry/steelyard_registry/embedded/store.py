"""The SQLite file: rows with leases, and a counter that says when the lists changed. Blocking; one thread owns it.

* A node is there while its row is. Its owner beats well within the lease; whoever finds a row past its lease deletes
  it. Readers do not judge leases themselves: a beat that comes late would change what they see without telling them.
* Times are CLOCK_MONOTONIC, which all processes of a machine share: setting the wall clock neither ends a lease nor
  makes one immortal, and rows from before a reboot are recognised because they lie in the future or in the past.
* ``lists.version`` grows in the transaction that changes a list, and not with heartbeats, so polling costs one PRAGMA
  (``data_version``: did any other process write?) and, when that says yes, one row.
* WAL: readers never wait for a writer, and a process killed in the middle of a write leaves nothing half done.
  ``synchronous=NORMAL``: after a power cut the last second may be missing, which its owners write again.
* Owners, not identities, are the key: two processes that claim one address do not fight for a row.
* Whoever could not write must not judge. While somebody holds the lock for longer than a lease, everybody's beats are
  late, and the first to get the lock would bury all the others. So a row is deleted only when its owner has had the
  chance to beat: after a third of its lease in which our own writes came through without waiting.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import MalformedUrl, RegistryError, RegistryUnreachable
from ..node import Node
from ..url import parse_provider_url
from .filesystem import require_local

log = logging.getLogger(__name__)

_APPLICATION_ID = 0x53544C59
_SCHEMA_VERSION = 1
_BUSY_S = 5.0
_SCHEMA = """
CREATE TABLE nodes (
    entry TEXT PRIMARY KEY, interface TEXT NOT NULL, url TEXT NOT NULL, beat_at_s REAL NOT NULL, lease_s REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX nodes_by_interface ON nodes (interface);
CREATE TABLE lists (version INTEGER NOT NULL);
INSERT INTO lists VALUES (0);
"""
# Came later, and hurts nobody who does not know of it: no new format.
_DOCUMENTS = "CREATE TABLE IF NOT EXISTS documents (path TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID"
_ALIVE = "beat_at_s <= :now AND :now < beat_at_s + lease_s"
_ON_TIME = "beat_at_s <= :now AND :now < beat_at_s + lease_s / 2"
# From before a restart of the machine (in the future), or so old that no lock can have lasted as long.
_ANCIENT = "(beat_at_s > :now + 1 OR :now > beat_at_s + 20 * lease_s + 60)"
_PROMPT_S = 0.3
"""A lock that came within this time was not contended for: SQLite looks again after at most 0.1 s."""


class Store:
    """One connection. Errors of the file raise sqlite3.Error; ``explained`` says what to do about them."""

    def __init__(self, path: Path, lease_s: float) -> None:
        self.path = path
        self._lease_s = lease_s
        self._connection: sqlite3.Connection | None = None
        self._file_id: tuple[int, int] | None = None
        self._seen_data_version = -1
        self._seen_lists = -1
        self._parsed: dict[str, Node | None] = {}
        self._writable_since_s: float | None = None
        self._written_at_s = 0.0
        self.generation = 0
        """Grows when another file takes the place of the one that was open."""

    def open(self) -> None:
        """Make or open the file. Raises RegistryError when it is something else."""
        if not self.path.parent.is_dir():
            raise RegistryError(f"the folder of {self.path} does not exist; make it, or name another file")
        require_local(self.path)
        self._opened()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def put(self, entry: str, interface: str, url: str) -> None:
        """Show a row, new or changed."""
        with self._writing() as connection:
            self._upsert(connection, entry, interface, url)
            _bump(connection)

    def remove(self, entries: list[str]) -> None:
        with self._writing() as connection:
            connection.executemany("DELETE FROM nodes WHERE entry = ?", [(entry,) for entry in entries])
            _bump(connection)

    def beat(self, own: Mapping[str, tuple[str, str]], *, may_reap: bool) -> None:
        """Renew *own* rows (entry -> interface, url), restore those that are missing, delete those past their lease."""
        self._follow_file()
        late = may_reap and self._read(f"SELECT 1 FROM nodes WHERE NOT ({_ON_TIME}) LIMIT 1", {"now": time.monotonic()})
        if not own and not late:
            return
        with self._writing() as connection:
            # Read again: the lock may have been long in coming (a throttled process), and rows that were renewed in the
            # meantime would look as if they came from the future, that is, from before a restart of the machine.
            now = time.monotonic()
            is_changed = False
            for entry, (interface, url) in own.items():
                renewed = connection.execute("UPDATE nodes SET beat_at_s = ? WHERE entry = ?", (now, entry))
                if not renewed.rowcount:
                    self._upsert(connection, entry, interface, url)
                    is_changed = True
                    log.warning("embedded registry %s: restored the missing entry %s", self.path, url[:200])
            if late:
                since_s = self._writable_since_s
                values = {"now": now, "writable": 0.0 if since_s is None else now - since_s}
                rows = connection.execute(
                    f"DELETE FROM nodes WHERE NOT ({_ALIVE}) AND (lease_s / 3 <= :writable OR {_ANCIENT})"
                    " RETURNING url",
                    values,
                )
                for (url,) in rows.fetchall():
                    is_changed = True
                    log.info("embedded registry %s: lease ended, holder is gone: %s", self.path, url[:200])
            if is_changed:
                _bump(connection)

    def has_changed(self) -> bool:
        """Whether any list changed since the last call that said so. The first call says yes."""
        data_version = self._read("PRAGMA data_version", {})[0][0]
        if data_version == self._seen_data_version:
            return False
        lists = self._read("SELECT version FROM lists", {})[0][0]
        self._seen_data_version = data_version
        if lists == self._seen_lists:
            return False
        self._seen_lists = lists
        return True

    def nodes(self, interface: str) -> tuple[list[Node], int]:
        """The nodes of *interface*, in the order of their entries, and how many rows could not be read."""
        rows = self._read("SELECT url FROM nodes WHERE interface = :interface ORDER BY entry", {"interface": interface})
        found = [self._parse(url) for (url,) in rows]
        nodes = [node for node in found if node is not None]
        return nodes, len(found) - len(nodes)

    def document(self, path: str) -> str | None:
        rows = self._read("SELECT text FROM documents WHERE path = :path", {"path": path})
        if rows and not is_text(rows[0][0]):
            log.warning("embedded registry %s: the document %s is no text", self.path, path)
            return None
        return str(rows[0][0]) if rows else None

    def put_document(self, path: str, text: str | None) -> None:
        """None takes it out."""
        with self._writing() as connection:
            if text is None:
                connection.execute("DELETE FROM documents WHERE path = ?", (path,))
            else:
                connection.execute("INSERT OR REPLACE INTO documents VALUES (?, ?)", (path, text))
            _bump(connection)

    def services(self) -> tuple[str, ...]:
        rows = self._read("SELECT DISTINCT interface FROM nodes ORDER BY 1", {})
        return tuple(str(name) for (name,) in rows if is_text(name))

    def _parse(self, url: object) -> Node | None:
        if not isinstance(url, str) or not is_text(url):
            log.warning("embedded registry %s: skipped an entry that is no text: %.80r", self.path, url)
            return None
        if url not in self._parsed:
            if len(self._parsed) > 10_000:
                self._parsed.clear()
            try:
                self._parsed[url] = parse_provider_url(url)
            except MalformedUrl as error:
                log.warning("embedded registry %s: skipped an entry: %s", self.path, error)
                self._parsed[url] = None
        return self._parsed[url]

    def _upsert(self, connection: sqlite3.Connection, entry: str, interface: str, url: str) -> None:
        connection.execute(
            "INSERT INTO nodes VALUES (?, ?, ?, ?, ?) ON CONFLICT (entry) DO UPDATE SET interface = excluded.interface,"
            " url = excluded.url, beat_at_s = excluded.beat_at_s",
            (entry, interface, url, time.monotonic(), self._lease_s),
        )

    def _read(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return self._opened().execute(sql, values).fetchall()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:  # the file went away and could not be opened anew until now
            self._connection = self._connect()
        return self._connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        connection = self._opened()
        asked_s = time.monotonic()
        try:
            with _transaction(connection):
                self._note_lock(asked_s)
                yield connection
        except sqlite3.Error:
            self._writable_since_s = None
            raise
        self._seen_data_version = -1  # data_version does not tell of the own writes

    def _note_lock(self, asked_s: float) -> None:
        """The lock that was asked for then is had now: since when has that been so without a wait or a long pause?"""
        now_s = time.monotonic()
        is_prompt = now_s - asked_s <= _PROMPT_S
        is_going_on = now_s - self._written_at_s <= self._lease_s
        if not is_prompt or not is_going_on or self._writable_since_s is None:
            self._writable_since_s = now_s
        self._written_at_s = now_s

    def _follow_file(self) -> None:
        """Somebody removed or replaced the file: go where everybody else will be."""
        try:
            found = os.stat(self.path)
            is_same = (found.st_dev, found.st_ino) == self._file_id
        except FileNotFoundError:
            is_same = False
        if not is_same:
            log.warning("embedded registry %s: the file was removed or replaced; opening it anew", self.path)
            self.close()
            self._opened()
            self.generation += 1

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        connection.text_factory = as_text
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            with _transaction(connection):
                self._check_schema(connection)
            found = os.stat(self.path)
        except BaseException:
            connection.close()
            raise
        self._file_id = (found.st_dev, found.st_ino)
        self._seen_data_version = self._seen_lists = -1
        return connection

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if (application, version, tables) == (0, 0, 0):
            for statement in filter(str.strip, _SCHEMA.split(";")):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        elif application != _APPLICATION_ID:
            raise RegistryError(f"{self.path} is a SQLite database of something else; name another file")
        elif version != _SCHEMA_VERSION:
            raise RegistryError(
                f"{self.path} has registry format {version}, this release reads {_SCHEMA_VERSION}; stop the processes "
                "that use it, then remove it"
            )
        connection.execute(_DOCUMENTS)


def as_text(raw: bytes) -> str:
    """SQLite stores what it is given: one text that is no UTF-8 must not fail the reading of all others."""
    return raw.decode("utf-8", "surrogateescape")


def is_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _bump(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE lists SET version = version + 1")


def explained(path: Path, error: sqlite3.Error) -> RegistryError:
    """What the operator reads: RegistryUnreachable for a file that stays locked, RegistryError for the rest."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return RegistryUnreachable(f"{path} stayed locked by another process; see who has it open (lsof {path})")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return RegistryError(f"{path} is not a registry file ({error}); remove it or name another file")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return RegistryError(f"{path} and its folder must be writable for this user ({error})")
    return RegistryError(f"{path} cannot be used: {error}")
