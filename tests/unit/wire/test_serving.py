from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from support.wires import Handler, until
from unit.wire.carriers import hear, say
from unit.wire.sides import hello

from steelyard.errors import Overloaded, RemoteError, Status
from steelyard.invoke import Invoker
from steelyard.model import Invocation, Reply
from steelyard.wire import WireLimits, serving
from steelyard.wire.frames import (
    Answer,
    AnyFrame,
    Bye,
    Call,
    Cancel,
    Credit,
    Drain,
    Fail,
    Hello,
    Item,
    Method,
    Ping,
    Pong,
)
from steelyard.wire.loopback import MemoryCarrier, pair
from steelyard.wire.serving import Acceptor


@asynccontextmanager
async def served(
    handler: Invoker, limits: WireLimits | None = None, *, peer: WireLimits | None = None
) -> AsyncIterator[tuple[Acceptor, MemoryCarrier]]:
    """An acceptor and a consumer's end, played by hand, that has said HELLO and named every method of the handler."""
    acceptor = Acceptor(handler, limits=limits or PATIENT)
    mine, theirs = pair()
    task = asyncio.ensure_future(acceptor.serve(theirs))
    methods = [Method(ref, "test.Echo", name) for ref, name in enumerate(METHODS, 1)]
    await say(mine, hello(peer), *methods)
    assert isinstance((await hear(mine))[0], Hello)
    try:
        yield acceptor, mine
    finally:
        await mine.close()
        await task
        await acceptor.close()


# No heartbeat comes to the rescue of what should have happened without one.
PATIENT = WireLimits(heartbeat_interval_s=3600)
A_FEW = 24  # calls that leave together; more of them leave in quanta
METHODS = ["echo", "block", "wait", "stubborn", "large", "drip", "flood"]


def a_call(call_id: int, method: str, *, deadline_ms: int | None = None, body: bytes = b"") -> Call:
    return Call(call_id, METHODS.index(method) + 1, deadline_ms, 1, b"", body)


async def hear_all(carrier: MemoryCarrier, count: int) -> list[AnyFrame]:
    frames: list[AnyFrame] = []
    while len(frames) < count:
        frames.extend(await hear(carrier))
    return frames


async def test_a_few_calls_of_one_packet_are_answered_in_one_packet() -> None:
    async with served(Handler()) as (_, mine):
        await say(mine, *(a_call(number, "echo", body=b"%d" % number) for number in range(1, A_FEW + 1)))
        answers = await hear(mine)
        assert [frame.body for frame in answers if isinstance(frame, Answer)] == [
            b"%d" % number for number in range(1, A_FEW + 1)
        ]


async def test_a_crowd_is_answered_in_quanta() -> None:
    """So that its consumer is at work again before the last of it is answered."""
    async with served(Handler()) as (_, mine):
        await say(mine, *(a_call(number, "echo", body=b"%d" % number) for number in range(1, 51)))
        first = await hear(mine)
        assert 0 < len(first) < 50
        answers = first + await hear_all(mine, 50 - len(first))
        assert [frame.body for frame in answers if isinstance(frame, Answer)] == [b"%d" % n for n in range(1, 51)]


async def test_a_call_whose_deadline_passed_while_the_loop_was_blocked_does_not_run() -> None:
    handler = Handler()
    async with served(handler) as (_, mine):
        await say(mine, a_call(1, "block"), a_call(2, "echo", deadline_ms=5))
        frames = await hear_all(mine, 2)
        (fail,) = [frame for frame in frames if isinstance(frame, Fail)]
        assert (fail.id, fail.status, fail.has_started) == (2, Status.DEADLINE_EXCEEDED, False)
        assert [invocation.method for invocation in handler.started] == ["block"]


async def test_a_call_that_is_cancelled_in_the_packet_that_brings_it_leaves_no_trace() -> None:
    handler = Handler()
    async with served(handler) as (acceptor, mine):
        await say(mine, *(frame for n in range(1, 101) for frame in (a_call(n, "wait"), Cancel(n))), Ping())
        assert await hear(mine) == [Pong(0, 0.0)]
        await until(lambda: acceptor.in_flight.count == 0)
        assert handler.started == []


