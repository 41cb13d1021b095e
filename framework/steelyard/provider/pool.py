"""The pool for handlers that block: a declared number of threads, and a bounded line of calls for each method.

``asyncio.to_thread`` would do, but its queue has no bound and nobody can see its length: a provider whose pool is
behind must refuse at once (RESOURCE_EXHAUSTED, so that the consumer goes elsewhere) and must report how far behind
it is. And its order is that of arrival: here the more important go first, then the more urgent (``line``). A flood of
one method fills that method's line and no other's.

Threads do not hold a call until they run it: each turn takes whoever is first in line at that moment, so a late but
urgent call overtakes, and a caller who has left takes no turn.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

from steelyard.errors import DeadlineExceeded, Overloaded, RpcError
from steelyard.filter import run_time
from steelyard.setting import whole_number

from .busy import BusyMeter
from .items import PooledItems
from .line import Line, Place
from .threads import DaemonThreads

log = logging.getLogger(__name__)

# Where a mistake (a queue for threads, bytes for calls) becomes certain.
MOST_THREADS = 10_000
MOST_WAITING = 1_000_000

FIRST = -1
"""A class before all of the callers': what must not be refused."""


class HandlerPool:
    """``threads``: handlers at once. ``queue``: calls of one method that may wait for a thread; more are refused."""

    def __init__(self, threads: int, queue: int, clock: Callable[[], float]) -> None:
        whole_number("threads", threads, 1, MOST_THREADS)
        whole_number("queue", queue, 0, MOST_WAITING)
        self._executor = DaemonThreads(threads, "steelyard-handler")
        self._threads = threads
        self._queue = queue
        self._clock = clock
        self._lock = threading.Lock()
        self._lines: dict[str, Line] = {}
        self._waiting = 0
        self._turns = 0
        self.busy = BusyMeter(threads, clock)

    @property
    def threads(self) -> int:
        """Handlers at once."""
        return self._threads

    @property
    def queue_depth(self) -> int:
        """Calls that wait for a thread."""
        return max(0, self.taken - self._threads)

    @property
    def taken(self) -> int:
        """Calls that run or wait."""
        with self._lock:  # a call that is just beginning is one or the other
            return self.busy.running + self._waiting

    async def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        deadline_at: float,
        context: contextvars.Context | None = None,
        *,
        priority: int = 1,
        line: str = "",
    ) -> Any:
        """The function's result; it runs in *context*, by default in a copy of the caller's. *line* names the method.
        Raises Overloaded when its line is full of calls that are as important, and DeadlineExceeded when no thread was
        free in time: then it has not run. Overloaded also meets one who waits and has to make room."""
        inside = contextvars.copy_context() if context is None else context
        ran = run_time.get()

        def work() -> Any:
            began_s = self._clock()
            if began_s >= deadline_at:
                raise DeadlineExceeded("the deadline was over before a handler thread was free", may_have_run=False)
            try:
                return inside.run(function, *args)
            except RpcError as error:
                # It speaks of a call that the handler has made; this one has begun.
                error.may_have_run = True
                raise
            except (StopIteration, StopAsyncIteration, asyncio.CancelledError) as error:
                # A future cannot carry the first (the caller would wait for ever), the second would look like the
                # proper end of a stream, and the third like a caller who has left.
                raise RuntimeError(f"the handler raised {type(error).__name__}") from error
            finally:
                if ran is not None:
                    ran.seconds = self._clock() - began_s

        return await asyncio.wrap_future(self._join(work, line, priority, deadline_at))

    def iterate(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        deadline_at: float = float("inf"),
        *,
        priority: int = 1,
        line: str = "",
    ) -> AsyncIterator[Any]:
        """The items of a blocking iterator, each fetched in the pool."""
        return PooledItems(self, function, args, deadline_at, priority, line)

    async def clean_up(self, function: Callable[[], None], context: contextvars.Context) -> None:
        """Runs what must not be refused. An error is logged: the one who would have to hear of it has left."""

        def work() -> None:
            try:
                context.run(function)
            except Exception:
                log.exception("a handler's clean-up raised")

        try:
            future = self._join(work, "", FIRST, float("inf"))
        except RuntimeError:  # the pool has closed: the garbage collector closes what is left
            return
        await asyncio.wrap_future(future)

    def close(self) -> None:
        """Ends the threads when they are done; waiting calls are cancelled. Handlers that still run do not keep the
        process, and are told of in the log."""
        if self.busy.running:
            log.warning("%d blocking handlers still run; they end with the process", self.busy.running)
        self._executor.close()
        with self._lock:
            left = [item for line in self._lines.values() for item in line.clear()]
            self._waiting = 0
        for future, _ in left:
            future.cancel()

    def _join(self, work: Callable[[], Any], name: str, priority: int, deadline_at: float) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            line = self._lines.get(name)
            if line is None:
                line = self._lines[name] = Line()
            # Idle threads will take theirs in a moment: those are no more in line than somebody at an open door.
            room = self._queue + max(0, self._threads - self.busy.running) - len(line)
            is_full = room <= 0 and priority != FIRST  # a clean-up is never refused, and nobody has to go for it
            loser = line.worse_than(priority) if is_full else None
            if is_full and loser is None:
                raise self._full()
            self._waiting -= loser is not None
            place = line.join((future, work), priority=priority, deadline_at=deadline_at, now_s=self._clock())
            self._waiting += 1
            if self._turns < self._waiting:
                try:
                    self._executor.submit(self._take_turn)
                except BaseException:
                    line.leave(place)
                    self._waiting -= 1
                    raise
                self._turns += 1
        if loser is not None:
            _refuse(loser[0], self._full())
        future.add_done_callback(lambda done: self._left(line, place) if done.cancelled() else None)
        return future

    def _full(self) -> Overloaded:
        return Overloaded(
            f"{self._threads} handler threads are busy and {self._queue} calls wait already",
            retry_after_s=self.busy.clears_in_s(self._waiting),
        )

    def _left(self, line: Line, place: Place) -> None:
        """A caller has gone: nobody waits for its turn."""
        with self._lock:
            if not place.is_out:
                line.leave(place)
                self._waiting -= 1

    def _take_turn(self) -> None:
        """In a thread: whoever is first in line now."""
        with self._lock:
            self._turns -= 1
            first = self._first()
            if first is None:
                return
            self._waiting -= 1
            self.busy.__enter__()  # under the lock, so that it is never counted twice or not at all
        future, work = first
        result, failure = None, None
        try:
            if not future.set_running_or_notify_cancel():
                return
            result = work()
        except BaseException as error:  # SystemExit too: it is for whoever waits, and a thread has nobody else to tell
            failure = error
        finally:
            # Before the result is told: that wakes the loop, which takes the interpreter for a whole turn of its own,
            # and a thread that waits for it would be measured as busy.
            self.busy.__exit__()
        if failure is None:
            future.set_result(result)
        else:
            future.set_exception(failure)

    def _first(self) -> Any:
        lines = [(head, number, line) for number, line in enumerate(self._lines.values()) if (head := line.head())]
        return min(lines)[2].next() if lines else None


def _refuse(future: Future[Any], error: Overloaded) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
