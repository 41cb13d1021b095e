"""A steady load on a proxy's method, and what became of each call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from steelyard import RpcError

# Calls are started in small groups: one timer a call would be the load generator's own limit.
GROUP_S = 0.005


class Load:
    """``async with Load(call, per_second=500) as load: ...`` then ``load.failures``.

    Open loop: calls start by the clock, whether or not earlier ones have ended, so a stall is seen as a stall. On a
    busy machine fewer calls start than asked for; ``rate`` says how many did."""

    def __init__(self, call: Callable[[int], Awaitable[object]], *, per_second: float) -> None:
        self._call = call
        self._per_second = per_second
        self.failures: list[tuple[float, str]] = []
        self.done = 0
        self.worst_s = 0.0
        self._started = 0
        self._began_s = self._ended_s = 0.0
        self._open: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def rate(self) -> float:
        """Calls that ended well, a second."""
        return self.done / ((self._ended_s or time.monotonic()) - self._began_s)

    async def __aenter__(self) -> Load:
        self._began_s = time.monotonic()
        self._task = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*self._open)
        self._ended_s = time.monotonic()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = int((time.monotonic() - self._began_s) * self._per_second)
            # What could not be started in time is not caught up with: that would be a burst, not a steady load.
            for _ in range(min(due - self._started, int(self._per_second * 0.1) + 1)):
                task = loop.create_task(self._one(self._started))
                self._open.add(task)
                task.add_done_callback(self._open.discard)
                self._started += 1
            self._started = due
            await asyncio.sleep(GROUP_S)

    async def _one(self, number: int) -> None:
        began_s = time.monotonic()
        try:
            await self._call(number)
        except RpcError as error:
            self.failures.append((began_s - self._began_s, f"{type(error).__name__}: {error} node={error.node}"))
        else:
            self.done += 1
        self.worst_s = max(self.worst_s, time.monotonic() - began_s)

    def __str__(self) -> str:
        return f"{self.done} calls, {self.rate:.0f}/s, {len(self.failures)} failed, slowest {self.worst_s:.2f} s"
