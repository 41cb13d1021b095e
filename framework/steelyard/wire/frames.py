"""The frames, and the packets that carry them.

A packet is one msgpack array of frames; a frame is a msgpack array whose first element is its kind. A carrier moves
packets and keeps their edges (a gRPC message is one packet; a byte stream puts a length before each). An array
around the run, and not frames end to end, because the whole packet is then decoded and checked by one call
into C, five times as fast as a loop over an unpacker in Python.

Nothing inside a frame is nested: attachments and load reports travel as bytes that hold a msgpack map of their own.
They are measured before they are decoded, so a hostile packet can make the decoder build nothing deeper than a frame
and no more frames than FRAMES_PER_PACKET, and a call without attachments pays nothing for them.

A frame may grow at its end (an old reader skips what it does not know); anything else is a new VERSION.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from steelyard.errors import SteelyardError

VERSION = 1
FRAMES_PER_PACKET = 16_384
# Everything of a frame that is not its body or attachments: kind, ids, numbers, lengths, and names or messages.
FRAME_SLACK_BYTES = 64 * 1024


class ProtocolError(SteelyardError):
    """The peer broke the protocol, or speaks another version of it; the connection is closed."""


class Frame(msgspec.Struct, array_like=True, gc=False):
    """Root of the frames. ``gc=False``: they hold only numbers, strings and bytes, so no cycle can go through one."""


class Hello(Frame, tag=0):
    """The first frame of each side: what it speaks, who it is and what it takes."""

    version: int
    identity: str
    message_bytes: int
    in_flight: int
    stream_window_bytes: int
    methods: int
    attachments: int
    attachment_bytes: int
    packings: str = ""  # how it can unpack bodies, names with commas between; a peer that says nothing cannot


class Method(Frame, tag=1):
    """From now on *ref* stands for this method on this connection: names cross the wire once."""

    ref: int
    service: str
    method: str


class Call(Frame, tag=2):
    """A call; ids grow strictly. ``deadline_ms`` is what remains (None: no deadline). ``more``: so many bytes of the
    body follow in PARTs. ``has_items``: the caller sends ITEMs and an END of its own. ``how``: the body is
    compressed (1: zstd, 2: lz4) and has ``raw`` bytes otherwise; only towards a peer whose HELLO names that."""

    id: int
    ref: int
    deadline_ms: int | None
    priority: int
    attachments: bytes
    body: bytes
    more: int = 0
    has_items: bool = False
    raw: int = 0
    how: int = 0


class Answer(Frame, tag=3):
    """REPLY. No body: a stream opens, and ITEMs and an END or a FAIL follow. ``in_flight``: the other calls that the
    provider has at this moment."""

    id: int
    body: bytes | None
    attachments: bytes
    in_flight: int
    more: int = 0
    raw: int = 0
    how: int = 0


class Fail(Frame, tag=4):
    """A call (or the rest of its stream) failed. ``has_started`` is False when it is certain that it did not run."""

    id: int
    status: int
    message: str
    details: bytes | None
    in_flight: int
    has_started: bool


class Cancel(Frame, tag=5):
    """The consumer no longer wants the call or its stream."""

    id: int


class Item(Frame, tag=6):
    """One item of a stream, in either direction."""

    id: int
    body: bytes
    more: int = 0
    raw: int = 0
    how: int = 0


class End(Frame, tag=7):
    id: int
    in_flight: int


class Credit(Frame, tag=8):
    """The reader of stream *id* has taken in *amount* bytes: so many more may be sent."""

    id: int
    amount: int


class Load(Frame, tag=9):
    """A load report, encoded by itself (see ``encode_load``)."""

    report: bytes


class Drain(Frame, tag=10):
    """From a provider: no new calls here. From a consumer: understood, no call of mine follows."""


class Ping(Frame, tag=11):
    pass


class Pong(Frame, tag=12):
    """From a provider also the answer to a probe, as of when it was written: the calls that it has, and the seconds
    that one takes at that number, the median of recent ones (0: none yet). None from a consumer, and from providers
    that do not tell."""

    in_flight: int | None = None
    latency_s: float | None = None


class Bye(Frame, tag=13):
    """The last frame before its sender closes the connection for cause."""

    reason: str


class Part(Frame, tag=14):
    """The next bytes of the body that the last CALL, REPLY or ITEM of *id* announced with ``more``. Parts of one id are
    in order; between them comes whatever else there is, so that a large body holds nobody up."""

    id: int
    body: memoryview  # valid only while the packet is acted upon


AnyFrame = (
    Hello | Method | Call | Answer | Fail | Cancel | Item | End | Credit | Load | Drain | Ping | Pong | Bye | Part
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[AnyFrame])
_names_decoder = msgspec.msgpack.Decoder(dict[str, str])
encode = _encoder.encode
_HEADER = struct.Struct(">BI")

PING = encode(Ping())
PONG = encode(Pong())
DRAIN = encode(Drain())


def packet(pieces: Sequence[bytes | memoryview], count: int | None = None) -> bytes:
    """Encoded frames as one packet; *count* says how many they are where some stand in more than one piece."""
    return b"".join((_HEADER.pack(0xDD, len(pieces) if count is None else count), *pieces))


# PART up to its body, with its numbers at their full width, so that it can be known by its bytes: an array of three,
# its kind, an id of 64 bits, bytes with a length of 32 bits.
_PART_HEAD = struct.Struct(">BBBQBI")
PART_HEAD_BYTES = _PART_HEAD.size
# The same as all that a packet holds, with the packet's length before it.
_LONE_PART = struct.Struct(">IBIBBBQBI")
LONE_PART_BYTES = _LONE_PART.size


def part_head(id_: int, size: int) -> bytes:
    """A PART with *size* bytes of body, without them."""
    return _PART_HEAD.pack(0x93, 14, 0xCF, id_, 0xC6, size)


def lone_part(data: memoryview, at: int) -> tuple[int, int] | None:
    """(id, bytes of body) of the PART that is all of the packet whose length stands at *at*; None for any other, and
    for a PART in other words. It looks at LONE_PART_BYTES."""
    size, array, count, frame, kind, number, id_, binary, body = _LONE_PART.unpack_from(data, at)
    if (array, count, frame, kind, number, binary) != (0xDD, 1, 0x93, 14, 0xCF, 0xC6):
        return None
    return (id_, body) if size == LONE_PART_BYTES - 4 + body else None


def parse(data: bytes | memoryview, *, peer_version: int | None = None) -> list[AnyFrame]:
    """The frames of a packet, checked by type. Raises ProtocolError, and nothing else, whatever the bytes are."""
    # A frame takes two bytes at least, so a shorter packet cannot hold too many.
    if len(data) > 2 * FRAMES_PER_PACKET and (count := _count(data)) > FRAMES_PER_PACKET:
        raise ProtocolError(f"a packet of {count} frames; the bound is {FRAMES_PER_PACKET}")
    try:
        return _decoder.decode(data)
    except Exception as error:
        raise ProtocolError(f"{_complaint(str(error))} ({versions(peer_version)})") from error


def versions(peer_version: int | None) -> str:
    peer = "has not said its version" if peer_version is None else f"speaks wire version {peer_version}"
    return f"this side speaks wire version {VERSION}, the peer {peer}"


def _count(data: bytes | memoryview) -> int:
    """How many frames the packet's header announces."""
    first = data[0]
    if first == 0xDD:
        return int.from_bytes(data[1:5], "big")
    if first == 0xDC:
        return int.from_bytes(data[1:3], "big")
    return first & 0x0F


