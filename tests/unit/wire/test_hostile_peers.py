"""Peers that say nothing, little by little, that never read, that do not stop at DRAIN: what each costs is bounded, and
an honest caller is served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.pki import shared_pki
from support.wires import Handler, until
from support.wires import call as invocation
from unit.wire.hostile import (
    EXCHANGE,
    PEERS,
    PREFACE,
    SETTINGS,
    RawPeer,
    SocketPeer,
    call,
    data,
    hello,
    message,
    request,
)

from steelyard.errors import Unavailable
from steelyard.security import Tls
from steelyard.wire import Channel, LaneConnector, Listener, Streamed, WireLimits
from steelyard.wire.frames import Answer, Drain, Fail, encode, packet

CARRIERS = tuple(PEERS)


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def listening(
    handler: Handler | None = None, streamed: Streamed = Streamed.NOTHING, **limits: float
) -> AsyncIterator[Listener]:
    settings = WireLimits(**{"connect_timeout_s": 1.0, "heartbeat_interval_s": 0.5, **limits})  # type: ignore[arg-type]
    takes: Any = lambda *_: streamed  # noqa: E731
    async with Listener(handler or Handler(), limits=settings, lanes=("tcp",), takes_stream=takes) as listener:
        listener.identity = listener.address
        yield listener


@asynccontextmanager
async def honest(listener: Listener, carrier: str) -> AsyncIterator[Channel]:
    channel = Channel(listener.address, connector=LaneConnector(carrier, listener.lanes))
    try:
        assert (await channel(invocation(deadline_at=time.monotonic() + 30))).body == b"hi"
        yield channel
    finally:
        await channel.close()


_CROWD = """
import socket, sys, time
sockets = []
for number in range(int(sys.argv[2])):
    try:
        sockets.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60))
    except OSError:
        pass
print(len(sockets), flush=True)
sys.stdin.readline()
"""


async def served_soon(listener: Listener, carrier: str) -> None:
    """While the strangers still have their time, the newest comer is closed (``wire.strangers``), honest or not. It
    comes again, as every channel does, and must get in soon (a minute is for machines with other things to do)."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with honest(listener, carrier):
                    return
            except Unavailable:
                await asyncio.sleep(0.2)


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_a_crowd_that_says_nothing(carrier: str, count: int) -> None:
    async with listening(strangers=128) as listener:
        port = listener.lanes["tcp"] if carrier == "tcp" else listener.address.rpartition(":")[2]
        async with honest(listener, carrier):
            pass
        before_bytes, before_fds = rss_bytes(), fds()
        command = [sys.executable, "-c", _CROWD, str(port), str(count)]
        crowd = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert crowd.stdout is not None
            made = int(await asyncio.to_thread(crowd.stdout.readline))
            assert made >= count * 0.9
            await served_soon(listener, carrier)
            assert rss_bytes() - before_bytes < max(32 << 20, count * 30_000)
            if carrier == "tcp":
                await until(lambda: listener.connections == 0, within_s=60)
            await until(lambda: fds() < before_fds + 20, within_s=60)
        finally:
            crowd.kill()
            crowd.communicate()
        async with honest(listener, carrier):
            pass


async def test_a_hello_that_comes_byte_by_byte_is_not_waited_for() -> None:
    async with listening() as listener:
        peer = SocketPeer(reads=True)
        await peer.open(listener, says_hello=False)
        data = packet([encode(hello())])
        for byte in struct.pack(">I", len(data)) + data:
            if peer.has_ended.is_set():
                break
            with contextlib.suppress(OSError):
                peer.writer.write(bytes([byte]))
                await peer.writer.drain()
            await asyncio.sleep(0.1)
        async with asyncio.timeout(10):
            await peer.has_ended.wait()
        async with honest(listener, "tcp"):
            pass
        await peer.close()
        await until(lambda: listener.connections == 0)


async def test_more_connections_than_are_served_are_closed_on_the_grpc_port_too() -> None:
    async with listening(connections=3) as listener:
        peers = [RawPeer() for _ in range(6)]
        for peer in peers:
            await peer.open(listener)
        ends = [asyncio.ensure_future(peer.ended()) for peer in peers]
        await until(lambda: sum(end.done() for end in ends) == 3)
        for peer in peers:
            await peer.close()
        await asyncio.gather(*ends)
        await served_soon(listener, "grpc")


