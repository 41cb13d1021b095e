"""The fast lane: packets over a plain byte stream, TCP or a Unix socket, straight from the event loop.

A length of four bytes (big-endian) stands before each packet. There is no task here and no queue of our own: what
arrives is acted upon inside the loop's read callback, and what is to be sent goes to the transport in the turn of the
loop in which it came up. Both are what gRPC's API does not offer, and most of what makes this carrier quicker.

One receive buffer serves all connections of a loop, because a packet is parsed before the next socket is read; an idle
connection thus owns none. A packet that came in part gets a buffer of its own, and the rest is received into that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from steelyard.model import Identity
from steelyard.security import Tls, identity_of_certificate, identity_of_process

from .carrier import CarrierLost
from .frames import LONE_PART_BYTES, ProtocolError, lone_part
from .limits import MIB, WireLimits
from .mux.outbox import Packet, Piece

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">IBI")
_PEER = struct.Struct("iII")  # Linux's ucred: process, user, group
_ARRAY_32 = 0xDD
_HEAD_BYTES = 5  # of the packet itself

READ_BYTES = 512 * 1024
# A rest below this is copied into a buffer of its own, and the shared one stays.
_SMALL_REST_BYTES = 4 * 1024
# What a peer may say before anybody listens.
_EARLY_BYTES = 256 * 1024
# What may wait in the transport before the outbox keeps the rest, where frames can still be overtaken by those of other
# calls. What the kernel takes beyond that is for ``mux.pace`` to bound; it has room for all that may be under way.
HIGH_WATER_BYTES = 256 * 1024
SOCKET_BUFFER_BYTES = 512 * 1024
# Parts from this size on are handed to the transport as they are and not copied together.
LARGE_BYTES = 16 * 1024
_SPARE_BUFFERS = 16
# A part that is smaller is not worth a read of its own.
_PLACED_FROM = 16 * 1024
# While parts come, so much is read to find the head of the next one. What is read beyond it has to be moved.
_HEAD_WINDOW_BYTES = 4096
# After the last words a connection that cannot even be closed (its peer does not read) is cut off.
_CLOSE_S = 0.5


class _Buffers:
    """What the connections of one loop read into. ``shared`` is for whoever reads next; a connection that is left with
    the beginning of a packet keeps the buffer it stands in until the rest is there, and the others get another one. So
    nothing is copied, and no fresh memory is filled with zeros first."""

    __slots__ = ("_spare", "shared")

    def __init__(self) -> None:
        self._spare: list[memoryview] = []
        self.shared = self.take()

    def take(self) -> memoryview:
        return self._spare.pop() if self._spare else memoryview(bytearray(READ_BYTES))

    def give_back(self, buffer: memoryview) -> None:
        if len(buffer) == READ_BYTES and len(self._spare) < _SPARE_BUFFERS:
            self._spare.append(buffer)


_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Buffers] = WeakKeyDictionary()


class Receiver(Protocol):
    """What a Link reports to; see ``connection.Connection``."""

    def packet(self, data: memoryview) -> None:
        """A packet; *data* is valid only during this call."""

    def place(self, id_: int, size: int) -> memoryview | None:
        """Where the body of a PART goes that is a packet of its own; None: nowhere, ``packet`` gets it as any other."""

    def placed(self, id_: int) -> None:
        """It is there."""

    def lost(self, error: Exception | None) -> None:
        """The stream has ended: in an orderly way (None), or with this error. Called once."""

    def writable(self) -> None:
        """``is_congested`` has become False."""


class Link(asyncio.BufferedProtocol):
    """One end of a byte stream. ``attach`` says who acts on it; ``write`` never waits: ask ``is_congested`` first."""

    def __init__(self, limits: WireLimits, on_open: Callable[[Link], None] | None = None) -> None:
        self._most_bytes = packet_bytes(limits)
        self._on_open = on_open
        self._receiver: Receiver | None = None
        self._transport: Any = None
        self._closed: asyncio.Future[None] | None = None
        self._buffers: _Buffers
        self._own: memoryview | None = None  # the buffer with the beginning of a packet, from _start to _stop
        self._start = self._stop = 0
        self._early = b""  # came before ``attach``
        self._spoken: asyncio.Future[None] | None = None
        self._is_over = False
        self._error: Exception | None = None
        self._place: memoryview | None = None  # what of a part is still to come, straight into its body
        self._place_id = 0
        self._is_bulk = False  # the last thing that came was a part
        self.is_congested = False

    def prepare(self) -> None:
        """To be called where bytes may come before ``connection_made``: after a TLS handshake they do."""
        self._buffers = _buffers_of(asyncio.get_running_loop())

    @property
    def caller(self) -> Identity | None:
        """Who is at the other end: by its certificate, or by the kernel's word on a Unix socket."""
        transport = self._transport
        secured = transport.get_extra_info("ssl_object")
        if secured is not None:
            return identity_of_certificate(secured.getpeercert())
        own = transport.get_extra_info("socket")
        if own is None or own.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
            return None
        try:
            facts = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        except OSError:  # gone already
            return None
        return identity_of_process(_PEER.unpack(facts)[1])

    def attach(self, receiver: Receiver) -> None:
        """From now on *receiver* gets the packets. What came before is not lost: reading begins here."""
        self._receiver = receiver
        early, self._early = self._early, b""
        if early and (taken := self._read(memoryview(early))) < len(early):
            self._keep(memoryview(early), taken, len(early))
        if self._is_over:
            receiver.lost(self._error)
        else:
            self._transport.resume_reading()

    async def first(self) -> bytes:
        """The first packet, before ``attach``, to which it is given again. Raises CarrierLost."""
        while (packet := self._first()) is None:
            if self._is_over:
                raise CarrierLost(f"the other side closed the connection without a word{_because(self._error)}")
            self._spoken = asyncio.get_running_loop().create_future()
            await self._spoken
        return packet

    def _first(self) -> bytes | None:
        early = self._early
        if len(early) < 4:
            return None
        size = _LENGTH.unpack_from(early)[0]
        if size > _EARLY_BYTES:
            raise CarrierLost(f"what answers there begins with {early[:16]!r}")
        return early[4 : 4 + size] if len(early) >= 4 + size else None

    def write(self, pieces: Sequence[Piece], count: int, size: int) -> None:
        """A packet of *count* frames, *size* bytes in all."""
        if self._transport.is_closing():
            return  # its loss is about to be told
        head = _HEAD.pack(size + _HEAD_BYTES, _ARRAY_32, count)
        if size < LARGE_BYTES:
            self._transport.write(b"".join((head, *pieces)))
        else:
            self._write_all((head, *pieces))

    def write_packets(self, packets: Sequence[Packet]) -> None:
        """Several at once."""
        if not packets or self._transport.is_closing():
            return
        frames: list[Piece] = []
        for pieces, count, size in packets:
            frames.append(_HEAD.pack(size + _HEAD_BYTES, _ARRAY_32, count))
            frames += pieces
        self._write_all(frames)

    def _write_all(self, pieces: Sequence[Piece]) -> None:
        transport = self._transport
        transport.writelines(_gathered(pieces))
        # asyncio's own writelines of Python 3.12 and 3.13 does not say when too much waits to be written; setting the
        # limits again makes it look.
        if not self.is_congested and transport.get_write_buffer_size() > HIGH_WATER_BYTES:
            self._limit(transport)

    @staticmethod
    def _limit(transport: asyncio.WriteTransport) -> None:
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES, low=HIGH_WATER_BYTES // 4)

    async def close(self) -> None:
        """Ends it, at once and harmlessly often: what is buffered may still leave for half a second."""
        if self._is_over or self._closed is None:
            return
        self._transport.close()
        try:
            await asyncio.wait((self._closed,), timeout=_CLOSE_S)
        finally:
            if not self._is_over:
                self._transport.abort()

    def abort(self) -> None:
        """Ends it without a word."""
        self._transport.abort()

    def pause(self) -> None:
        """Reads no more until ``resume``: the peer's writes then wait."""
        if not self._is_over:
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._is_over:
            self._transport.resume_reading()

    # Called by the transport.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        self._buffers = _buffers_of(loop)
        self._limit(transport)
        own = transport.get_extra_info("socket")
        if own is not None:
            with contextlib.suppress(OSError):
                own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
                own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
                if own.family != socket.AF_UNIX:
                    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._on_open is not None:
            transport.pause_reading()  # until it is attached
            self._on_open(self)

    def get_buffer(self, _: int) -> memoryview:
        if self._place is not None:
            return self._place
        if self._own is not None:
            return self._own[self._stop :]
        return self._buffers.shared[:_HEAD_WINDOW_BYTES] if self._is_bulk else self._buffers.shared

    def buffer_updated(self, count: int) -> None:
        if self._place is not None:
            self._fill(self._place, count)
            return
        own = self._own
        if own is None:
            shared, self._is_bulk = self._buffers.shared, False
            if self._receiver is None:
                self._hear_early(shared[:count])
            elif (taken := self._read(shared[:count])) < count:
                self._keep(shared, taken, count)
            return
        self._stop += count
        self._start += self._read(own[self._start : self._stop])
        if self._start == self._stop:
            self._own = None
            self._buffers.give_back(own)
        else:
            self._make_room(own)

    def _fill(self, place: memoryview, count: int) -> None:
        """So much of a part has come where it belongs."""
        if count < len(place):
            self._place = place[count:]
            return
        self._place = None
        assert self._receiver is not None
        self._receiver.placed(self._place_id)

    def _keep(self, shared: memoryview, start: int, stop: int) -> None:
        """The beginning of a packet is left."""
        if stop - start < _SMALL_REST_BYTES or shared is not self._buffers.shared:
            rest = stop - start
            self._own = self._buffers.take() if rest <= READ_BYTES else memoryview(bytearray(rest))
            self._own[:rest] = shared[start:stop]
            start, stop = 0, stop - start
        else:
            self._own = shared
            self._buffers.shared = self._buffers.take()
        self._start, self._stop = start, stop
        self._make_room(self._own)

    def _make_room(self, own: memoryview) -> None:
        """The rest of the packet must fit behind its beginning: which moves to the front, or into a larger buffer. One
        that grows believes a promised length for no more than twice what came."""
        have = self._stop - self._start
        need = 4 if have < 4 else 4 + _LENGTH.unpack_from(own, self._start)[0]
        if self._start + need <= len(own):
            return
        if need <= len(own):
            own[:have] = bytes(own[self._start : self._stop])
        elif self._stop == len(own) or have * 2 > len(own):
            grown = memoryview(bytearray(min(need, max(2 * have, 2 * len(own)))))
            grown[:have] = own[self._start : self._stop]
            self._buffers.give_back(own)
            self._own = grown
        else:
            return
        self._start, self._stop = 0, have

    def _hear_early(self, data: memoryview) -> None:
        """Also a transport that was told to pause may have one read under way."""
        self._early += data
        if len(self._early) > _EARLY_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._speak()

    def _speak(self) -> None:
        if self._spoken is not None and not self._spoken.done():
            self._spoken.set_result(None)

    def _read(self, data: memoryview) -> int:
        """Every whole packet in *data*; returns how much was taken."""
        try:
            return self._scan(data)
        except ProtocolError as error:
            self._transport.pause_reading()
            self._end(error)
            return len(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)
        lost = None
        if error is not None:
            lost = CarrierLost(told(error) if isinstance(error, ssl.SSLError) else f"{type(error).__name__}: {error}")
            lost.__cause__ = error
        self._end(lost)

    def pause_writing(self) -> None:
        self.is_congested = True

    def resume_writing(self) -> None:
        self.is_congested = False
        if self._receiver is not None:
            self._receiver.writable()

    def _scan(self, data: memoryview) -> int:
        at, end = 0, len(data)
        receiver = self._receiver
        assert receiver is not None
        while end - at >= 4:
            size = _LENGTH.unpack_from(data, at)[0]
            if size > self._most_bytes:
                raise ProtocolError(f"a packet of {size} bytes; the bound is {self._most_bytes}")
            stop = at + 4 + size
            if size >= _PLACED_FROM and end - at >= LONE_PART_BYTES and (part := lone_part(data, at)) is not None:
                place = receiver.place(*part)
                if place is not None:
                    at += LONE_PART_BYTES
                    have = min(end - at, len(place))
                    place[:have] = data[at : at + have]
                    at += have
                    self._is_bulk = True
                    if have < len(place):
                        self._place_id, self._place = part[0], place[have:]
                        return end
                    receiver.placed(part[0])
                    if self._is_over:
                        return end
                    continue
            if stop > end:
                break
            receiver.packet(data[at + 4 : stop])
            if self._is_over:
                return end
            at = stop
        return at

    def _end(self, error: Exception | None) -> None:
        if not self._is_over:
            self._is_over = not isinstance(error, ProtocolError)  # after one of those the last words are still to come
            self._error = error
            self._speak()
            if self._receiver is not None:
                self._receiver.lost(error)


