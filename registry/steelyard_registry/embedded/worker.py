"""The thread that owns the file: runs jobs, polls for changes, keeps the leases alive.

One thread a registry, and not an executor with a polling task: an idle registry then wakes the event loop never, and a
handler that blocks the loop for longer than a lease does not make its own node disappear.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import RegistryClosed, RegistryError
from ..node import Node
from .store import Store, explained

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lists:
    """What is watched: interface -> its living nodes and how many entries could not be read; path -> document.
    ``generation`` grows when another file takes the place of the one that was open."""

    nodes: Mapping[str, tuple[list[Node], int]]
    documents: Mapping[str, str | None]
    generation: int = 0


class Worker:
    """Owns *store* from ``start`` to the end of ``stop``.

    ``on_lists(lists)`` is called on the loop with the lists of every watched interface after any change;
    ``on_lists(None)`` when the file cannot be read any more.
    """

    def __init__(
        self, store: Store, on_lists: Callable[[Lists | None], None], *, lease_s: float, beat_s: float, poll_s: float
    ) -> None:
        self.store = store
        self._on_lists = on_lists
        self._lease_s = lease_s
        self._beat_s = beat_s
        self._poll_s = poll_s
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"steelyard-registry {store.path.name}", daemon=True)
        self._is_ending = False
        self._is_active = False
        self._may_reap = True
        self._failing: set[str] = set()
        # Touched by the thread only, through jobs.
        self.own: dict[str, tuple[str, str]] = {}
        self.watched: set[str] = set()
        self.documents: set[str] = set()

    async def start(self) -> None:
        """Open the file. Raises what Store.open raises; then it can be tried again, or ``stop`` ends it."""
        if not self._thread.is_alive():
            self._thread.start()
        await self.send(self._enter)

    def send(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run *job* on the thread. Cancelling the future does not take the job back; errors of the file arrive as
        RegistryError."""
        future: asyncio.Future[T] = self._loop.create_future()
        if self._is_ending:
            future.set_exception(RegistryClosed(f"{self.store.path} is closed"))
            return future

        def run() -> None:
            try:
                result = job()
            except sqlite3.Error as error:
                self.tell(_fail, future, explained(self.store.path, error))
            except Exception as error:
                self.tell(_fail, future, error)
            else:
                self.tell(_succeed, future, result)

        self._jobs.put(run)
        return future

    async def stop(self) -> None:
        """Remove the own entries, close the file, end the thread. Never raises because the file is in trouble."""
        done = self.send(self._leave)
        self._is_ending = True
        try:
            await done
        except (OSError, RegistryError) as error:
            log.warning("embedded registry %s: leaving was not clean: %s", self.store.path, error)
        self._thread.join(timeout=1.0)  # leaving was its last act: this takes microseconds

    def _enter(self) -> None:
        self.store.open()
        self.store.beat({}, may_reap=True)
        self._is_active = True

    def _leave(self) -> None:
        self._is_ending = True
        try:
            if self._is_active and self.own:
                self.store.remove(list(self.own))
        finally:
            self.store.close()

    def _run(self) -> None:
        now = time.monotonic()
        poll_at = beat_at = judge_from = now
        while True:
            try:
                job = self._jobs.get(timeout=max(0.0, min(poll_at, beat_at) - time.monotonic()))
                job()
                poll_at = 0.0  # an own change is shown at once
            except queue.Empty:
                pass
            if self._is_ending and self._jobs.empty():
                return
            now = time.monotonic()
            if now >= beat_at:
                if now - beat_at > self._lease_s / 2:
                    # This process was frozen, or the whole machine: the others get one lease to show that they live.
                    judge_from = now + self._lease_s
                beat_at = now + self._beat_s
                self._may_reap = now >= judge_from
                self._tick("beat", self._beat)
            if now >= poll_at:
                poll_at = now + self._poll_s
                self._tick("poll", self._poll)

    def _beat(self) -> None:
        self.store.beat(self.own, may_reap=self._may_reap)

    def _poll(self) -> None:
        if self.store.has_changed() or "poll" in self._failing:
            self._publish()

    def _publish(self) -> None:
        self.tell(self._on_lists, self.lists(self.watched, self.documents))

    def lists(self, interfaces: Iterable[str] = (), documents: Iterable[str] = ()) -> Lists:
        """On the thread: what the file says now."""
        return Lists(
            {interface: self.store.nodes(interface) for interface in interfaces},
            {path: self.store.document(path) for path in documents},
            self.store.generation,
        )

    def _tick(self, name: str, step: Callable[[], None]) -> None:
        """Trouble with the file (disk full, locked for long) is told once, survived, and told again when it is over."""
        if not self._is_active:
            return
        try:
            if self._loop.is_closed():  # nobody closed the registry, and nobody is left to do it
                self._leave()
                return
            step()
        except (sqlite3.Error, OSError, RegistryError) as error:
            if name not in self._failing:
                self._failing.add(name)
                log.warning("embedded registry %s: %s fails, will be tried on: %s", self.store.path, name, error)
                if name == "poll":
                    self.tell(self._on_lists, None)
        except Exception:  # a defect must not end the heartbeats
            log.exception("embedded registry %s: unexpected error in %s", self.store.path, name)
        else:
            if name in self._failing:
                self._failing.discard(name)
                log.warning("embedded registry %s: %s works again", self.store.path, name)

    def tell(self, function: Callable[..., object], *arguments: Any) -> None:
        """From the thread: have *function* called on the loop, in the order in which the thread has looked. The result
        of a job wakes whoever waits for it a turn later: what a look found would then come after the next look's."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop has ended without closing the registry: nobody is left to tell
            pass


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
