"""A loop's attempts to connect again: one line, a bounded rate, and nobody forgotten."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from steelyard.errors import Unavailable
from steelyard.wire import Channel, WireLimits
from steelyard.wire.attempts import Attempts, attempts_of_this_loop
from steelyard.wire.carrier import CarrierLost

LIVENESS_S = 30.0


async def test_the_rate_is_bounded_and_the_first_to_come_is_the_first_to_go() -> None:
    attempts = Attempts(per_s=200.0)
    order: list[int] = []
    loop = asyncio.get_running_loop()

    async def one(number: int) -> None:
        async with attempts.turn(asyncio.Event()):
            order.append(number)

    began_s = loop.time()
    async with asyncio.timeout(LIVENESS_S):
        await asyncio.gather(*(one(number) for number in range(125)))
    assert order == list(range(125))
    assert loop.time() - began_s >= 99 / 200  # 26 at once, and the others at the rate
    assert (attempts.waiting, attempts.under_way) == (0, 0)


async def test_no_more_than_so_many_are_under_way() -> None:
    attempts = Attempts(per_s=1e6, at_once=3)
    most = 0

    async def one() -> None:
        nonlocal most
        async with attempts.turn(asyncio.Event()):
            most = max(most, attempts.under_way)
            await asyncio.sleep(0.01)

    async with asyncio.timeout(LIVENESS_S):
        await asyncio.gather(*(one() for _ in range(20)))
    assert most == 3


async def test_whoever_has_news_does_not_wait() -> None:
    attempts = Attempts(per_s=0.01)
    hurry = asyncio.Event()
    passed = asyncio.Event()

    async def one(own: asyncio.Event) -> None:
        async with attempts.turn(own):
            if own is hurry:
                passed.set()

    tasks = [asyncio.create_task(one(asyncio.Event())) for _ in range(40)]
    tasks.append(asyncio.create_task(one(hurry)))
    await asyncio.sleep(0.05)
    assert not passed.is_set()
    hurry.set()
    async with asyncio.timeout(LIVENESS_S):
        await passed.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (attempts.waiting, attempts.under_way) == (0, 0)


async def test_one_that_is_given_up_leaves_its_place_and_its_turn() -> None:
    attempts = Attempts(per_s=1e6, at_once=1)

    async def one(hold_s: float) -> None:
        async with attempts.turn(asyncio.Event()):
            await asyncio.sleep(hold_s)

    for moment_s in (0.0, 0.001, 0.02):
        holds, waits, last = (asyncio.create_task(one(hold_s)) for hold_s in (0.01, 60.0, 0.0))
        await asyncio.sleep(moment_s)
        waits.cancel()
        async with asyncio.timeout(LIVENESS_S):
            await asyncio.gather(holds, waits, last, return_exceptions=True)
        assert (attempts.waiting, attempts.under_way) == (0, 0)


async def test_a_thousand_dead_nodes_are_tried_in_turn_and_no_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: dict[str, int] = {}

    async def refuse(address: str, _: WireLimits) -> object:
        tried[address] = tried.get(address, 0) + 1
        raise CarrierLost("refused")

    monkeypatch.setattr("steelyard.wire.attempts.PER_S", 250.0)
    limits = WireLimits(backoff_base_s=0.01, backoff_max_s=0.05)
    channels = [Channel(f"h:{port}", limits=limits, connector=refuse) for port in range(1, 501)]  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    for channel in channels:
        with contextlib.suppress(Unavailable):
            await channel.connect()
    assert sum(tried.values()) <= 500 + 26 + 250 * 20  # nobody's first attempt waits
    tried.clear()
    began_s = loop.time()
    await asyncio.sleep(3.0)
    took_s = loop.time() - began_s
    assert sum(tried.values()) <= 26 + 251 * took_s
    assert len(tried) > 400 or took_s > 6  # each of the 500 has had its turn about once
    assert max(tried.values()) <= min(tried.values()) + 2
    assert attempts_of_this_loop().waiting > 100
    for channel in channels:
        await channel.close()
    assert (attempts_of_this_loop().waiting, attempts_of_this_loop().under_way) == (0, 0)
