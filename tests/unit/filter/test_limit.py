"""The filter around the law: who is counted, and as what."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from steelyard.errors import DeadlineExceeded, Overloaded, RemoteError, error_for
from steelyard.filter.limit import run_time, server_limit
from steelyard.filter.readiness import server_readiness
from steelyard.guard import ConcurrencyLimit, ConcurrencySettings, Ending
from steelyard.invoke import Invoker
from steelyard.model import Invocation, Reply

CALL = Invocation("t.S", "m", (), deadline_at=1e12)


class Recording(ConcurrencyLimit):
    def __init__(self, most: int = 2) -> None:
        super().__init__(ConcurrencySettings(start=most, least=1, most=most))
        self.endings: list[tuple[Ending, float | None]] = []

    def ended(self, mark: int, ending: Ending, latency_s: float, now_s: float, *, ran_s: float | None = None) -> None:
        self.endings.append((ending, ran_s))
        super().ended(mark, ending, latency_s, now_s, ran_s=ran_s)


def limited(law: ConcurrencyLimit, inside: Invoker) -> Callable[[Invocation], Awaitable[Reply]]:
    chain = server_limit({("t.S", "m"): law}, time.monotonic)
    return lambda invocation: chain(invocation, inside)


async def test_more_than_the_limit_is_refused_with_a_hint_and_has_not_run() -> None:
    law, gate, ran = Recording(), asyncio.Event(), []

    async def inside(invocation: Invocation) -> Reply:
        ran.append(invocation)
        await gate.wait()
        return Reply(value=1)

    invoke = limited(law, inside)
    running = [asyncio.ensure_future(invoke(CALL)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match=r"t\.S\.m: 2 calls are under way and the limit is now 2") as caught:
        await invoke(CALL)
    assert (caught.value.may_have_run, caught.value.retry_after_s, len(ran)) == (False, 0.05, 2)
    gate.set()
    await asyncio.gather(*running)
    assert (law.in_flight, law.endings) == (0, [(Ending.SUCCESS, None)] * 2)


async def test_the_hint_travels_and_other_details_are_no_hint() -> None:
    told = Overloaded("full", retry_after_s=0.125)
    arrived = error_for(8, "full", details=told.details, is_remote=True)
    assert isinstance(arrived, Overloaded)
    assert arrived.retry_after_s == 0.125
    for details in (None, b"", b"something", b"retry-after-ms=", b"retry-after-ms=-5", b"retry-after-ms=9999999999"):
        assert Overloaded("full", details=details).retry_after_s is None


async def test_endings() -> None:
    law = Recording(100)

    async def raising(error: BaseException) -> None:
        async def inside(_: Invocation) -> Reply:
            raise error

        with pytest.raises(type(error)):
            await limited(law, inside)(CALL)

    await raising(DeadlineExceeded("in line"))
    await raising(Overloaded("the pool"))
    await raising(RemoteError("ValueError: the handler's own"))
    await raising(asyncio.CancelledError())

    async def known(_: Invocation) -> Reply:
        ran = run_time.get()
        assert ran is not None
        ran.seconds = 0.25
        return Reply(value=1)

    await limited(law, known)(CALL)
    assert [ending for ending, _ in law.endings] == [
        Ending.DROPPED,
        Ending.DROPPED,
        Ending.IGNORED,
        Ending.IGNORED,
        Ending.SUCCESS,
    ]
    assert law.endings[-1][1] == 0.25
    assert law.in_flight == 0


async def test_a_call_that_the_listener_ended_at_its_deadline_was_dropped() -> None:
    law = Recording(10)

    async def inside(_: Invocation) -> Reply:
        await asyncio.sleep(10)
        return Reply()

    call = asyncio.ensure_future(limited(law, inside)(Invocation("t.S", "m", (), deadline_at=time.monotonic() + 0.01)))
    await asyncio.sleep(0.03)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert law.endings == [(Ending.DROPPED, None)]


async def test_methods_without_a_limit_pass() -> None:
    async def inside(_: Invocation) -> Reply:
        return Reply(value=run_time.get())

    reply = await server_limit({}, time.monotonic)(CALL, inside)
    assert reply.value is None


async def test_what_is_not_ready_is_refused_before_all_else() -> None:
    async def inside(_: Invocation) -> Reply:
        return Reply(value=1)

    error = RemoteError("not now")
    refusals = {"t.S": error}
    chain = server_readiness(refusals.get)
    with pytest.raises(RemoteError, match="not now"):
        await chain(CALL, inside)
    refusals.clear()
    assert (await chain(CALL, inside)).value == 1


async def test_a_stream_counts_for_as_long_as_it_is_open() -> None:
    law = Recording()

    async def items() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def inside(invocation: Invocation) -> Reply:
        return Reply(stream=items())

    invoke = limited(law, inside)
    one, other = (await invoke(CALL)).stream, (await invoke(CALL)).stream
    assert one is not None
    assert other is not None
    assert await anext(one) == 1
    with pytest.raises(Overloaded):
        await invoke(CALL)
    assert [item async for item in one] == [2]
    assert law.in_flight == 1
    await other.aclose()
    assert law.in_flight == 0
    dropped = (await invoke(CALL)).stream
    assert law.in_flight == 1
    del dropped
    assert law.in_flight == 0
    assert law.limit == 2
    assert {ending for ending, _ in law.endings} == {Ending.IGNORED}
