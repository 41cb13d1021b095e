"""ZooKeeper's recursive watches, which kazoo 2.11 does not know: one event tells which child came or went.

A watch on the children of a folder says only *that* they changed. Whoever watches ten thousand nodes then reads five
megabytes to learn of one; ten thousand such consumers read fifty gigabytes. Servers from 3.6 on (ZOOKEEPER-1416) name
the child in the event instead, and the watch stays in place.

kazoo looks for the watchers of a path in a table, and calls what it finds there on a thread that only does that; so a
table that finds one more, for paths within a followed folder, is all that is needed on the way in. On the way out it is
two requests. Whether this kazoo has that table is checked (``CAN_FOLLOW``): without it, and at older servers, lists are
watched as they always were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.serialization import int_struct, write_string

_ADD_WATCH, _PERSISTENT_RECURSIVE = 106, 1
_REMOVE_WATCHES, _ANY_WATCH = 18, 3
CAN_FOLLOW = all(hasattr(KazooClient, name) for name in ("_call", "_reset_watchers"))


class _Request:
    """What kazoo wants of a request: a path with a number behind it, and an answer without a body."""

    watcher = None

    def __init__(self, kind: int, path: str, number: int) -> None:
        self.type = kind
        self.path = path
        self._number = number

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(self._number))

    def deserialize(self, _bytes: bytes, _offset: int) -> bool:
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.type}, {self.path!r}, {self._number})"


class _Table(defaultdict[str, set[Callable[[Any], None]]]):
    """kazoo's watchers by path, plus one for every path in or at a followed folder."""

    def __init__(self, folders: set[str], watcher: Callable[[Any], None]) -> None:
        super().__init__(set)
        self._folders = folders
        self._watcher = watcher

    def pop(self, path: str, default: Any = ()) -> Iterable[Callable[[Any], None]]:  # type: ignore[override]
        found = super().pop(path, None) or default
        if path in self._folders or path.rpartition("/")[0] in self._folders:
            return {*found, self._watcher}
        return found


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """kazoo's, with ``follow_async`` and ``unfollow_async``. *watcher* hears of everything that comes or goes in a
    followed folder, and of the folder itself; on kazoo's thread, so it only enqueues. After a lost connection a folder
    has to be followed anew."""

    def __init__(self, watcher: Callable[[Any], None], **options: Any) -> None:
        self._folders: set[str] = set()
        self._watcher = watcher
        super().__init__(**options)
        self._data_watchers = _Table(self._folders, watcher)

    def _reset_watchers(self) -> None:
        super()._reset_watchers()
        self._data_watchers = _Table(self._folders, self._watcher)

    def follow_async(self, folder: str) -> Any:
        """*folder* need not be there. Raises UnimplementedError (as the answer) at servers before 3.6."""
        self._folders.add(folder)
        answer = self.handler.async_result()
        self._call(_Request(_ADD_WATCH, folder, _PERSISTENT_RECURSIVE), answer)
        return answer

    def unfollow_async(self, folder: str) -> Any:
        self._folders.discard(folder)
        answer = self.handler.async_result()
        self._call(_Request(_REMOVE_WATCHES, folder, _ANY_WATCH), answer)
        return answer
