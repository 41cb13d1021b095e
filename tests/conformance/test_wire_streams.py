"""What callers stream, over every carrier: items and credit towards the provider, and both ways at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.wires import CARRIERS, AnyListener, Carrier, Handler, call, soon, until

from steelyard.errors import DeadlineExceeded, Overloaded, Unavailable
from steelyard.model import Reply
from steelyard.wire import Channel, WireLimits


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


class Items:
    """A caller's stream; remembers how much of it was taken, and that it was closed."""

    def __init__(self, count: int, size: int = 100, *, pause_s: float = 0.0, error: Exception | None = None) -> None:
        self.count, self.size, self.pause_s, self.error = count, size, pause_s, error
        self.taken = 0
        self.is_closed = False
        self.stream = self._items()

    async def _items(self) -> AsyncIterator[bytes]:
        try:
            for _ in range(self.count):
                self.taken += 1
                yield bytes(self.size)
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)
            if self.error is not None:
                raise self.error
        finally:
            self.is_closed = True


@pytest.mark.parametrize(("count", "size"), [(0, 1), (1, 0), (1000, 100), (20, 100_000), (3, 1_000_000)])
async def test_a_callers_stream(channel: Channel, count: int, size: int) -> None:
    items = Items(count, size)
    reply = await channel(call("total", stream=items.stream))
    assert reply.body == b"%d" % (count * size)
    assert items.is_closed
    assert channel.open_calls == 0


async def test_streams_both_ways_answer_each_other(channel: Channel, handler: Handler) -> None:
    heard = asyncio.Queue[bytes]()

    async def asking() -> AsyncIterator[bytes]:
        yield b"1"
        for _ in range(5):
            yield await heard.get()

    reply = await channel(call("double", stream=asking()))
    assert reply.stream is not None
    answers = []
    async for body in reply.stream:
        answers.append(len(body))
        heard.put_nowait(bytes(body))
    assert answers == [2, 4, 8, 16, 32, 64]
    assert handler.closed_streams == 1


async def test_large_items_both_ways_keep_their_order(channel: Channel) -> None:
    async def asking() -> AsyncIterator[bytes]:
        for number in range(12):
            yield b"%02d" % number + bytes(300_000 if number % 3 == 0 else 10)

    reply = await channel(call("double", stream=asking()))
    assert [int(body[:2]) for body in await items(reply)] == list(range(12))


async def test_a_handler_that_has_heard_enough_stops_its_caller(channel: Channel) -> None:
    items = Items(10**9, pause_s=0.001)
    assert (await channel(call("first", stream=items.stream))).body == bytes(100)
    await until(lambda: items.is_closed)
    assert (await channel(call())).body == b"hi"


async def test_cancelling_a_call_closes_its_callers_stream_and_cancels_the_handler(
    channel: Channel, handler: Handler
) -> None:
    items = Items(10**9, pause_s=0.001)
    task = asyncio.ensure_future(channel(call("total", stream=items.stream)))
    await until(lambda: items.taken > 3 and handler.started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: items.is_closed and handler.cancelled == 1)
    assert channel.open_calls == 0


async def test_closing_the_answers_closes_the_callers_stream(channel: Channel, handler: Handler) -> None:
    items = Items(10**9, pause_s=0.001)
    reply: Any = await channel(call("double", stream=items.stream))
    await anext(reply.stream)
    await reply.stream.aclose()
    await until(lambda: items.is_closed and handler.closed_streams == 1)


async def test_a_callers_stream_that_fails_fails_its_call_with_its_own_error(
    channel: Channel, handler: Handler
) -> None:
    with pytest.raises(LookupError, match="the caller's own"):
        await channel(call("total", stream=Items(3, pause_s=0.02, error=LookupError("the caller's own")).stream))
    await until(lambda: handler.cancelled == 1)
    reply: Any = await channel(
        call("double", stream=Items(3, pause_s=0.02, error=LookupError("the caller's own")).stream)
    )
    with pytest.raises(LookupError, match="the caller's own"):
        await items(reply)


async def test_a_deadline_ends_a_callers_stream(channel: Channel, handler: Handler) -> None:
    items = Items(10**9, pause_s=0.001)
    await channel(call())  # a connection is there: making one may take longer than the deadline
    with pytest.raises(DeadlineExceeded):
        await channel(call("total", stream=items.stream, deadline_at=soon(0.5)))
    await until(lambda: items.is_closed and handler.cancelled == 1)


async def test_a_handler_that_does_not_read_bounds_what_its_caller_sends(channel: Channel, handler: Handler) -> None:
    items = Items(200, 10_000)
    task = asyncio.ensure_future(channel(call("slow_total", stream=items.stream)))
    await until(lambda: items.taken > 5)
    before = -1
    while items.taken != before:
        before = items.taken
        await asyncio.sleep(0.1)
    assert before * 10_000 < channel.limits.stream_window_bytes + 3 * 10_000
    assert (await channel(call())).body == b"hi", "nobody else waits for that handler"
    handler.gate.set()
    assert (await task).body == b"2000000"


async def test_a_lost_connection_ends_a_callers_stream(listener: AnyListener, channel: Channel) -> None:
    items = Items(10**9, pause_s=0.001)
    task = asyncio.ensure_future(channel(call("total", stream=items.stream)))
    await until(lambda: items.taken > 3)
    await listener.close()
    with pytest.raises(Unavailable):
        await task
    await until(lambda: items.is_closed)


async def test_an_item_over_the_bound_fails_its_call(carrier: Carrier, handler: Handler) -> None:
    async with carrier(handler, WireLimits(message_bytes=10_000)) as (_, channel):
        with pytest.raises(Overloaded, match="the bound is message_bytes=10000"):
            await channel()(call("total", stream=Items(3, 20_000).stream))
