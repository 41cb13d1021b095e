from __future__ import annotations

import asyncio

import numpy as np
import pytest

from steelyard.cli.demo.traffic import Traffic
from steelyard.errors import Unavailable

ROWS = np.arange(10 * 64).reshape(10, 64)
LABELS = list(range(10))


class Cluster:
    """Answers with the row's label, after ``wait_s``; every ``failing``-th call fails."""

    def __init__(self, wait_s: float = 0.0, failing: int = 0, defect: Exception | None = None) -> None:
        self.users: list[int] = []
        self._wait_s = wait_s
        self._failing = failing
        self._defect = defect

    async def classify(self, user_id: int, pixels: np.ndarray) -> int:
        self.users.append(user_id)
        await asyncio.sleep(self._wait_s)
        if self._defect is not None:
            raise self._defect
        if self._failing and len(self.users) % self._failing == 0:
            raise Unavailable("away")
        return int(pixels[0]) // 64


async def sent(cluster: Cluster, *, seconds: float = 0.3, seed: int = 1) -> Traffic:
    traffic = Traffic(cluster, ROWS, LABELS, rate_per_s=500.0, users=20, seed=seed)
    running = asyncio.create_task(traffic.run())
    await asyncio.sleep(seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return traffic


async def test_calls_do_not_wait_for_one_another() -> None:
    traffic = await sent(Cluster(wait_s=60.0))
    assert traffic.open_calls > 30
    await traffic.abandon()
    assert traffic.open_calls == 0


async def test_answers_are_checked_and_failures_counted() -> None:
    traffic = await sent(Cluster(failing=3))
    await traffic.finish()
    assert len(traffic.calls) > 30
    assert all(call.is_right for call in traffic.calls if call.is_ok)
    failed = sum(not call.is_ok for call in traffic.calls)
    assert failed == sum(traffic.errors.values())
    assert failed == pytest.approx(len(traffic.calls) / 3, abs=1)


async def test_the_same_seed_asks_the_same_users() -> None:
    first, second = Cluster(), Cluster()
    await sent(first, seed=5)
    await sent(second, seed=5)
    both = min(len(first.users), len(second.users))
    assert both > 30
    assert first.users[:both] == second.users[:both]


async def test_a_defect_is_not_mistaken_for_an_answer() -> None:
    traffic = await sent(Cluster(defect=AttributeError("no such thing")))
    with pytest.raises(AttributeError, match="no such thing"):
        traffic.check()
