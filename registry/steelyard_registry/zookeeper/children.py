"""The names in one folder, kept true without reading them all at each change.

A recursive watch (``recursive``) tells which child came or went. An event is only a hint where to look: kazoo hands
events and answers over on different threads, so their order is not that of the server. Each name that an event touched
is looked at, and what is there counts. From time to time, and whenever there is no event under way, the folder's own
counters are compared with the number of names and of events: they tell an event that never came, and after a reconnect
they tell for a few bytes that nothing has changed.

At servers before 3.6 there are no such watches; then the list is read anew after each change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any

from kazoo.exceptions import NoNodeError, UnimplementedError
from kazoo.protocol.states import EventType

from ..url import MAX_URL_BYTES
from .recursive import CAN_FOLLOW
from .session import Session

FULL_S = 600.0
"""The whole list is read this often without any reason: for what the counters cannot tell."""
_GATHER_S = 0.03
"""Reads of a whole list are at least this far apart: a hundred restarts in a moment are a few reads, not a hundred."""
_MOST_CHECKED = 64
"""Above so many changes at once one read is less work for the server than a question for each."""
_LOOKS = 3
"""So often events that come while others are looked at are taken along."""
_BEHIND_S = 0.02
"""Events come on another thread than answers, and so may be a moment later than what they tell of."""
_DOUBTS = 3
DOUBT_S = 0.1
"""Events may be a moment behind the counters; only what disagrees three times over is read anew."""


class Children:
    """``await catch_up(known)`` gives what came and what went since *known*; ``went_away`` after each lost connection.
    ``wake`` is called when there is something to catch up with."""

    def __init__(self, session: Session, path: str, wake: Any) -> None:
        self._session = session
        self._path = path
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._is_following = False
        self._can_follow = CAN_FOLLOW
        self._dirty: set[str] = set()
        self._told = asyncio.Event()
        self._events = 0
        self._offset: tuple[int, int] | None = None  # creation of the folder, its counter less our events
        self._vouched: tuple[int, int, int] | None = None
        self._doubts = 0
        self._read_at_s = -FULL_S
        self.is_settled = False
        """Whether the counters agreed: there is nothing to look at before the next event."""
        session.follow_children(path, self._hint)

    def close(self) -> None:
        self._session.unfollow_children(self._path, self._hint)

    def went_away(self) -> None:
        self._is_following = False

    async def catch_up(self, known: Collection[str]) -> tuple[Collection[str], Collection[str]]:
        """Names to add to *known*, and names to take out. Raises KazooException or TimeoutError; then *known* has to be
        asked for again."""
        if not await self._follow():
            return _missing(await self._read(watch=self._session.watcher), known)
        dirty: set[str] = set()
        stats: dict[str, Any] = {}
        try:
            for _ in range(_LOOKS):
                fresh, self._dirty = self._dirty, set()
                dirty |= fresh
                is_due = self._loop.time() - self._read_at_s >= FULL_S
                if is_due or len(fresh) > _MOST_CHECKED or any(len(name) > MAX_URL_BYTES for name in fresh):
                    return await self._all(known)
                folder = await self._look(fresh, stats)
                come = [name for name, stat in stats.items() if stat is not None and name not in known]
                gone = [name for name, stat in stats.items() if stat is None and name in known]
                if self._agrees(folder, len(known) + len(come) - len(gone)) or not await self._more():
                    break
            if not self.is_settled and not self._dirty:
                self._doubts += 1
                if self._doubts >= _DOUBTS:
                    return await self._all(known)
            return come, gone
        except BaseException:
            self._dirty |= dirty
            raise

    async def _follow(self) -> bool:
        """Whether the server tells of each child."""
        if self._can_follow and not self._is_following:
            self._is_following = True  # before the answer: should the connection go meanwhile, this is taken back
            try:
                await self._session.call("follow", self._path)
                self._offset = None
                await self._compare()
            except UnimplementedError:
                self._can_follow = False
            except BaseException:
                self._is_following = False
                raise
        return self._can_follow

    async def _compare(self) -> None:
        """Whether the folder is as it was when its counters last agreed; otherwise the list has to be read."""
        if self._vouched is not None:
            # Without a watch: a server keeps one mode a path, and a plain watch would end the recursive one.
            folder = await self._session.call("exists", self._path)
            if folder is not None and (folder.czxid, folder.cversion, folder.pzxid) == self._vouched:
                return
        self._read_at_s = -FULL_S

    async def _look(self, names: Collection[str], stats: dict[str, Any]) -> Any:
        """Puts the stats of *names* into *stats*; the folder's, after them."""
        order = sorted(names)
        paths = [*(f"{self._path}/{name}" for name in order), self._path]
        calls = [self._session.call("exists", path) for path in paths]
        found = await asyncio.gather(*calls, return_exceptions=True)
        for error in found:
            if isinstance(error, BaseException):
                raise error
        folder = found.pop()
        stats.update(zip(order, found, strict=True))
        return folder

    async def _more(self) -> bool:
        """The counters know of more than was looked at. An update is two events, and to show the one without the other
        would be half of it; the other one is a moment away."""
        if not self._dirty:
            self._told.clear()
            try:
                async with asyncio.timeout(_BEHIND_S):
                    await self._told.wait()
            except TimeoutError:
                return False
        return True

    def _agrees(self, folder: Any, count: int) -> bool:
        """Whether the folder's counters say what our names and events say. While more events wait to be looked at,
        nothing is concluded from them."""
        self.is_settled = False
        if folder is None:
            self.is_settled = not count and not self._dirty
        elif not self._dirty:
            offset = folder.czxid, folder.cversion - self._events
            if folder.numChildren == count and self._offset in (None, offset):
                self._settle(folder)
        return self.is_settled

    def _settle(self, folder: Any) -> None:
        self._offset = folder.czxid, folder.cversion - self._events
        self._vouched = folder.czxid, folder.cversion, folder.pzxid
        self._doubts = 0
        self.is_settled = True

    async def _all(self, known: Collection[str]) -> tuple[Collection[str], Collection[str]]:
        events = self._events
        self._offset = None
        names = await self._read(watch=None)
        if not self._dirty and events == self._events and self._folder is not None:
            self._settle(self._folder)
        self._doubts = 0
        return _missing(names, known)

    async def _read(self, watch: Any) -> list[str]:
        """The names; none where there is no folder. With *watch*, it is set in any case: on the children, or on the
        coming of the folder."""
        early_s = self._read_at_s + _GATHER_S - self._loop.time()
        if early_s > 0:
            await asyncio.sleep(early_s)
        self._folder = None
        self.is_settled = watch is not None
        while True:
            try:
                found = await self._session.call("get_children", self._path, watch=watch, include_data=True)
                break
            except NoNodeError:
                if watch is None or await self._session.call("exists", self._path, watch=watch) is None:
                    found = [], None
                    break
        self._read_at_s = self._loop.time()
        self._folder = found[1]
        return list(found[0])

    _folder: Any = None

    def _hint(self, kind: str, name: str) -> None:
        if kind != EventType.CHANGED:
            self._events += 1
            self._dirty.add(name)
            self._told.set()
            self._wake()


def _missing(names: Iterable[str], known: Collection[str]) -> tuple[Collection[str], Collection[str]]:
    there = set(names)
    return [name for name in there if name not in known], [name for name in known if name not in there]
