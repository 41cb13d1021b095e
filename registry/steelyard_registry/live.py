"""The newest of something that a registry watches, and a wait for what comes after it.

One implementation for lists of nodes, rule documents and rule URLs, over all backends, so that "the version grows only
when something changed", "waiting again never misses a change" and "closing wakes everybody" are proved once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from .errors import RegistryClosed


@dataclass(frozen=True, slots=True)
class Versioned:
    """``version`` grows with every change that was seen; 0 before the first answer."""

    version: int = 0


V = TypeVar("V", bound=Versioned)


class Live(Generic[V]):
    """*what* names it in errors. ``_publish`` and ``end`` are for the backend, on the loop's own thread."""

    def __init__(self, what: str, first: V, on_close: Callable[[Any], Awaitable[None]] | None = None) -> None:
        self._what = what
        self._newest = first
        self._turn = asyncio.Event()
        self._on_close = on_close
        self._is_closed = False

    async def changed(self, after: int) -> V:
        """The first one whose version is greater than *after*; at once when it is already there. Raises RegistryClosed
        when the view is closed."""
        while not self._is_closed:
            if self._newest.version > after:
                return self._newest
            await self._turn.wait()
        raise RegistryClosed(f"{self._what} is closed")

    async def close(self) -> None:
        """Idempotent."""
        if not self._is_closed:
            self.end()
            if self._on_close is not None:
                await self._on_close(self)

    def end(self) -> None:
        """Close without telling the backend: for the backend itself."""
        self._is_closed = True
        self._next_turn()

    def _publish(self, new: V) -> bool:
        """Swap it in. True when it differs from the last one (or is the first), which then has a new version."""
        old = self._newest
        if self._is_closed or (old.version and replace(new, version=old.version) == old):
            return False
        self._newest = replace(new, version=old.version + 1)
        self._next_turn()
        return True

    def _next_turn(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()