async def test_a_channel_that_is_closed_leaves_its_place_on_the_grpc_port_at_once() -> None:
    """And not when the garbage collector finds what is left of it."""
    async with listening(connections=3) as listener, asyncio.timeout(60):
        gc.collect()
        gc.disable()
        try:
            for _ in range(4):
                channels = [Channel(listener.address, connector=LaneConnector("grpc")) for _ in range(3)]
                for channel in channels:
                    await get_in(channel)
                for channel in channels:
                    await channel.close()
        finally:
            gc.enable()


async def get_in(channel: Channel) -> None:
    while True:
        try:
            assert (await channel(invocation(deadline_at=time.monotonic() + 30))).body == b"hi"
            return
        except Unavailable:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_secured", [False, True])
async def test_a_rush_of_connections_to_a_lane_has_a_rate(is_secured: bool) -> None:
    """Beyond it they are closed, with TLS before a handshake is begun; who comes a second later is let in."""
    limits = WireLimits(connects_per_s=5, connect_timeout_s=30.0)
    credentials = shared_pki().provider("127.0.0.1") if is_secured else None
    async with Listener(Handler(), limits=limits, lanes=("tcp",), credentials=credentials) as listener:
        began_s = time.monotonic()
        peers = [await asyncio.open_connection("127.0.0.1", int(listener.lanes["tcp"])) for _ in range(60)]
        took_s = time.monotonic() - began_s
        closed = [asyncio.ensure_future(ended(reader)) for reader, _ in peers]
        await until(lambda: sum(each.done() for each in closed) >= 60 - 6 - 5 * took_s)
        await asyncio.sleep(1.0)
        if not is_secured:
            assert sum(not each.done() for each in closed) <= 6 + 5 * took_s
        for _, writer in peers:
            writer.transport.abort()
        await asyncio.gather(*closed)
        tls = Tls(shared_pki().consumer()) if is_secured else None
        async with Channel(listener.address, connector=LaneConnector("tcp", listener.offer, tls)) as channel:
            assert (await channel(invocation(deadline_at=time.monotonic() + 30))).body == b"hi"


async def ended(reader: asyncio.StreamReader) -> None:
    """Without a word but our HELLO: what is let in hears one."""
    with contextlib.suppress(OSError):
        while await reader.read(65536):
            pass


@pytest.mark.parametrize("begun", [b"", PREFACE], ids=["preface", "settings"])
async def test_http2_that_comes_byte_by_byte_is_not_waited_for(begun: bytes) -> None:
    async with listening() as listener:
        peer = RawPeer()
        await peer.open(listener)
        await peer.send(begun)
        async with asyncio.timeout(30):
            assert await peer.drip((PREFACE + bytes(1000))[len(begun) :], 0.2)
        async with honest(listener, "grpc"):
            pass
        await peer.close()


@pytest.mark.parametrize("comes", ["nothing", "the length of a HELLO", "a HELLO byte by byte"])
async def test_a_stream_of_ours_without_a_hello_is_not_waited_for(comes: str) -> None:
    async with listening() as listener:
        peer = RawPeer()
        await peer.open(listener)
        before = listener.connections
        await peer.send(PREFACE, SETTINGS, request(1, EXCHANGE))
        await until(lambda: listener.connections == before + 1)
        words = message(packet([encode(hello())]))
        if comes == "the length of a HELLO":
            await peer.send(data(1, words[:5]))
        elif comes == "a HELLO byte by byte":
            for byte in words:
                await peer.send(data(1, bytes([byte])))
                await asyncio.sleep(0.05)
        await until(lambda: listener.connections == 0)
        async with honest(listener, "grpc"):
            pass
        await peer.close()


