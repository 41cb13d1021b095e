"""The pool for handlers that block: a declared number of threads and a bounded queue.

``asyncio.to_thread`` would do, but its queue has no bound and nobody can see its length: a provider whose pool is
behind must refuse at once (RESOURCE_EXHAUSTED, so that the consumer goes elsewhere) and must report how far behind
it is.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any

from steelyard.errors import DeadlineExceeded, Overloaded, RpcError
from steelyard.setting import whole_number

from .items import PooledItems
from .threads import DaemonThreads

log = logging.getLogger(__name__)

# Where a mistake (a queue for threads, bytes for calls) becomes certain.
MOST_THREADS = 10_000
MOST_WAITING = 1_000_000


class HandlerPool:
    """``threads``: handlers at once. ``queue``: calls that may wait for a thread; more are refused."""

    def __init__(self, threads: int, queue: int, clock: Callable[[], float]) -> None:
        whole_number("threads", threads, 1, MOST_THREADS)
        whole_number("queue", queue, 0, MOST_WAITING)
        self._executor = DaemonThreads(threads, "steelyard-handler")
        self._threads = threads
        self._queue = queue
        self._clock = clock
        self._taken = 0

    @property
    def queue_depth(self) -> int:
        """Calls that wait for a thread."""
        return max(0, self._taken - self._threads)

    @property
    def taken(self) -> int:
        """Calls that run or wait."""
        return self._taken

    async def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        deadline_at: float,
        context: contextvars.Context | None = None,
    ) -> Any:
        """The function's result; it runs in *context*, by default in a copy of the caller's. Raises Overloaded when the
        queue is full, and DeadlineExceeded when no thread was free in time: then it has not run."""
        if self._taken >= self._threads + self._queue:
            raise Overloaded(f"{self._threads} handler threads are busy and {self._queue} calls wait already")
        inside = contextvars.copy_context() if context is None else context

        def work() -> Any:
            if self._clock() >= deadline_at:
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

        return await asyncio.wrap_future(self._start(work))

    def iterate(self, function: Callable[..., Any], args: tuple[Any, ...]) -> AsyncIterator[Any]:
        """The items of a blocking iterator, each fetched in the pool."""
        return PooledItems(self, function, args)

    async def clean_up(self, function: Callable[[], None], context: contextvars.Context) -> None:
        """Runs what must not be refused. An error is logged: the one who would have to hear of it has left."""

        def work() -> None:
            try:
                context.run(function)
            except Exception:
                log.exception("a handler's clean-up raised")

        try:
            future = self._start(work)
        except RuntimeError:  # the pool has closed: the garbage collector closes what is left
            return
        await asyncio.wrap_future(future)

    def _start(self, work: Callable[[], Any]) -> Future[Any]:
        self._taken += 1
        try:
            future = self._executor.submit(work)
        except BaseException:
            self._taken -= 1
            raise
        loop = asyncio.get_running_loop()
        # The slot is the thread's, not the caller's: a caller who leaves does not stop the thread, so the slot
        # comes back only when the thread is done.
        future.add_done_callback(lambda done: self._give_back(loop, done))
        return future

    def close(self) -> None:
        """Ends the threads when they are done; waiting calls are cancelled. Handlers that still run do not keep the
        process, and are told of in the log."""
        running = min(self._taken, self._threads)
        if running:
            log.warning("%d blocking handlers still run; they end with the process", running)
        self._executor.close()

    def _give_back(self, loop: asyncio.AbstractEventLoop, _: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(self._free)
        except RuntimeError:  # the loop has closed before the thread was done: there is nobody left to count for
            pass

    def _free(self) -> None:
        self._taken -= 1
