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
from functools import partial
from pathlib import Path

import pytest
from support.nursery import Child, nursery
from support.pki import from_now, shared_pki
from support.wires import Handler, call
from support.wires import until as until_within

from steelyard.errors import Unavailable
from steelyard.security import Credentials, Tls
from steelyard.wire import Channel, LaneConnector, Listener, WireLimits

CARRIERS = ["tcp", "grpc"]

QUICK = WireLimits(heartbeat_interval_s=0.2, connect_timeout_s=5.0, backoff_base_s=0.05, backoff_max_s=0.2)
DEADLINE_S = 60.0  # far more than the three heartbeats of 0.2 s, for machines that have other things to do
until = partial(until_within, within_s=DEADLINE_S)

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


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("count", [30, slow(1000)])
async def test_the_provider_is_killed(carrier: str, count: int) -> None:
    async with nursery() as births:
        books: Books | None = None
        for number in range(count):
            child = await births.child()
            channel = Channel(child.address, limits=QUICK, connector=LaneConnector(carrier, child.lanes))

            async def kill(child: Child = child) -> None:
                child.send(signal.SIGKILL)

            await in_mid_stream(channel, kill)
            await channel.close()
            if number == 2:  # what is kept for good is there by now
                books = Books()
        assert books is not None
        await books.close()


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("count", [12, slow(1000)])
async def test_the_provider_is_stopped_and_goes_on(carrier: str, count: int) -> None:
    """Several at a time, since each time three heartbeats have to pass."""
    at_once = min(8, count // 2)
    async with nursery() as births:
        children = [await births.child() for _ in range(at_once)]
        channels = [
            Channel(child.address, limits=QUICK, connector=LaneConnector(carrier, child.lanes)) for child in children
        ]
        await asyncio.gather(*map(stopped_and_gone_on, children, channels))
        books = Books()
        for _ in range(count // at_once):
            await asyncio.gather(*map(stopped_and_gone_on, children, channels))
        await books.close()
        for channel in channels:
            await channel.close()


async def stopped_and_gone_on(child: Child, channel: Channel) -> None:
    async def stop() -> None:
        child.send(signal.SIGSTOP)

    await in_mid_stream(channel, stop)
    child.send(signal.SIGCONT)
    assert await again(channel) == b"hi"


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
async def relayed(carrier: str) -> AsyncIterator[tuple[Listener, Handler, Relay]]:
    handler = Handler()
    async with Listener(handler, limits=QUICK, lanes=("tcp",)) as listener:
        listener.identity = listener.address
        relay = Relay(int(listener.lanes["tcp"]) if carrier == "tcp" else listener.port)
        server = await asyncio.start_server(relay._enter, "127.0.0.1", 0)
        relay.port = server.sockets[0].getsockname()[1]
        yield listener, handler, relay
        await relay.reset()
        server.close()
        for task in relay._tasks:
            task.cancel()
        await asyncio.gather(*relay._tasks, return_exceptions=True)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("ending", ["reset", "half_close_down", "half_close_up"])
@pytest.mark.parametrize("count", [30, slow(1000)])
async def test_the_network_ends_it(carrier: str, ending: str, count: int) -> None:
    async with relayed(carrier) as (listener, handler, relay):
        books: Books | None = None
        for number in range(count):
            if carrier == "tcp":
                lane = LaneConnector("tcp", {"tcp": str(relay.port)})
                channel = Channel(listener.address, limits=QUICK, connector=lane)
            else:
                channel = Channel(f"127.0.0.1:{relay.port}", limits=QUICK, connector=LaneConnector("grpc"))
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


# Certificates.


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("count", [24, slow(1000)])
async def test_the_certificate_expires(carrier: str, count: int, tmp_path: Path) -> None:
    """Of both ends, a crowd's at a time: streams go on, and who connects then is told what the matter is."""
    pki, crowd = shared_pki(), min(25, count // 2)
    handler, limits = Handler(), WireLimits(connect_timeout_s=5.0)
    paths = pki.write(tmp_path, "127.0.0.1")
    credentials = Credentials(**{name: str(path) for name, path in paths.items()}, require_client_certificate=True)
    async with Listener(handler, limits=limits, lanes=("tcp",), credentials=credentials) as listener:
        listener.identity = listener.address

        def channel() -> Channel:
            connector = LaneConnector(carrier, listener.offer, Tls(credentials))
            return Channel(listener.address, limits=limits, connector=connector)

        books: Books | None = None
        for round_ in range(count // crowd):
            expires_at = from_now(3.0)
            pki.write(tmp_path, "127.0.0.1", not_after=expires_at)
            channels = [channel() for _ in range(crowd)]
            deadline_at = time.monotonic() + 60
            streams = await asyncio.gather(*(begun(each, deadline_at) for each in channels))
            while from_now(-0.5) <= expires_at:
                await asyncio.sleep(0.05)
            late = [channel() for _ in range(crowd)]
            refusals = await asyncio.gather(*(refused(each, deadline_at) for each in late))
            assert all("certificate" in each.lower() and "expired" in each.lower() for each in refusals), refusals
            numbers = [[int(await anext(stream)) for _ in range(2)] for stream in streams]
            assert all(one + 1 == other for one, other in numbers), "the stream has never stopped"
            for stream in streams:
                await stream.aclose()  # type: ignore[attr-defined]
            for each in (*channels, *late):
                await each.close()
            await until(lambda: listener.connections == 0 and listener.in_flight == 0)
            assert time.monotonic() < deadline_at
            if round_ == 0:
                books = Books()
        assert books is not None
        await books.close()
        assert handler.closed_streams == len(handler.started)


async def refused(channel: Channel, deadline_at: float) -> str:
    """What a caller is told who cannot connect any more."""
    with pytest.raises(Unavailable) as caught:
        await channel(call(deadline_at=deadline_at))
    assert not caught.value.may_have_run
    return caught.value.message
