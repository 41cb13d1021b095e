"""The lanes on uvloop, whose transports are not asyncio's: buffers, pauses and ends come in another order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from support.pki import shared_pki
from support.wires import CARRIERS, Handler, call, until

from steelyard.errors import DeadlineExceeded, Unavailable
from steelyard.wire import WireLimits

uvloop: Any = pytest.importorskip("uvloop", reason="not made for this platform")


async def bodies(listener: Any, channel: Any, handler: Handler) -> None:
    """Small ones pass large ones, and each comes back as it was."""
    sizes = (0, 1, 70_000, 1_000_000, 3_000_000) * 4
    sent = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    deadline_at = time.monotonic() + 60
    replies = await asyncio.gather(*(channel(call(body=body, deadline_at=deadline_at)) for body in sent))
    assert all(reply.body == body for reply, body in zip(replies, sent, strict=True))


async def streams(listener: Any, channel: Any, handler: Handler) -> None:
    async def items() -> AsyncIterator[bytes]:
        for number in range(200):
            yield b"x" * (number % 3 * 40_000)

    reply = await channel(call("double", stream=items()))
    assert [len(body) async for body in reply.stream] == [number % 3 * 80_000 for number in range(200)]
    flood = (await channel(call("flood"))).stream
    await anext(flood)
    await asyncio.sleep(0.1)
    assert handler.sent_items < 300, "a reader that does not read bounds its sender"
    await flood.aclose()
    await until(lambda: listener.in_flight == 0)


async def deadlines_and_cancels(listener: Any, channel: Any, handler: Handler) -> None:
    with pytest.raises(DeadlineExceeded):
        await channel(call("wait", deadline_at=time.monotonic() + 0.3))
    waiting = asyncio.ensure_future(channel(call("wait")))
    await until(lambda: len(handler.started) == 2)
    waiting.cancel()
    await until(lambda: handler.cancelled == 2 and listener.in_flight == 0)


async def ends(listener: Any, channel: Any, handler: Handler) -> None:
    waiting = asyncio.ensure_future(channel(call("wait")))
    await until(lambda: handler.started)
    await listener.close()
    with pytest.raises(Unavailable):
        await waiting
    assert handler.cancelled == 1


Story = Callable[[Any, Any, Handler], Awaitable[None]]


@pytest.mark.parametrize("story", [bodies, streams, deadlines_and_cancels, ends])
@pytest.mark.parametrize("carrier", [name for name in CARRIERS if name.startswith(("tcp", "uds"))])
def test_on_uvloop(carrier: str, story: Story) -> None:
    shared_pki()  # made before the clock runs

    async def run() -> None:
        assert "uvloop" in type(asyncio.get_running_loop()).__module__
        handler = Handler()
        async with CARRIERS[carrier](handler, WireLimits(connect_timeout_s=20.0)) as (listener, open_channel):
            channel = open_channel()
            await channel.connect()
            await story(listener, channel, handler)
        await until(lambda: len(asyncio.all_tasks()) == 1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