@pytest.mark.parametrize("streamed", list(Streamed))
async def test_plain_calls_whose_bodies_never_come(streamed: Streamed) -> None:
    """As many as one connection may have. They hold no place in the line of those that are served, and go with it."""
    handler = Handler()
    async with listening(handler, streamed, in_flight=8) as listener, honest(listener, "grpc") as channel:
        before_bytes = rss_bytes()
        peer = RawPeer()
        await peer.open(listener)
        reading = asyncio.ensure_future(peer.ended())
        await peer.send(PREFACE, SETTINGS)
        for stream in range(1, 2001, 2):
            await peer.send(request(stream, "/test.Echo/total"), data(stream, message(b"x" * 10, 10_000_000)))
        began_s = time.monotonic()
        while time.monotonic() < began_s + 1.0:
            assert (await channel(invocation(deadline_at=began_s + 30))).body == b"hi"
            await asyncio.sleep(0.02)
        assert rss_bytes() - before_bytes < 64 << 20
        if streamed is Streamed.ALL:  # these run, and read what their callers send
            await until(lambda: listener.in_flight <= 8)
        else:
            assert listener.in_flight == 0
            assert await listener.drain(20.0)
        await peer.close()
        await until(lambda: listener.in_flight == 0, within_s=60)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_plain_caller_that_never_reads_its_streams() -> None:
    """HTTP/2 gives it a window, and what is beyond waits in the handlers."""
    handler = Handler()
    async with listening(handler) as listener, honest(listener, "grpc") as channel:
        before_bytes = rss_bytes()
        peer = RawPeer()
        await peer.open(listener)
        await peer.send(PREFACE, SETTINGS)
        for stream in range(1, 401, 2):
            await peer.send(request(stream, "/test.Echo/flood"), data(stream, message(b""), is_last=True))
        await until(lambda: len(handler.started) > 200, within_s=60)
        items = -1
        while items != handler.sent_items:
            items = handler.sent_items
            assert (await channel(invocation(deadline_at=time.monotonic() + 30))).body == b"hi"
            await asyncio.sleep(1.0)
        assert rss_bytes() - before_bytes < 100 << 20
        await peer.close()
        await until(lambda: listener.in_flight == 0, within_s=60)
        assert handler.closed_streams == 200


async def test_a_packet_that_never_becomes_whole_is_silence() -> None:
    async with listening() as listener:
        peer = SocketPeer(reads=True)
        await peer.open(listener)
        await until(lambda: listener.connections == 1)
        peer.writer.write(struct.pack(">I", 10_000_000))
        async with asyncio.timeout(30):
            while not peer.has_ended.is_set():
                with contextlib.suppress(OSError):
                    peer.writer.write(b"\x00")
                    await peer.writer.drain()
                await asyncio.sleep(0.1)
        await peer.close()
        await until(lambda: listener.connections == 0)


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_one_that_never_reads(carrier: str) -> None:
    """It asks for 400 MB. Three heartbeats later it is out, for it does not answer them either; until then what waits
    for it is bounded, and others are served."""
    async with listening(queued_bytes=1 << 20, in_flight=64) as listener:
        async with honest(listener, carrier) as channel:
            before_bytes = rss_bytes()
            peer = PEERS[carrier](reads=False)
            await peer.open(listener)

            async def ask() -> None:
                with contextlib.suppress(Exception):
                    for call_id in range(1, 4001):
                        await peer.send(call(call_id, bytes(100_000)))

            asking = asyncio.ensure_future(ask())
            peak_bytes = 0
            for _ in range(20):
                began_s = time.monotonic()
                assert (await channel(invocation(deadline_at=began_s + 30))).body == b"hi"
                peak_bytes = max(peak_bytes, rss_bytes() - before_bytes)
                await asyncio.sleep(0.05)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await peer.close()
            assert peak_bytes < 100 << 20
        await until(lambda: listener.connections == 0 and listener.in_flight == 0, within_s=60)


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_one_that_sends_after_drain(carrier: str) -> None:
    async with listening() as listener:
        peer = PEERS[carrier](reads=True)
        await peer.open(listener)
        await peer.send(call(1))
        await until(lambda: bool(peer.kinds(Answer)))
        draining = asyncio.ensure_future(listener.drain(2.0))
        await until(lambda: bool(peer.kinds(Drain)))
        await peer.send(Drain())

        async def go_on() -> None:
            with contextlib.suppress(Exception):
                for call_id in range(2, 2000):
                    await peer.send(call(call_id))
                    await asyncio.sleep(0.002)

        going_on = asyncio.ensure_future(go_on())
        began_s = time.monotonic()
        await draining
        await listener.close()
        assert time.monotonic() - began_s < 20
        going_on.cancel()
        await asyncio.gather(going_on, return_exceptions=True)
        assert len(peer.kinds(Answer)) == 1
        assert all(not frame.has_started for frame in peer.kinds(Fail)), "what was refused has not run"
        await peer.close()