async def test_a_consumer_that_does_not_read_bounds_its_provider() -> None:
    """It calls for large replies for ever; the provider stops reading and holds no more than its bounds."""
    limits = WireLimits(queued_bytes=256 * 1024, in_flight=16, heartbeat_interval_s=3600)
    handler = Handler()
    async with served(handler, limits) as (acceptor, mine):
        (connection,) = acceptor.connections
        sent = 0

        async def pester() -> None:
            nonlocal sent
            while True:
                sent += 1
                await say(mine, a_call(sent, "large", body=b"60000"))

        pestering = asyncio.ensure_future(pester())
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.1)
        assert connection._outbox.queued_bytes < 2 * limits.queued_bytes
        assert acceptor.in_flight.count <= limits.in_flight
        async with asyncio.timeout(10):
            while sent == before:  # and it goes on when it is read
                assert all(isinstance(frame, Answer | Fail) for frame in await hear(mine))
        pestering.cancel()
        await asyncio.gather(pestering, return_exceptions=True)


async def test_a_consumer_that_says_nothing_is_let_go() -> None:
    acceptor = Acceptor(Handler(), limits=WireLimits(heartbeat_interval_s=0.03))
    _, theirs = pair()
    async with asyncio.timeout(10):
        reason = await acceptor.serve(theirs)
    assert reason == "nothing was heard for three heartbeats of 0.03 s"
    assert not acceptor.connections


async def test_a_protocol_error_is_told_and_cancels_what_runs() -> None:
    handler = Handler()
    async with served(handler) as (acceptor, mine):
        await say(mine, a_call(1, "wait"))
        await until(lambda: handler.started)
        await say(mine, a_call(1, "wait"))
        (bye,) = await hear(mine)
        assert isinstance(bye, Bye)
        assert "call id 1 after 1: ids must grow" in bye.reason
        await until(lambda: handler.cancelled == 1)
        await until(lambda: not acceptor.connections)


async def test_loss_cancels_handlers_and_streams() -> None:
    handler = Handler()
    async with served(handler) as (acceptor, mine):
        await say(mine, a_call(1, "wait"), a_call(2, "drip"))
        await until(lambda: handler.sent_items > 0)
        await mine.sever()
        await until(lambda: handler.cancelled == 1 and handler.closed_streams == 1)
        await until(lambda: acceptor.in_flight.count == 0)


async def test_a_handler_that_does_not_stop_is_reported_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "CLEAN_UP_S", 0.05)
    handler = Handler()
    async with served(handler) as (acceptor, mine):
        await say(mine, a_call(1, "stubborn"))
        await until(lambda: handler.started)
        with caplog.at_level(logging.WARNING):
            async with asyncio.timeout(10):
                await acceptor.close()
        assert "1 handlers still run after they were cancelled" in caplog.text
        handler.gate.set()
        await until(lambda: acceptor.in_flight.count == 0)


async def test_drain_does_not_wait_for_ever_for_a_consumer_that_does_not_answer() -> None:
    async with served(Handler(), WireLimits(heartbeat_interval_s=0.05)) as (acceptor, mine):
        assert await acceptor.drain(10) is True
        frames = await hear_all(mine, 1)
        assert isinstance(frames[0], Drain)


async def test_a_call_that_crosses_the_drain_is_served_and_one_after_it_refused() -> None:
    handler = Handler()
    async with served(handler) as (acceptor, mine):
        draining = asyncio.ensure_future(acceptor.drain(10))
        assert await hear(mine) == [Drain()]
        await say(mine, a_call(1, "echo", body=b"crossed"))
        (answer,) = await hear(mine)
        assert isinstance(answer, Answer)
        assert answer.body == b"crossed"
        assert not draining.done()
        await say(mine, Drain(), a_call(2, "echo"))
        (fail,) = await hear(mine)
        assert isinstance(fail, Fail)
        assert (fail.status, fail.has_started) == (Status.UNAVAILABLE, False)
        assert await draining is True
        assert len(handler.started) == 1


async def test_a_deadline_is_kept_without_a_heartbeats_help() -> None:
    handler = Handler()
    async with served(handler) as (_, mine):
        await say(mine, a_call(1, "wait", deadline_ms=30))
        (fail,) = await hear(mine)
        assert isinstance(fail, Fail)
        assert (fail.status, fail.has_started) == (Status.DEADLINE_EXCEEDED, True)
        await until(lambda: handler.cancelled == 1)


async def test_a_blocked_stream_goes_on_with_credit() -> None:
    handler = Handler()
    async with served(handler, peer=WireLimits(stream_window_bytes=30_000)) as (_, mine):
        await say(mine, a_call(1, "flood"))
        frames = await hear_all(mine, 4)
        assert [type(frame) for frame in frames] == [Answer, Item, Item, Item]
        await asyncio.sleep(0.05)
        assert handler.sent_items == 4, "the fourth waits for credit"
        await say(mine, Credit(1, 1_000))
        assert isinstance((await hear(mine))[0], Item)


