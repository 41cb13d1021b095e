"""Steady traffic: a Poisson stream of calls from many users, open loop.

Calls go out when they are due and not when the last one came back, and a call's latency counts from the moment it was
due: a consumer that waits for slow nodes would hide them (Tene's "coordinated omission").
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.errors import SteelyardError

from .contract import Digits


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the consumer. Times are seconds of the monotonic clock; ``error`` is "" when it succeeded."""

    due_at: float
    ended_at: float
    error: str
    is_right: bool

    @property
    def is_ok(self) -> bool:
        return not self.error

    @property
    def latency_s(self) -> float:
        return self.ended_at - self.due_at


class Traffic:
    """``run`` sends until cancelled; ``target`` may be exchanged while it does. ``calls`` are those that have ended."""

    def __init__(
        self,
        target: Digits,
        rows: np.ndarray,
        labels: Sequence[int],
        *,
        rate_per_s: float,
        users: int,
        seed: int,
    ) -> None:
        self.target = target
        self.calls: list[Call] = []
        self.errors: Counter[str] = Counter()
        self._rows = rows
        self._labels = labels
        self._rate_per_s = rate_per_s
        self._users = users
        self._dice = random.Random(seed)
        self._open: set[asyncio.Task[None]] = set()
        self._defect: BaseException | None = None

    @property
    def open_calls(self) -> int:
        return len(self._open)

    async def run(self) -> None:
        """Sends until cancelled."""
        loop = asyncio.get_running_loop()
        for due_at in self._arrivals(time.monotonic()):
            await asyncio.sleep(due_at - time.monotonic())
            task = loop.create_task(self._call(due_at))
            self._open.add(task)
            task.add_done_callback(self._ended)

    async def finish(self) -> None:
        """Waits for the calls that are still open; each has a deadline of its own."""
        while self._open:
            await asyncio.wait(set(self._open))

    async def abandon(self) -> None:
        """Cancels the open calls."""
        for task in tuple(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def check(self) -> None:
        """Raises what a call raised that is no answer of a cluster but a defect."""
        if self._defect is not None:
            raise self._defect

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        if not task.cancelled() and self._defect is None:
            self._defect = task.exception()

    def _arrivals(self, at: float) -> Iterator[float]:
        while True:
            at += self._dice.expovariate(self._rate_per_s)
            yield at

    async def _call(self, due_at: float) -> None:
        row = self._dice.randrange(len(self._rows))
        error, is_right = "", False
        try:
            digit = await self.target.classify(self._dice.randrange(self._users), self._rows[row])
            is_right = digit == self._labels[row]
        except SteelyardError as failure:
            error = type(failure).__name__
            self.errors[str(failure)[:200]] += 1
        self.calls.append(Call(due_at, time.monotonic(), error, is_right))