_BAD_KIND = re.compile(r"Invalid value (-?\d+) - at `\$\[\d+\]\[0\]`")  # msgspec's words for a kind it does not know


def _complaint(text: str) -> str:
    unknown = _BAD_KIND.search(text)
    if unknown:
        return f"unknown frame kind {unknown.group(1)}"
    return f"undecodable packet: {text}"


def encode_names(names: Mapping[str, str]) -> bytes:
    """Attachments as bytes; empty bytes for none. Raises TypeError or ValueError for what is not text."""
    if not names:
        return b""
    for key, value in names.items():
        if type(key) is not str or type(value) is not str:
            raise TypeError(f"attachments are text: {key!r} is {value!r}")
    return encode(dict(names))


def decode_names(data: bytes, *, most: int) -> dict[str, str]:
    """Attachments from bytes that the caller has already found short enough. Raises ProtocolError."""
    return _limited(_names_decoder, data, most, "attachments")


class LoadBody(msgspec.Struct, array_like=True):
    """What is inside a LOAD frame: LoadReport's fields in its order. It grows at its end, as frames do."""

    utilization: dict[str, float]
    in_flight: int | None
    queue_depth: int | None
    age_s: float
    calls_per_s: float | None = None
    errors_per_s: float | None = None


_load_decoder = msgspec.msgpack.Decoder(LoadBody)
LOAD_BYTES = 16 * 1024


def encode_load(
    utilization: Mapping[str, float],
    in_flight: int | None,
    queue_depth: int | None,
    age_s: float,
    calls_per_s: float | None = None,
    errors_per_s: float | None = None,
) -> bytes:
    body = encode(LoadBody(dict(utilization), in_flight, queue_depth, age_s, calls_per_s, errors_per_s))
    if len(body) > LOAD_BYTES:
        raise ValueError(f"a load report of {len(body)} bytes; the bound is {LOAD_BYTES}")
    return body


def decode_load(data: bytes) -> LoadBody:
    if len(data) > LOAD_BYTES:
        raise ProtocolError(f"a load report of {len(data)} bytes; the bound is {LOAD_BYTES}")
    try:
        return _load_decoder.decode(data)
    except Exception as error:
        raise ProtocolError(f"undecodable load report: {error}") from error


_T = TypeVar("_T", bound=dict[str, Any])


def _limited(decoder: msgspec.msgpack.Decoder[_T], data: bytes, most: int, what: str) -> _T:
    try:
        value = decoder.decode(data)
    except Exception as error:
        raise ProtocolError(f"undecodable {what}: {error}") from error
    if len(value) > most:
        raise ProtocolError(f"{len(value)} {what}; the bound is {most}")
    return value
