"""What both sides of a connection share: HELLO, versions, heartbeat, BYE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from steelyard.codec import LARGE_BYTES, PACKINGS, packings, take_buffer, worth_packing
from steelyard.errors import InvalidArgument, Overloaded
from steelyard.model import Packed

from ..frames import (
    PING,
    PONG,
    VERSION,
    AnyFrame,
    Bye,
    Hello,
    Part,
    Ping,
    Pong,
    ProtocolError,
    encode,
    encode_names,
    parse,
    versions,
)
from ..limits import WireLimits
from .events import Event
from .outbox import Outbox

IDENTITY_CHARACTERS = 256
NAME_CHARACTERS = 1024
# What an item of a stream costs beside its body, so that a stream of empty items is bounded by its window too.
ITEM_COST_BYTES = 64


BODY_TYPES = (bytes, bytearray)
_MOST_RAW = 2**40


def sent(body: Packed) -> tuple[bytes | bytearray, tuple[int, int]]:
    """What is sent of a compressed body: it, and the end of its frame."""
    return body.data, (body.raw_bytes, PACKINGS.index(body.how) + 1)


def received(frame: Any) -> Any:
    """The body of a frame that was checked."""
    return Packed(PACKINGS[frame.how - 1], frame.raw, frame.body) if frame.how else frame.body


# A body is believed to be as long as announced up to this, and beyond it to be twice as long as what has come. Of so
# many bodies at a time: an honest peer sends a few, and another could announce thousands and send a byte of each.
_BELIEVED_BYTES = 2 * 1024 * 1024
_BELIEVED_BODIES = 32
# A part that announces more than this comes as a packet, whose buffer grows with what has come.
_PLACED_BYTES = 1024 * 1024


class Assembly:
    """A frame whose body arrives in parts. The buffer is made at its size, and grows with what arrives where that much
    is only a promise: appended to, it would be moved a dozen times for a body of 1 MiB, which took as long as all else
    that is done with one."""

    __slots__ = ("_view", "buffer", "frame", "have")

    def __init__(self, frame: Any) -> None:
        self.frame = frame
        self.buffer = bytearray()
        self._view = memoryview(self.buffer)  # a bytearray's own slices would copy each part first
        self.have = 0

    def room(self, size: int, believed_bytes: int = _BELIEVED_BYTES) -> memoryview:
        """Where the next *size* bytes of the body go."""
        start, stop = self.have, self.have + size
        if stop > len(self.buffer):
            most = min(self.frame.more, max(2 * stop, believed_bytes))
            buffer = take_buffer(most) if most >= LARGE_BYTES else bytearray(most)
            view = memoryview(buffer)
            view[:start] = self._view[:start]
            self.buffer, self._view = buffer, view
        return self._view[start:stop]

    def came(self, size: int) -> bool:
        """They have come. True: those were the last."""
        self.have += size
        return self.have == int(self.frame.more)


class Side:
    """One end of a connection. ``peer`` is the other end's HELLO once it came; ``parting`` the reason of its BYE."""

    def __init__(self, limits: WireLimits, identity: str, now_s: float) -> None:
        self.limits = limits
        self.outbox = Outbox(self._pong)
        self.peer: Hello | None = None
        self.parting: str | None = None
        self._heard_at = now_s
        self._pinged_at = now_s
        self._wake_at = now_s + limits.heartbeat_interval_s
        self._assemblies: dict[int, Assembly] = {}
        self._begun = 0  # of those: how many have a buffer
        self._placing: tuple[Assembly, int] | None = None
        # What both ends take; before the peer's HELLO, what this one takes.
        self._message_bytes = limits.message_bytes
        self._most_attachments = limits.attachments
        self._attachment_bytes = limits.attachment_bytes
        self._packings: frozenset[str] = frozenset()
        self.outbox.put(
            encode(
                Hello(
                    VERSION,
                    identity[:IDENTITY_CHARACTERS],
                    limits.message_bytes,
                    limits.in_flight,
                    limits.stream_window_bytes,
                    limits.methods,
                    limits.attachments,
                    limits.attachment_bytes,
                    ",".join(packings()),
                )
            )
        )

    def _hear(self, data: bytes | memoryview, now_s: float) -> list[AnyFrame]:
        """The frames of a packet; a HELLO, where one is due, is taken off. Raises ProtocolError."""
        self._heard_at = now_s
        if self.peer is not None:
            return parse(data, peer_version=self.peer.version)
        frames = parse(data)
        if not frames:
            return frames
        first = frames[0]
        if type(first) is not Hello:
            raise ProtocolError(f"the first frame must be HELLO, not {type(first).__name__.upper()} ({versions(None)})")
        self._meet(first)
        return frames[1:]

    def _meet(self, hello: Hello) -> None:
        if hello.version != VERSION:
            raise ProtocolError(f"wire versions differ: {versions(hello.version)} (it is {hello.identity[:80]!r})")
        if (
            min(hello.message_bytes, hello.in_flight, hello.stream_window_bytes, hello.methods) < 1
            or min(hello.attachments, hello.attachment_bytes) < 0
        ):
            raise ProtocolError(f"a HELLO with an impossible bound: {hello}"[:200])
        self.peer = hello
        self._message_bytes = min(self.limits.message_bytes, hello.message_bytes)
        self._most_attachments = min(self.limits.attachments, hello.attachments)
        self._attachment_bytes = min(self.limits.attachment_bytes, hello.attachment_bytes)
        self._packings = frozenset(hello.packings[:256].split(",")) & set(packings())

    def _common(self, frame: AnyFrame) -> None:
        """The frames that mean the same on both sides; anything else has no business here."""
        kind = type(frame)
        if kind is Ping:
            self.outbox.pong()
        elif kind is Pong:
            self.outbox.ponged(self._heard_at)
        elif isinstance(frame, Bye):
            self.parting = frame.reason[:1000]
        else:
            raise ProtocolError(f"unexpected frame {kind.__name__.upper()}")

    def _pong(self) -> bytes:
        """The answer to a PING."""
        return PONG

    def _assemble(self, frame: Any) -> None:
        """*frame* is complete when its parts are; its size was checked. ``_complete`` gets it then."""
        if frame.more < 0 or frame.body:
            raise ProtocolError(f"a body of {len(frame.body)} bytes announces {frame.more} more")
        if frame.id in self._assemblies:
            raise ProtocolError(f"two bodies of {frame.id} in parts at the same time")
        self._assemblies[frame.id] = Assembly(frame)

    def _part(self, part: Part) -> Any:
        """The frame that *part* has completed, with its body; None before the last part, and for a body that nobody
        wants."""
        assembly = self._assemblies.get(part.id)
        if assembly is None:
            return self._check_known(part.id)
        frame = assembly.frame
        due = frame.more - assembly.have
        if not 0 < len(part.body) <= due:
            raise ProtocolError(f"a part of {len(part.body)} bytes where {due} are due")
        size = len(part.body)
        self._room(assembly, size)[:] = part.body
        return self._whole(assembly) if assembly.came(size) else None

    def _room(self, assembly: Assembly, size: int) -> memoryview:
        if not assembly.buffer:
            self._begun += 1
        return assembly.room(size, _BELIEVED_BYTES if self._begun <= _BELIEVED_BODIES else 0)

    def _drop_assembly(self, id_: int) -> Assembly | None:
        assembly = self._assemblies.pop(id_, None)
        if assembly is not None and assembly.buffer:
            self._begun -= 1
        return assembly

    def _drop_assemblies(self) -> None:
        """The connection is over. A side is in a ring of references, and Python's collector may be long in coming."""
        self._assemblies.clear()
        self._begun, self._placing = 0, None

    def _whole(self, assembly: Assembly) -> Any:
        frame = assembly.frame
        self._drop_assembly(frame.id)
        frame.body, frame.more = assembly.buffer, 0
        return frame

    def place(self, id_: int, size: int) -> memoryview | None:
        """Where the *size* bytes of a part go that is about to come, so that they can be read straight into its body;
        ``placed`` when they have. None: it has to come as a packet."""
        assembly = self._assemblies.get(id_)
        if assembly is None or not 0 < size <= min(_PLACED_BYTES, assembly.frame.more - assembly.have):
            return None
        self._placing = (assembly, size)
        return self._room(assembly, size)

    def placed(self, id_: int, now_s: float) -> list[Event]:
        """What the part that was announced by ``place`` has completed."""
        self._heard_at = now_s
        events: list[Event] = []
        placing, self._placing = self._placing, None
        # Its call may be over by now, and its id another body's.
        if placing is not None and self._assemblies.get(id_) is placing[0] and placing[0].came(placing[1]):
            self._arrived(self._whole(placing[0]), events)
        return events

    def _arrived(self, frame: Any, events: list[Event]) -> None:
        """*frame* has its body."""
        raise NotImplementedError

    def may_pack(self, how: str, body: object) -> bool:
        """Whether *body* should be compressed with *how* before it is sent: both ends can, and it may pay."""
        return how in self._packings and worth_packing(body, self._message_bytes)

    def _check_packing(self, frame: Any) -> None:
        """Of a frame whose body is compressed: before anything is allocated for it."""
        if not 0 < frame.how <= len(PACKINGS) or PACKINGS[frame.how - 1] not in packings():
            raise ProtocolError(f"a body that is compressed in a way ({frame.how}) that this side has not offered")
        if not 0 < frame.raw <= _MOST_RAW:
            raise ProtocolError(f"a compressed body that announces {frame.raw} bytes")

    def _check_known(self, call_id: int) -> None:
        raise NotImplementedError

    def _names(self, attachments: Mapping[str, str]) -> bytes:
        """Attachments as bytes within what both ends take. Raises Overloaded or InvalidArgument."""
        if not attachments:
            return b""
        if len(attachments) > self._most_attachments:
            raise Overloaded(f"{len(attachments)} attachments; the bound is attachments={self._most_attachments}")
        try:
            data = encode_names(attachments)
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"attachments cannot be sent: {error}") from error
        if len(data) > self._attachment_bytes:
            raise Overloaded(
                f"{len(data)} bytes of attachments; the bound is attachment_bytes={self._attachment_bytes}"
            )
        return data

    def bye(self, reason: str) -> None:
        """Queues the last word before the connection is closed for cause."""
        self.outbox.put(encode(Bye(reason[:1000])))

    def beat(self, now_s: float) -> float | None:
        """To be called at the moment that the last ``beat`` returned (the first: one interval after the start).

        Asks a peer that was silent for an interval; returns when to call again, or None when the peer has been
        silent for three. A call that comes more than an interval late means that this process itself stood still
        (SIGSTOP, a blocked loop, a suspended machine): that silence is not held against the peer.
        """
        interval_s = self.limits.heartbeat_interval_s
        if now_s > self._wake_at + interval_s:
            self._heard_at = max(self._heard_at, now_s - interval_s)
        silent_s = now_s - self._heard_at
        if silent_s >= 3 * interval_s:
            return None
        if silent_s >= interval_s and now_s - self._pinged_at >= interval_s:
            self.outbox.put(PING)
            self._pinged_at = now_s
        asked_at = max(self._heard_at, self._pinged_at)
        self._wake_at = min(asked_at + interval_s, self._heard_at + 3 * interval_s)
        self._wake_at = max(self._wake_at, now_s + 0.001)
        return self._wake_at