async def test_a_stream_that_waits_for_a_full_queue_goes_on_when_it_empties() -> None:
    handler = Handler()
    limits = WireLimits(queued_bytes=64 * 1024, heartbeat_interval_s=3600)
    async with served(handler, limits, peer=WireLimits(stream_window_bytes=200 * 1024 * 1024)) as (_, mine):
        await say(mine, a_call(1, "flood"))
        before = -1
        while handler.sent_items != before:
            before = handler.sent_items
            await asyncio.sleep(0.05)
        assert before < 100, "it stopped without lack of credit"
        async with asyncio.timeout(10):
            while handler.sent_items < 2 * before:
                await hear(mine)


class Rows:
    """A stream that is not a generator: nobody but its reader will close it."""

    def __init__(self) -> None:
        self.is_closed = False

    def __aiter__(self) -> Rows:
        return self

    async def __anext__(self) -> bytes:
        return bytes(1000)

    async def aclose(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("ending", ["cancel", "loss"])
async def test_a_stream_is_closed_when_it_is_given_up_between_its_items(ending: str) -> None:
    rows = Rows()

    async def invoke(_: Invocation) -> Reply:
        return Reply(stream=rows)

    async with served(invoke, peer=WireLimits(stream_window_bytes=1024)) as (_, mine):
        await say(mine, a_call(1, "drip"))
        await hear_all(mine, 2)
        assert not rows.is_closed
        await (say(mine, Cancel(1)) if ending == "cancel" else mine.sever())
        await until(lambda: rows.is_closed)


async def test_a_pong_tells_the_calls_in_flight_and_how_long_one_takes() -> None:
    handler = Handler()
    async with served(handler) as (acceptor, mine):
        await say(mine, a_call(1, "wait"), a_call(2, "wait"), Ping())
        assert await hear(mine) == [Pong(2, 0.0)]  # nothing has been answered yet
        await asyncio.sleep(0.05)
        handler.gate.set()
        answers = await hear(mine)
        assert [type(frame) for frame in answers] == [Answer, Answer]
        await say(mine, Ping())
        [pong] = await hear(mine)
        assert isinstance(pong, Pong)
        assert pong.in_flight == 0
        assert pong.latency_s is not None
        assert 0.04 <= pong.latency_s <= 1.0
        assert (acceptor.tally.calls, acceptor.tally.errors) == (2, 0)


async def test_errors_are_what_speaks_against_the_node() -> None:
    async def answer(invocation: Invocation) -> Reply:
        kind = invocation.method
        if kind == "echo":
            return Reply(body=b"")
        if kind == "block":
            raise RemoteError("an answer", details=b"d", may_have_run=True)
        if kind == "large":
            raise Overloaded("shed")
        if kind == "wait":
            await asyncio.sleep(3600)
        raise ValueError("broken")

    limits = replace(PATIENT, message_bytes=1024)
    async with served(answer, limits) as (acceptor, mine):
        tally = acceptor.tally

        async def after(*frames: AnyFrame) -> tuple[int, int]:
            """Calls and errors that these frames have added."""
            before = (tally.calls, tally.errors)
            await say(mine, *frames)
            await until(lambda: tally.calls > before[0])
            return (tally.calls - before[0], tally.errors - before[1])

        assert await after(a_call(1, "echo")) == (1, 0)
        assert await after(a_call(2, "block")) == (1, 0)
        assert await after(a_call(3, "large")) == (1, 1)
        assert await after(a_call(4, "stubborn")) == (1, 1)  # raises what nobody declared
        await say(mine, a_call(5, "wait"))
        await asyncio.sleep(0.01)
        assert await after(Cancel(5)) == (1, 0)  # the caller gave up
        assert await after(a_call(6, "wait", deadline_ms=20)) == (1, 1)
        await say(mine, a_call(7, "wait", deadline_ms=60))
        await asyncio.sleep(0.03)
        assert await after(Cancel(7)) == (1, 1)  # its caller's clock rang first, and no more than that
        assert await after(a_call(8, "echo", body=bytes(2000))) == (1, 1)  # refused by a bound
        # What was refused took no time worth knowing: only 1, 2, 4, 5, 6 and 7 are remembered.
        assert sum(map(len, tally.latencies._buckets.values())) == 6
