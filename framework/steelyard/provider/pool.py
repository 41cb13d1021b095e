"""The pool for handlers that block: a declared number of threads and a bounded queue.

``asyncio.to_thread`` would do, but its queue has no bound and nobody can see its length: a provider whose pool is
behind must refuse at once (RESOURCE_EXHAUSTED, so that the consumer goes elsewhere) and must report how far behind
it is.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from steelyard.errors import ConfigError, DeadlineExceeded, Overloaded

_END = object()


class HandlerPool:
    """``threads``: handlers at once. ``queue``: calls that may wait for a thread; more are refused."""

    def __init__(self, threads: int, queue: int, clock: Callable[[], float]) -> None:
        if threads < 1:
            raise ConfigError(f"threads: at least 1, not {threads!r}")
        if queue < 0:
            raise ConfigError(f"queue: 0 or more, not {queue!r}")
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="steelyard-handler")
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

    async def run(self, function: Callable[..., Any], args: tuple[Any, ...], deadline_at: float) -> Any:
        """The function's result. Raises Overloaded when the queue is full."""
        if self._taken >= self._threads + self._queue:
            raise Overloaded(f"{self._threads} handler threads are busy and {self._queue} calls wait already")
        context = contextvars.copy_context()

        def work() -> Any:
            if self._clock() >= deadline_at:
                raise DeadlineExceeded("the deadline was over before a handler thread was free", may_have_run=False)
            return context.run(function, *args)

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
        return await asyncio.wrap_future(future)

    def iterate(self, function: Callable[..., Any], args: tuple[Any, ...]) -> AsyncIterator[Any]:
        """The items of a blocking generator, each fetched in the pool."""

        async def items() -> AsyncIterator[Any]:
            iterator: Iterator[Any] = iter(await self.run(function, args, float("inf")))
            while True:
                item = await self.run(next, (iterator, _END), float("inf"))
                if item is _END:
                    return
                yield item

        return items()

    def close(self) -> None:
        """Ends the threads when they are done; waiting calls are cancelled."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _give_back(self, loop: asyncio.AbstractEventLoop, _: Future[Any]) -> None:
        try:
            loop.call_soon_threadsafe(self._free)
        except RuntimeError:  # the loop has closed before the thread was done: there is nobody left to count for
            pass

    def _free(self) -> None:
        self._taken -= 1