def _buffers_of(loop: asyncio.AbstractEventLoop) -> _Buffers:
    buffers = _buffers.get(loop)
    if buffers is None:
        buffers = _buffers[loop] = _Buffers()
    return buffers


def _gathered(frames: Sequence[Piece]) -> list[Piece]:
    """Small neighbours joined, large ones as they are."""
    pieces: list[Piece] = []
    small: list[Piece] = []
    for frame in frames:
        if len(frame) < LARGE_BYTES:
            small.append(frame)
            continue
        if small:
            pieces.append(b"".join(small))
            small = []
        pieces.append(frame)
    if small:
        pieces.append(b"".join(small))
    return pieces


def packet_bytes(limits: WireLimits) -> int:
    """The largest packet that a peer within its bounds can send: a frame with a body and details, and small ones."""
    return min(2 * limits.message_bytes + 2 * MIB, 2**31 - 1)


async def connect_tcp(host: str, port: int, limits: WireLimits, tls: Tls | None = None) -> Link:
    """Raises CarrierLost."""
    loop = asyncio.get_running_loop()
    try:
        _, link = await loop.create_connection(lambda: Link(limits), host, port, **_secured(tls, host, limits))
    except OSError as error:
        raise CarrierLost(f"tcp {host}:{port}: {told(error)}") from error
    return link


async def connect_uds(path: str, limits: WireLimits, tls: Tls | None = None, host: str = "") -> Link:
    """*host*: whose certificate it must be, where there is TLS. Raises CarrierLost."""
    loop = asyncio.get_running_loop()
    try:
        _, link = await loop.create_unix_connection(lambda: Link(limits), path, **_secured(tls, host, limits))
    except OSError as error:
        raise CarrierLost(f"uds {os.path.basename(path)}: {told(error)}") from error
    return link


def _secured(tls: Tls | None, host: str, limits: WireLimits) -> dict[str, Any]:
    if tls is None:
        return {}
    return {
        "ssl": tls.client_context(),
        "server_hostname": tls.server_name or host,
        "ssl_handshake_timeout": limits.connect_timeout_s,
    }


def told(error: BaseException) -> str:
    """What went wrong while connecting; of a failed handshake, in words that name the side at fault."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS could be agreed on: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return str(error) or type(error).__name__


def _because(error: Exception | None) -> str:
    """TLS 1.3 tells a caller that its certificate is not taken only after it believes to be in."""
    cause = error.__cause__ if isinstance(error, CarrierLost) else None
    return f" ({told(cause)})" if isinstance(cause, ssl.SSLError) else ""
