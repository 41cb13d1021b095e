"""Writes the lists of the watches to the cache on disk, off the loop and seldom.

A list that changes a hundred times in a restart is written a few times: the first time soon, so that a short-lived
process leaves something behind, and then at most every ten seconds with some jitter, because a hundred processes of one
machine may watch the same list.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from ..cache import Cache, Kept

FIRST_AFTER_S = 0.5
EVERY_S = 10.0


class Keeper:
    """``keep`` from the loop, ``flush`` before the end."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._dirty: dict[str, Callable[[], Sequence[str]]] = {}
        self._written: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._is_flushing = asyncio.Lock()

    def keep(self, interface: str, names: Callable[[], Sequence[str]]) -> None:
        """The list of *interface* may have changed; *names* gives it when it is written."""
        self._dirty[interface] = names
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def load(self, interface: str) -> Kept | None:
        return await asyncio.to_thread(self._cache.load, interface)

    async def flush(self) -> None:
        """Write what is not written yet, and end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._write()

    async def _run(self) -> None:
        await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2) if self._written else FIRST_AFTER_S)
        while self._dirty:
            await self._write()
            await asyncio.sleep(EVERY_S * random.uniform(0.8, 1.2))

    async def _write(self) -> None:
        async with self._is_flushing:
            dirty, self._dirty = self._dirty, {}
            for interface, listed in dirty.items():
                names = listed()
                digest = hash(tuple(names))
                if self._written.get(interface) != digest:
                    self._written[interface] = digest
                    await asyncio.to_thread(self._cache.store, interface, names)
