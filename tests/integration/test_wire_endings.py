"""However a connection ends in the middle of a stream, callers hear of it in time, and nothing is left: a thousand
times over (``--slow``; some dozens otherwise)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from support.nursery import Child, nursery
from support.wires import Handler, call, until

from steelyard.errors import Unavailable
from steelyard.wire import Channel, LaneConnector, Listener, WireLimits

QUICK = WireLimits(heartbeat_interval_s=0.2, connect_timeout_s=5.0, backoff_base_s=0.05, backoff_max_s=0.2)
DEADLINE_S = 20.0  # far more than the three heartbeats of 0.2 s, for machines that have other things to do

Ending = Callable[[], Awaitable[None]]


def slow(count: int) -> object:
    return pytest.param(count, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


async def in_mid_stream(channel: Channel, end: Ending) -> None:
    """A stream that is being read and a call that waits, when the connection ends."""
    deadline_at = time.monotonic() + DEADLINE_S
    stream = await begun(channel, deadline_at)
    waiting = asyncio.ensure_future(channel(call("wait", deadline_at=deadline_at)))
    await asyncio.sleep(0.005)
    await end()
    with pytest.raises(Unavailable) as caught:
        async for _ in stream:
            pass
    assert caught.value.may_have_run
    with pytest.raises(Unavailable) as caught:
        await waiting
    assert time.monotonic() < deadline_at
    assert channel.open_calls == 0


async def begun(channel: Channel, deadline_at: float) -> AsyncIterator[bytes]:
    """A stream with two of its items read. Where others leave this machine no time for three heartbeats, a connection
    may end before anybody ends it, and is made anew."""
    while True:
        try:
            stream = (await channel(call("drip", deadline_at=deadline_at))).stream
            assert stream is not None
            assert [await anext(stream) for _ in range(2)] == [b"0", b"1"]
            return stream
        except Unavailable:
            assert time.monotonic() < deadline_at
            await asyncio.sleep(0.02)


class Books:
    """What there is before, and has to be there after."""

    def __init__(self) -> None:
        gc.collect()
        self._fds, self._tasks = fds(), len(asyncio.all_tasks())

    async def close(self) -> None:
        gc.collect()
        await until(lambda: len(asyncio.all_tasks()) <= self._tasks)
        await until(lambda: fds() <= self._fds)


@pytest.mark.parametrize("count", [30, slow(1000)])
async def test_the_provider_is_killed(count: int) -> None:
    async with nursery() as births:
        books: Books | None = None
        for number in range(count):
            child = await births.child()
            channel = Channel(child.address, limits=QUICK, connector=LaneConnector("tcp", child.lanes))

            async def kill(child: Child = child) -> None:
                child.send(signal.SIGKILL)

            await in_mid_stream(channel, kill)
            await channel.close()
            if number == 2:  # what is kept for good is there by now
                books = Books()
        assert books is not None
        await books.close()


@pytest.mark.parametrize("count", [6, slow(1000)])
async def test_the_provider_is_stopped_and_goes_on(count: int) -> None:
    async with nursery() as births:
        child = await births.child()
        channel = Channel(child.address, limits=QUICK, connector=LaneConnector("tcp", child.lanes))
        books: Books | None = None
        for number in range(count):

            async def stop() -> None:
                child.send(signal.SIGSTOP)

            await in_mid_stream(channel, stop)
            child.send(signal.SIGCONT)
            answer = await again(channel)
            assert answer == b"hi"
            if number == 2:
                books = Books()
        assert books is not None
        await books.close()
        await channel.close()


async def again(channel: Channel) -> bytes | None:
    """The answer of a provider that is on its way back."""
    give_up_at = time.monotonic() + DEADLINE_S
    while True:
        try:
            return (await channel(call(deadline_at=give_up_at))).body
        except Unavailable:
            assert time.monotonic() < give_up_at
            await asyncio.sleep(0.02)


class Relay:
    """Stands between, and ends connections as networks do."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._pairs: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._pairs.append((writer, onward_writer))
        for source, sink in ((reader, onward_writer), (onward_reader, writer)):
            task = asyncio.ensure_future(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError, RuntimeError):  # the latter: written to an end that was closed on purpose
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def reset(self) -> None:
        """RST, both ways."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for writer in pair:
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()

    async def half_close_down(self) -> None:
        """The provider's end says that it will say no more; the consumer's may go on."""
        for down, _ in self._pairs:
            down.write_eof()
        self._pairs = []

    async def half_close_up(self) -> None:
        """The same of the consumer's end, as the provider sees it."""
        for _, up in self._pairs:
            up.write_eof()
        self._pairs = []


@asynccontextmanager
async def relayed() -> AsyncIterator[tuple[Listener, Handler, Relay]]:
    handler = Handler()
    async with Listener(handler, limits=QUICK, lanes=("tcp",)) as listener:
        listener.identity = listener.address
        relay = Relay(int(listener.lanes["tcp"]))
        server = await asyncio.start_server(relay._enter, "127.0.0.1", 0)
        relay.port = server.sockets[0].getsockname()[1]
        yield listener, handler, relay
        await relay.reset()
        server.close()
        for task in relay._tasks:
            task.cancel()
        await asyncio.gather(*relay._tasks, return_exceptions=True)


@pytest.mark.parametrize("ending", ["reset", "half_close_down", "half_close_up"])
@pytest.mark.parametrize("count", [30, slow(1000)])
async def test_the_network_ends_it(ending: str, count: int) -> None:
    async with relayed() as (listener, handler, relay):
        books: Books | None = None
        for number in range(count):
            connector = LaneConnector("tcp", {"tcp": str(relay.port)})
            channel = Channel(listener.address, limits=QUICK, connector=connector)
            await in_mid_stream(channel, getattr(relay, ending))
            await channel.close()
            await until(lambda: listener.connections == 0 and listener.in_flight == 0)
            if number == 2:
                await until(lambda: not relay._tasks)
                books = Books()
        await until(lambda: not relay._tasks)
        assert books is not None
        await books.close()
        begun_calls = Counter(invocation.method for invocation in handler.started)
        assert begun_calls["drip"] >= count
        ended = {"drip": handler.closed_streams, "wait": handler.cancelled}
        assert ended == dict(begun_calls), "nobody works for a connection that is gone"
