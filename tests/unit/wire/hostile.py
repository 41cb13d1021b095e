"""Peers that keep to no protocol, over a real socket or a real gRPC stream: they send what they like, and need not
read."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Any

import grpc.aio

from steelyard.wire import Listener, WireLimits
from steelyard.wire.frames import AnyFrame, Call, Hello, Method, encode, packet, parse

EXCHANGE = "/steelyard.v1.Wire/Exchange"


def hello() -> Hello:
    own = WireLimits()
    return Hello(1, "hostile", own.message_bytes, 4096, own.stream_window_bytes, own.methods, 64, 16 * 1024)


def call(call_id: int, body: bytes = b"hi", **facts: Any) -> Call:
    return Call(call_id, 1, facts.pop("deadline_ms", None), 1, b"", body, **facts)


class Peer:
    """``send`` frames, ``heard`` what came. ``reads`` False: nothing is ever read."""

    def __init__(self, *, reads: bool) -> None:
        self.reads = reads
        self.heard: list[AnyFrame] = []
        self.has_ended = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def open(self, listener: Listener, *, says_hello: bool = True) -> None:
        await self._connect(listener)
        if self.reads:
            self._reading = asyncio.ensure_future(self._read())
        if says_hello:
            await self.send(hello(), Method(1, "test.Echo", "echo"))

    async def send(self, *frames: AnyFrame) -> None:
        await self.send_bytes(packet([encode(frame) for frame in frames]))

    async def send_bytes(self, data: bytes) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _connect(self, listener: Listener) -> None:
        raise NotImplementedError

    async def _packet(self) -> bytes | None:
        raise NotImplementedError

    async def _read(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, grpc.aio.AioRpcError):
            while (data := await self._packet()) is not None:
                self.heard += parse(data)
        self.has_ended.set()

    def kinds(self, kind: type[Any]) -> list[Any]:
        return [frame for frame in self.heard if type(frame) is kind]


class SocketPeer(Peer):
    async def _connect(self, listener: Listener) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", int(listener.lanes["tcp"]), limit=4096)

    async def send_bytes(self, data: bytes) -> None:
        self.writer.write(struct.pack(">I", len(data)) + data)
        await self.writer.drain()

    async def _packet(self) -> bytes | None:
        size = struct.unpack(">I", await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(size)

    async def close(self) -> None:
        await super().close()
        self.writer.transport.abort()


class GrpcPeer(Peer):
    async def _connect(self, listener: Listener) -> None:
        self._channel = grpc.aio.insecure_channel(listener.address)
        self._call = self._channel.stream_stream(EXCHANGE)()

    async def send_bytes(self, data: bytes) -> None:
        await self._call.write(data)

    async def _packet(self) -> bytes | None:
        data = await self._call.read()
        return None if data is grpc.aio.EOF else data

    async def close(self) -> None:
        await super().close()
        self._call.cancel()
        await self._channel.close()


PEERS: dict[str, type[Peer]] = {"tcp": SocketPeer, "grpc": GrpcPeer}
