"""One client a process and address: the registries of an event loop that go through the same door share its session.

A provider and five consumers in one process would otherwise be six sessions, six sets of threads and six times the
watches, and ZooKeeper's limits count connections. A session belongs to one event loop, so a process with two loops (a
blocking consumer beside an asynchronous provider) has two.

The table holds what is in use and nothing else: the last registry to leave ends the session.
"""

from __future__ import annotations

import asyncio
import threading
from weakref import WeakKeyDictionary

from .place import Door, Place
from .session import Session


class Shared:
    """A session and how many registries use it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.users = 0


_LOCK = threading.Lock()
_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Door, Shared]] = WeakKeyDictionary()


class Lease:
    """The use of a session by one registry, from its making to ``release``."""

    def __init__(self, place: Place) -> None:
        self._door = place.door
        self._is_released = False
        self._table: dict[Door, Shared] = {}
        if not place.has_own_session:
            with _LOCK:
                self._table = _SHARED.setdefault(asyncio.get_running_loop(), {})
        shared = self._table.get(place.door)
        if shared is None:
            shared = self._table[place.door] = Shared(Session(place.door))
            shared.session.start()
        shared.users += 1
        self._shared = shared

    @property
    def session(self) -> Session:
        return self._shared.session

    @property
    def is_last(self) -> bool:
        """Whether nobody else uses the session now: then ending it takes everything out at once."""
        return self._shared.users == 1

    async def release(self) -> None:
        """Idempotent. The last one ends the session."""
        if self._is_released:
            return
        self._is_released = True
        self._shared.users -= 1
        if not self._shared.users:
            del self._table[self._door]
            await self._shared.session.stop()
