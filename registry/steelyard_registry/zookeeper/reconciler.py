"""A task that makes one thing true, and again after every event: an own entry (``placement``) or a list (``watch``).

Looking at the whole truth on each pass, and not applying events one by one, is what makes flaps, missed events and
new sessions ordinary: whatever happened, the next pass repairs it. A pass runs when something woke it, after every
reconnect, and from time to time without any reason (the audit). Nothing ends the task but its owner: an error of ours
is logged and the pass tried again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from typing import Protocol

from kazoo.exceptions import KazooException
from kazoo.protocol.states import EventType

from ..errors import RegistryClosed, RegistryError
from .place import Place
from .session import AWAY, Session

log = logging.getLogger(__name__)

_RETRY_S = 0.2
_REFUSED_S = 5.0


class View(Protocol):
    """What a reconciler keeps true for somebody: a list, a document."""

    def mark_stale(self) -> object: ...

    async def close(self) -> None: ...


class Reconciler(ABC):
    """Subclasses implement ``_pass``; ``deleted_delay_s`` holds a pass back after a deletion."""

    deleted_delay_s = 0.0

    def __init__(self, session: Session, place: Place, path: str) -> None:
        self._session = session
        self._place = place
        self._followed: str | None = None
        self.path = path
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._complaint = ""

    def start(self) -> None:
        self._session.observers.add(self._session_changed)
        self._task = self._loop.create_task(self._run())

    async def first_pass(self, wait_s: float) -> bool:
        """Whether the first successful pass came within *wait_s*. Raises RegistryError when the server refused."""
        done, _ = await asyncio.wait([self._first], timeout=wait_s)
        if done:
            self._first.result()
        return bool(done)

    async def start_for(self, view: View, wait_s: float) -> None:
        """Starts, and waits for *view*'s first content; stale is what has none. A caller who gives up, or whom the
        server refuses, leaves no view behind."""
        self.start()
        try:
            if not self._session.is_connected or not await self.first_pass(wait_s):
                view.mark_stale()
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(view.close()))
            raise

    async def cancel(self) -> None:
        """Idempotent. The task has ended when this returns."""
        self._leave()
        if self._timer is not None:
            self._timer.cancel()
        if not self._first.done():
            self._first.set_exception(RegistryClosed(f"{self._place.url} is closed"))
            self._first.exception()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        self._wake.set()

    @abstractmethod
    async def _pass(self) -> float | None:
        """Make it true. Seconds until the next pass if nothing wakes it before; None ends the task."""

    @abstractmethod
    def _went_away(self) -> None:
        """The connection is lost."""

    def _follow(self, path: str) -> None:
        """Hear of the watch on *path*, and no more of the one before."""
        if path != self._followed:
            self._unfollow()
            self._followed = path
            self._session.follow(path, self._arrived)

    def _unfollow(self) -> None:
        if self._followed is not None:
            self._session.unfollow(self._followed, self._arrived)
            self._followed = None

    def _leave(self) -> None:
        self._session.observers.discard(self._session_changed)
        self._unfollow()

    def _arrived(self, kind: str) -> None:
        if kind == EventType.DELETED and self.deleted_delay_s:
            if self._timer is None or self._timer.cancelled() or self._timer.when() < self._loop.time():
                self._timer = self._loop.call_later(self.deleted_delay_s, self._wake.set)
        else:
            self._wake.set()

    def _session_changed(self) -> None:
        if self._session.is_connected:
            self._wake.set()
        else:
            self._went_away()

    async def _run(self) -> None:
        while True:
            await self._session.connected()
            self._wake.clear()
            try:
                pause_s = await self._pass()
            except AWAY:
                if self._session.is_connected:  # asked, and not answered in time: nobody vouches for what is shown
                    self._went_away()
                await asyncio.sleep(_RETRY_S)
                continue
            except KazooException as error:
                self._refused(error)
                pause_s = _REFUSED_S
            except Exception:
                log.exception("%s: unexpected error at %s", self._place.url, self.path)
                pause_s = _REFUSED_S
            else:
                self._succeeded()
            if pause_s is None:
                self._leave()
                return
            try:
                async with asyncio.timeout(pause_s * random.uniform(0.8, 1.2)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _succeeded(self) -> None:
        if not self._first.done():
            self._first.set_result(None)
        if self._complaint:
            log.warning("%s: accepted again at %s", self._place.url, self.path)
            self._complaint = ""

    def _refused(self, error: KazooException) -> None:
        """The server answered no (access denied, ...): told once, and tried on."""
        complaint = f"{self._place.url}: refused at {self.path[:200]}: {type(error).__name__}"
        if complaint != self._complaint:
            self._complaint = complaint
            log.warning("%s; check user, password and the access lists there. Tried again from time to time", complaint)
        if not self._first.done():
            self._first.set_exception(RegistryError(f"{complaint}; check user, password and the access lists there"))
            self._first.exception()  # whoever does not wait for it has the log line
