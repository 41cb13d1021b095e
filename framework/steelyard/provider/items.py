"""A blocking iterator as an asynchronous one: each item is fetched in the handler pool.

A generator can be entered by one thread at a time, and its reader may leave while a thread is inside. So whoever is
last closes it: the reader when no step is under way, otherwise the step when it ends.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .pool import HandlerPool

_END = object()


class PooledItems(AsyncIterator[Any]):
    """What ``function(*args)`` iterates over. All steps run in one context, as those of a generator on the loop do."""

    def __init__(
        self,
        pool: HandlerPool,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        deadline_at: float,
        priority: int,
        line: str,
    ) -> None:
        self._pool = pool
        self._deadline_at = deadline_at
        self._priority = priority
        self._line = line
        self._function = function
        self._args = args
        self._context = contextvars.copy_context()
        self._iterator: Iterator[Any] | None = None
        self._lock = threading.Lock()
        self._is_stepping = False
        self._is_left = False

    async def __anext__(self) -> Any:
        item = await self._pool.run(
            self._step, (), self._deadline_at, self._context, priority=self._priority, line=self._line
        )
        if item is _END:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """The reader leaves; a generator's ``finally`` runs in the pool. Idempotent."""
        with self._lock:
            was_left, self._is_left = self._is_left, True
            is_stepping = self._is_stepping
        if not was_left and not is_stepping and self._iterator is not None:
            await self._pool.clean_up(self._close, self._context)

    def _step(self) -> Any:
        with self._lock:
            if self._is_left:
                return _END
            self._is_stepping = True
        try:
            if self._iterator is None:
                self._iterator = iter(self._function(*self._args))
            return next(self._iterator, _END)
        finally:
            if self._step_is_last():
                self._close()

    def _step_is_last(self) -> bool:
        with self._lock:
            self._is_stepping = False
            return self._is_left

    def _close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
