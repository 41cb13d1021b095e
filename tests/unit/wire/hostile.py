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


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4


def http2(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


SETTINGS = http2(_SETTINGS, 0, 0, b"")


def request(stream: int, path: str) -> bytes:
    """The headers of a gRPC call on *stream* (odd, growing), whose body is still to come."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "hostile",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    return http2(_HEADERS, 0x4, stream, block)


def data(stream: int, content: bytes, *, is_last: bool = False) -> bytes:
    return http2(_DATA, int(is_last), stream, content)


def message(content: bytes, announced: int | None = None) -> bytes:
    """A gRPC message, *announced* bytes long by its own words."""
    return struct.pack(">BI", 0, len(content) if announced is None else announced) + content


class RawPeer:
    """Bytes of HTTP/2 by hand, to the gRPC port. ``ended`` when the server has closed."""

    async def open(self, listener: Listener) -> None:
        port = int(listener.address.rpartition(":")[2])
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
        await self.writer.drain()

    async def drip(self, content: bytes, pause_s: float) -> bool:
        """Byte by byte, until the server has had enough (True)."""
        ended = asyncio.ensure_future(self.ended())
        try:
            for byte in content:
                with contextlib.suppress(OSError):
                    await self.send(bytes([byte]))
                await asyncio.wait((ended,), timeout=pause_s)
                if ended.done():
                    return True
            return False
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def ended(self) -> None:
        with contextlib.suppress(OSError):
            while await self.reader.read(65536):
                pass

    async def close(self) -> None:
        self.writer.transport.abort()
