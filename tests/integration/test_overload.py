"""Three times the capacity, short; ``./dev bench overload`` has it for twenty seconds and with the real bars."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest
from support.overload import Seen, Work, offer, play

from steelyard import Overloaded, Provider
from steelyard.model import Invocation
from steelyard.wire import Channel


async def test_goodput_stays_waits_are_bounded_and_the_important_get_through() -> None:
    url = f"memory://{uuid.uuid4().hex}"
    result = await play(url, threads=4, service_s=0.04, factor=3.0, seconds=4.0, important=0.1, after_s=3)
    seen: Seen = result.overloaded
    assert seen.goodput / result.capacity > 0.75
    assert seen.lost(0) < 0.02
    assert seen.lost(2) > 0.3
    assert seen.without_hint == 0
    assert seen.failed == {}, "nobody waits until it is too late"
    queue_s = 12 * 0.04 / 4
    assert seen.quantile_s(0.99) < 2 * (2 * result.unloaded.quantile_s(0.99) + queue_s)
    assert result.after[-1].lost(2) == 0.0, "and three seconds later all is as before"
    (limit,) = result.statistics.limits.values()
    assert limit.in_flight == 0
    assert limit.limit <= 4 + 12


async def test_nobody_works_for_callers_who_have_left() -> None:
    async with Provider(f"memory://{uuid.uuid4().hex}", threads=1, limit=False) as provider:
        work = Work(0.05)
        await provider.export(work)
        channel = Channel(provider.address)
        await channel.connect()
        seen = await offer(channel, per_second=200, seconds=0.5, deadline_s=0.12)
        await channel.close()
        assert seen.failed.get("DeadlineExceeded", 0) > 20
        deadline_at = time.monotonic() + 5
        while provider.statistics().in_flight and time.monotonic() < deadline_at:
            await asyncio.sleep(0.01)
        assert work.ran < 0.62 / 0.05 + 4, "a thread takes who still waits, and the rest is dropped"
        assert provider.statistics().queue_depth == 0


@pytest.mark.parametrize("limit", [False, None])
async def test_without_a_limit_the_line_has_its_bound(limit: bool | None) -> None:
    async with Provider(f"memory://{uuid.uuid4().hex}", threads=1, queue=5, limit=limit) as provider:
        await provider.export(Work(0.1))
        channel = Channel(provider.address)
        await channel.connect()
        call = Invocation("bench.Work", "work", body=b"\x90", deadline_at=time.monotonic() + 10)
        found = await asyncio.gather(*(channel(call) for _ in range(20)), return_exceptions=True)
        await channel.close()
        hints = [each.retry_after_s for each in found if isinstance(each, Overloaded)]
        assert len(hints) == 14
        assert all(hint is not None and 0.001 <= hint <= 1.0 for hint in hints)
