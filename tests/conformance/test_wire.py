"""What every carrier must do: one suite, run over each of them."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.wires import CARRIERS, AnyListener, Carrier, Handler, call, until

from steelyard.errors import (
    CallCancelled,
    DeadlineExceeded,
    InternalError,
    Overloaded,
    RemoteError,
    RpcError,
    Status,
    Unavailable,
    error_for,
)
from steelyard.model import LoadReport, Reply
from steelyard.wire import Channel, ChannelState, WireLimits


@pytest.fixture(params=sorted(CARRIERS))
def carrier(request: pytest.FixtureRequest) -> Carrier:
    return CARRIERS[request.param]


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
async def ends(carrier: Carrier, handler: Handler) -> AsyncIterator[tuple[AnyListener, Channel]]:
    async with carrier(handler) as (listener, channel):
        yield listener, channel()


@pytest.fixture
def channel(ends: tuple[AnyListener, Channel]) -> Channel:
    return ends[1]


@pytest.fixture
def listener(ends: tuple[AnyListener, Channel]) -> AnyListener:
    return ends[0]


async def items(reply: Reply) -> list[bytes]:
    assert reply.stream is not None
    return [body async for body in reply.stream]


def soon(seconds: float) -> float:
    return time.monotonic() + seconds


# One call.


async def test_a_call_and_its_reply(channel: Channel, handler: Handler) -> None:
    reply = await channel(call(body=b"ping", attachments={"trace": "7"}, priority=3))
    assert (reply.body, reply.stream, reply.in_flight) == (b"ping", None, 0)
    assert reply.attachments == {"trace": "7"}
    (seen,) = handler.started
    assert (seen.service, seen.method, seen.body, seen.priority) == ("test.Echo", "echo", b"ping", 3)
    assert seen.attachments == {"trace": "7"}
    assert seen.deadline_at == float("inf")


async def test_the_deadline_travels_as_what_remains(channel: Channel, handler: Handler) -> None:
    deadline_at = soon(30)
    await channel(call(deadline_at=deadline_at))
    assert abs(handler.started[0].deadline_at - deadline_at) < 5


@pytest.mark.parametrize("size", [0, 1, 65_536, 1_000_000, 16 * 1024 * 1024])
async def test_bodies_of_all_sizes(channel: Channel, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert (await channel(call(body=body))).body == body


async def test_many_calls_at_once_each_get_their_own_reply(channel: Channel) -> None:
    bodies = [b"%d" % number for number in range(500)]
    replies = await asyncio.gather(*(channel(call(body=body)) for body in bodies))
    assert [reply.body for reply in replies] == bodies


async def test_more_large_replies_than_may_wait_are_refused_and_the_others_arrive(
    carrier: Carrier, handler: Handler
) -> None:
    """A provider reads no more, PONGs neither, while too much waits to be written: which must leave all the same."""
    async with carrier(handler, WireLimits(queued_bytes=1024 * 1024)) as (_, channel):
        one = channel()
        calls = [one(call("large", b"300000", deadline_at=soon(60))) for _ in range(60)]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(reply) for reply in replies} <= {Reply, Overloaded}
        assert [reply for reply in replies if isinstance(reply, Reply)]
        assert (await one(call("large", b"300000", deadline_at=soon(60)))).body == bytes(300_000)


async def test_a_slow_call_does_not_hold_up_a_quick_one(channel: Channel, handler: Handler) -> None:
    waiting = asyncio.ensure_future(channel(call("wait")))
    await until(lambda: handler.started)
    reply = await channel(call())
    assert (reply.body, reply.in_flight) == (b"hi", 1), "one other call is under way"
    assert not waiting.done()
    handler.gate.set()
    assert (await waiting).body == b"waited"


async def test_calls_start_in_the_order_in_which_they_were_made(channel: Channel, handler: Handler) -> None:
    await asyncio.gather(*(channel(call(body=b"%d" % number)) for number in range(200)))
    assert [invocation.body for invocation in handler.started] == [b"%d" % number for number in range(200)]


# Errors.


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
async def test_every_status_arrives_as_its_error(channel: Channel, status: Status) -> None:
    with pytest.raises(RpcError) as raised:
        await channel(call("fail", json.dumps({"status": status, "may_have_run": True}).encode()))
    error, expected = raised.value, error_for(status, "as told")
    assert type(error) is type(expected)
    assert (error.message, error.details, error.may_have_run) == (expected.message, b"d", True)
    assert (error.is_remote, error.node) == (True, channel.address)


async def test_a_provider_can_say_that_a_call_did_not_start(channel: Channel) -> None:
    with pytest.raises(Overloaded) as raised:
        await channel(call("fail", json.dumps({"status": 8, "may_have_run": False}).encode()))
    assert raised.value.may_have_run is False


async def test_any_other_exception_arrives_as_type_and_text(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(RemoteError) as raised:
        await channel(call("crash"))
    assert raised.value.message == "ValueError: no such thing"
    assert raised.value.may_have_run is True
    assert any(record.exc_info for record in caplog.records), "the provider's log has the traceback"
    assert (await channel(call())).body == b"hi"


async def test_a_handler_that_cancels_itself(channel: Channel) -> None:
    with pytest.raises(CallCancelled):
        await channel(call("cancel_itself"))


async def test_a_reply_without_a_body_is_an_internal_error(channel: Channel) -> None:
    with pytest.raises(InternalError, match="a reply without a body"):
        await channel(call("nothing"))


async def test_bodies_over_the_bound(carrier: Carrier, handler: Handler) -> None:
    async with carrier(handler, WireLimits(message_bytes=10_000)) as (_, channel):
        one = channel()
        await one.connect()
        with pytest.raises(Overloaded, match="a body of 10001 bytes; the bound is message_bytes=10000") as raised:
            await one(call(body=bytes(10_001)))
        assert (raised.value.may_have_run, raised.value.is_remote) == (False, False)
        with pytest.raises(Overloaded, match="a reply of 20000 bytes; the bound is message_bytes=10000") as raised:
            await one(call("large", b"20000"))
        assert (raised.value.may_have_run, raised.value.is_remote) == (True, True)
        assert len((await one(call("large", b"10000"))).body or b"") == 10_000
        assert [invocation.method for invocation in handler.started] == ["large", "large"]


async def test_calls_over_the_bound_are_refused_at_once(carrier: Carrier, handler: Handler) -> None:
    async with carrier(handler, WireLimits(in_flight=2)) as (_, channel):
        one = channel()
        waiting = [asyncio.ensure_future(one(call("wait"))) for _ in range(2)]
        await until(lambda: len(handler.started) == 2)
        with pytest.raises(Overloaded, match="the bound is in_flight=2"):
            await one(call())
        handler.gate.set()
        await asyncio.gather(*waiting)
        assert (await one(call())).body == b"hi"


# Deadlines and cancelling.


async def test_a_deadline_ends_the_call_and_its_handler(channel: Channel, handler: Handler) -> None:
    await channel(call())  # a connection is there: making one may take longer than the deadline
    with pytest.raises(DeadlineExceeded) as raised:
        await channel(call("wait", deadline_at=soon(0.3)))
    assert raised.value.may_have_run is True
    await until(lambda: handler.cancelled == 1)
    assert channel.open_calls == 0


async def test_a_handler_that_ignores_its_deadline_is_no_longer_waited_for(
    listener: AnyListener, channel: Channel, handler: Handler
) -> None:
    await channel(call())
    with pytest.raises(DeadlineExceeded):
        await channel(call("stubborn", deadline_at=soon(0.3)))
    await until(lambda: handler.cancelled >= 1)
    assert listener.in_flight == 1, "it still runs and is counted"
    handler.gate.set()
    await until(lambda: listener.in_flight == 0)


async def test_deadlines_end_in_their_own_order(channel: Channel) -> None:
    ended: list[int] = []
    await channel(call())
    begins_at = soon(0.3)  # for all of them: machines stand still between one call and the next

    async def one(number: int) -> None:
        with pytest.raises(DeadlineExceeded):
            await channel(call("wait", deadline_at=begins_at + 0.02 * number))
        ended.append(number)

    await asyncio.gather(*(one(number) for number in (5, 1, 4, 2, 3)))
    assert ended == [1, 2, 3, 4, 5]


async def test_an_expired_call_does_not_leave(channel: Channel, handler: Handler) -> None:
    await channel(call())
    with pytest.raises(DeadlineExceeded) as raised:
        await channel(call(deadline_at=time.monotonic()))
    assert raised.value.may_have_run is False
    assert len(handler.started) == 1


async def test_cancelling_the_caller_cancels_the_handler(channel: Channel, handler: Handler) -> None:
    task = asyncio.ensure_future(channel(call("wait")))
    await until(lambda: handler.started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: handler.cancelled == 1)
    assert (await channel(call())).body == b"hi"


async def test_a_call_that_is_cancelled_before_it_left_does_not_run(channel: Channel, handler: Handler) -> None:
    await channel(call())
    task = asyncio.ensure_future(channel(call("wait")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await channel(call())
    assert [invocation.method for invocation in handler.started if invocation.method == "wait"] in ([], ["wait"])
    await until(lambda: handler.cancelled == len(handler.started) - 2)


# Streams.


async def test_a_stream(channel: Channel, handler: Handler) -> None:
    reply = await channel(call("count", b"1000"))
    assert reply.attachments == {"kind": "numbers"}
    assert reply.body is None
    assert await items(reply) == [b"%d" % number for number in range(1000)]
    assert handler.closed_streams == 1
    assert channel.open_calls == 0


async def test_an_empty_stream(channel: Channel) -> None:
    assert await items(await channel(call("count", b"0"))) == []


async def test_streams_beside_each_other(channel: Channel) -> None:
    replies = await asyncio.gather(*(channel(call("count", b"%d" % (100 * n))) for n in range(10)))
    counted = await asyncio.gather(*(items(reply) for reply in replies))
    assert [len(bodies) for bodies in counted] == [100 * n for n in range(10)]


async def test_a_stream_that_fails_gives_its_items_first(channel: Channel) -> None:
    reply = await channel(call("count_and_crash", b"3"))
    assert reply.stream is not None
    assert [await anext(reply.stream) for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(RemoteError, match="ValueError: the well is dry"):
        await anext(reply.stream)
    with pytest.raises(StopAsyncIteration):
        await anext(reply.stream)


async def test_a_deadline_ends_a_stream(channel: Channel, handler: Handler) -> None:
    await channel(call())
    reply = await channel(call("drip", deadline_at=soon(0.5)))
    with pytest.raises(DeadlineExceeded):
        await items(reply)
    await until(lambda: handler.closed_streams == 1)


async def test_closing_a_stream_stops_it_at_the_provider(channel: Channel, handler: Handler) -> None:
    reply = await channel(call("drip"))
    assert reply.stream is not None
    assert await anext(reply.stream) == b"0"
    await reply.stream.aclose()  # type: ignore[attr-defined]
    await until(lambda: handler.closed_streams == 1)
    with pytest.raises(StopAsyncIteration):
        await anext(reply.stream)
    assert channel.open_calls == 0


async def test_dropping_a_stream_stops_it_at_the_provider(channel: Channel, handler: Handler) -> None:
    reply: Any = await channel(call("drip"))
    assert await anext(reply.stream) == b"0"
    del reply
    gc.collect()
    await until(lambda: handler.closed_streams == 1)
    assert channel.open_calls == 0


async def test_cancelling_the_reader_stops_the_stream(channel: Channel, handler: Handler) -> None:
    reply = await channel(call("drip"))
    reading = asyncio.ensure_future(items(reply))
    await until(lambda: handler.sent_items > 2)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await until(lambda: handler.closed_streams == 1)


async def test_a_reader_that_does_not_read_bounds_what_is_sent(channel: Channel, handler: Handler) -> None:
    window_bytes = channel.limits.stream_window_bytes
    reply = await channel(call("flood"))
    assert reply.stream is not None
    await until(lambda: handler.sent_items > 5)
    before = -1
    while handler.sent_items != before:
        before = handler.sent_items
        await asyncio.sleep(0.1)
    assert before * 10_000 < window_bytes + 3 * 10_000
    assert (await channel(call())).body == b"hi", "nobody else waits for that reader"
    for _ in range(100):
        await anext(reply.stream)
    await until(lambda: handler.sent_items > before)


# The connection.


async def test_load_reports_reach_every_consumer_and_those_who_come_later(carrier: Carrier, handler: Handler) -> None:
    heard: list[list[LoadReport]] = [[], [], []]
    async with carrier(handler) as (listener, channel):
        for reports in heard[:2]:
            await channel(on_load=reports.append).connect()
        await until(lambda: listener.connections == 2)
        listener.publish_load(LoadReport({"cpu": 0.25}, in_flight=3, queue_depth=0, age_s=0.5))
        await until(lambda: heard[0] and heard[1])
        await channel(on_load=heard[2].append).connect()
        await until(lambda: heard[2])
    first, late = heard[0][0], heard[2][0]
    assert (first.utilization, first.in_flight, first.queue_depth, first.age_s) == ({"cpu": 0.25}, 3, 0, 0.5)
    assert late.utilization == {"cpu": 0.25}
    assert late.age_s >= 0.5, "it has become older meanwhile"


async def test_drain_finishes_what_runs_and_refuses_what_is_new(carrier: Carrier, handler: Handler) -> None:
    states: list[ChannelState] = []
    async with carrier(handler) as (listener, channel):
        one = channel(on_state=states.append)
        waiting = asyncio.ensure_future(one(call("wait")))
        await until(lambda: handler.started)
        draining = asyncio.ensure_future(listener.drain(20))
        await until(lambda: one.state is ChannelState.DRAINING)
        with pytest.raises(Unavailable, match="draining") as raised:
            await one(call())
        assert raised.value.may_have_run is False
        assert not draining.done()
        handler.gate.set()
        assert await draining is True
        assert (await waiting).body == b"waited"
        assert len(handler.started) == 1
    assert states == [ChannelState.CONNECTING, ChannelState.READY, ChannelState.DRAINING, *states[3:]]


async def test_drain_gives_up_after_its_time(listener: AnyListener, channel: Channel, handler: Handler) -> None:
    waiting = asyncio.ensure_future(channel(call("wait")))
    await until(lambda: handler.started)
    assert await listener.drain(0.1) is False
    handler.gate.set()
    await waiting


async def test_drain_costs_no_call(carrier: Carrier, handler: Handler) -> None:
    """Callers that move on when they are told to: every call that was accepted or crossed the DRAIN is answered."""
    async with carrier(handler) as (listener, channel):
        one = channel()

        async def caller() -> int:
            count = 0
            while True:
                try:
                    await one(call("late_echo", b"1"))
                except Unavailable as error:
                    assert error.may_have_run is False  # noqa: PT017
                    return count
                count += 1

        callers = [asyncio.ensure_future(caller()) for _ in range(20)]
        await until(lambda: len(handler.started) > 100)
        assert await listener.drain(20) is True
        counts = await asyncio.gather(*callers)
        assert sum(counts) == len(handler.started)


async def test_drain_waits_for_large_replies_to_leave(carrier: Carrier, handler: Handler) -> None:
    async with carrier(handler) as (listener, channel):
        one = channel()
        size = 8 * 1024 * 1024
        calls = [asyncio.ensure_future(one(call("large", b"%d" % size))) for _ in range(3)]
        await until(lambda: len(handler.started) == 3 and listener.in_flight == 0)
        assert await listener.drain(20) is True
        await listener.close()
        assert [len((await reply).body or b"") for reply in calls] == [size] * 3


async def test_a_consumer_that_comes_while_the_provider_drains_is_told(carrier: Carrier, handler: Handler) -> None:
    async with carrier(handler) as (listener, channel):
        await listener.drain(1)
        one = channel()
        await one.connect()
        await until(lambda: one.state is ChannelState.DRAINING)


async def test_closing_the_listener_fails_calls_at_once_and_cancels_handlers(
    listener: AnyListener, channel: Channel, handler: Handler
) -> None:
    waiting = asyncio.ensure_future(channel(call("wait")))
    await until(lambda: handler.started)
    await listener.close()
    with pytest.raises(Unavailable) as raised:
        await waiting
    assert raised.value.may_have_run is True
    assert handler.cancelled == 1
    await until(lambda: channel.state is ChannelState.UNREACHABLE)
    with pytest.raises(Unavailable, match="unreachable") as raised:
        await channel(call())
    assert raised.value.may_have_run is False


async def test_closing_the_channel_fails_its_calls_and_cancels_their_handlers(
    listener: AnyListener, channel: Channel, handler: Handler
) -> None:
    waiting = asyncio.ensure_future(channel(call("wait")))
    streaming = await channel(call("drip"))
    await until(lambda: len(handler.started) == 2)
    await channel.close()
    with pytest.raises(Unavailable, match="the channel was closed"):
        await waiting
    with pytest.raises(Unavailable, match="the channel was closed"):
        await items(streaming)
    with pytest.raises(Unavailable, match="the channel was closed"):
        await channel(call())
    await until(lambda: handler.cancelled == 1 and handler.closed_streams == 1)
    await until(lambda: listener.connections == 0 and listener.in_flight == 0)
    assert channel.state is ChannelState.CLOSED


async def test_nothing_is_left_behind(carrier: Carrier) -> None:
    before = asyncio.all_tasks()
    handler = Handler()
    async with carrier(handler) as (_, channel):
        one = channel()
        await one(call())
        asyncio.ensure_future(one(call("wait"))).cancel()
        waiting = asyncio.ensure_future(one(call("wait")))
        await until(lambda: len(handler.started) >= 2)
        stream = await one(call("drip"))
    await asyncio.gather(waiting, return_exceptions=True)
    del stream
    await until(lambda: asyncio.all_tasks() == before)


async def test_idle_connections_stay(carrier: Carrier, handler: Handler) -> None:
    limits = WireLimits(heartbeat_interval_s=0.2)
    states: list[ChannelState] = []
    async with carrier(handler, limits) as (listener, channel):
        one = channel(limits=limits, on_state=states.append)
        await one.connect()
        await asyncio.sleep(1.5)
        assert one.state is ChannelState.READY
        assert listener.connections == 1
    assert states[:2] == [ChannelState.CONNECTING, ChannelState.READY]


async def test_the_repr_tells_the_truth(channel: Channel) -> None:
    assert "idle, 0 open calls" in repr(channel)
    await channel(call())
    assert f"{channel.address} ready, 0 open calls" in repr(channel)
