"""Real conversations of two sides, and what a hostile peer could make of their packets.

A mutator of our own and not a fuzzer's: at twenty thousand messages a second it makes a million in a minute, and it
knows the protocol, so that most of what it makes is nearly right, which is where the mistakes are.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from steelyard.errors import RpcError
from steelyard.model import Invocation, Reply
from steelyard.wire import WireLimits
from steelyard.wire.frames import AnyFrame, Hello, ProtocolError, encode, packet, parse
from steelyard.wire.mux import (
    Called,
    Cancelled,
    ConsumerSide,
    ItemArrived,
    Opened,
    ProviderSide,
    Received,
)

LIMITS = WireLimits(in_flight=8, queued_bytes=256 * 1024, message_bytes=200_000, stream_window_bytes=1024, methods=4)
Packets = list[list[AnyFrame]]
_NUMBERS = (0, 1, 2, -1, 7, 63, 64, 255, 1024, 65_536, 200_001, 2**31, 2**40, 2**40 + 1, 2**62, 2**63 - 1, -(2**63))


def call(method: str, body: bytes, deadline_at: float = math.inf, **facts: Any) -> Invocation:
    return Invocation("test.Echo", method, (), body, deadline_at, **facts)


class Calling:
    """A consumer's driver that does a little of everything."""

    def __init__(self) -> None:
        self.side = ConsumerSide(LIMITS, now_s=0.0, node="node:1")
        self.open: list[Any] = []

    def begin(self, dice: random.Random) -> None:
        """The calls of one conversation, before the peer has said anything."""
        for number in range(dice.randint(1, 6)):
            method = dice.choice(("echo", "stream", "upload", "large", "fifth"))
            size = dice.choice((0, 5, 300, 70_000 if method == "large" else 40))
            facts: dict[str, Any] = {"stream": object()} if method == "upload" else {}
            with suppress(RpcError):
                opened = self.side.call(
                    number,
                    call(method, bytes(size), dice.choice((2.5, math.inf)), attachments={"a": "b"}, **facts),
                    0.0,
                )
                self.open.append(opened)
                if method == "upload":
                    for _ in range(dice.randint(0, 4)):
                        if self.side.may_send(opened):
                            self.side.item(opened, b"up" * dice.randint(1, 20))
                    if dice.random() < 0.7:
                        self.side.end(opened)
        if self.open and dice.random() < 0.2:
            self.side.cancel(self.open.pop())

    def heard(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, ItemArrived):
                self.side.consumed(event.call, event.body)


class Serving:
    """A provider's driver that answers by the method's name."""

    def __init__(self) -> None:
        self.side = ProviderSide(LIMITS, now_s=0.0, identity="node:1")
        self.running: set[int] = set()

    def served(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Called):
                self.running.add(event.id)
                if event.invocation.method == "stream":
                    self._stream(event.id)
                elif not event.has_items:
                    self.side.reply(event.id, Reply(body=event.invocation.body))
                    self._finish(event.id)
            elif isinstance(event, Received):
                self.side.consumed(event.id, event.body)
            elif isinstance(event, Cancelled):
                self._finish(event.id)

    def _stream(self, call_id: int) -> None:
        self.side.open_stream(call_id, Reply())
        for number in range(5):
            if self.side.is_live(call_id) and self.side.may_send(call_id):
                with suppress(RpcError):  # a peer whose HELLO takes a byte at most
                    self.side.item(call_id, b"item %d" % number)
        self.side.end(call_id)
        self._finish(call_id)

    def _finish(self, call_id: int) -> None:
        if call_id in self.running:
            self.running.discard(call_id)
            self.side.finished(call_id)


def conversations(count: int, dice: random.Random) -> tuple[list[Packets], list[Packets]]:
    """What consumers said, and what providers said, in *count* honest conversations: packets of frames."""
    up: list[Packets] = []
    down: list[Packets] = []
    for _ in range(count):
        calling, serving = Calling(), Serving()
        calling.begin(dice)
        upward: Packets = []
        downward: Packets = []
        for turn in range(8):
            while (data := calling.side.outbox.take()) is not None:
                upward.append(owned(parse(data)))
                serving.served(serving.side.receive(data, float(turn)))
            if turn == 4 and dice.random() < 0.3:
                serving.side.drain()
            if turn == 5:
                serving.side.beat(1e3)
                calling.side.beat(1e3)
            while (data := serving.side.outbox.take()) is not None:
                downward.append(owned(parse(data)))
                calling.heard(calling.side.receive(data, float(turn)))
        up.append(upward)
        down.append(downward)
    return up, down


def owned(frames: list[AnyFrame]) -> list[AnyFrame]:
    """Frames whose bodies are their own and not views into a packet."""
    for frame in frames:
        for name in frame.__struct_fields__:
            if isinstance(getattr(frame, name), memoryview):
                setattr(frame, name, bytes(getattr(frame, name)))
    return frames


def _bombs() -> tuple[bytes, ...]:
    nan = b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"
    frames = [b"\x91" * 3000, b"\x81\x01" * 3000, b"\xdf\x00\x00\x03\xe8" + (nan + b"\x01") * 1000, b"\x80" * 3000]
    huge = [marker + b"\xff\xff\xff\xff" for marker in (b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9")]
    inside = [b"\x93\x06\x01" + each for each in (*frames, *huge)]  # as an ITEM's body
    return (*frames, *huge, *inside, *(b"\xdd" + struct.pack(">I", 1) + each for each in (*frames, *huge, *inside)))


BOMBS = _bombs()


def mutated(packets: Packets, dice: random.Random, others: Sequence[Packets]) -> bytes:
    """One packet that is nearly one of *packets*."""
    frames = list(dice.choice(packets))
    kind = dice.random()
    if kind < 0.08:
        return dice.choice(BOMBS)
    if kind < 0.55:
        frames = _other_frames(frames, dice, others)
        return packet([encode(frame) for frame in frames])
    data = bytearray(packet([encode(frame) for frame in frames]))
    for _ in range(dice.randint(1, 4)):
        _other_bytes(data, dice)
    return bytes(data)


def _other_frames(frames: list[AnyFrame], dice: random.Random, others: Sequence[Packets]) -> list[AnyFrame]:
    how = dice.randrange(6)
    if how == 0:
        dice.shuffle(frames)
    elif how == 1:
        frames += frames[: dice.randint(1, 3)]
    elif how == 2 and frames:
        del frames[dice.randrange(len(frames))]
    elif how == 3:
        frames.insert(0, dice.choice(dice.choice(dice.choice(others))))  # from elsewhere, the other direction too
    else:
        frames = [_other_frame(frame, dice) if dice.random() < 0.5 else frame for frame in frames]
    return frames


def _other_frame(frame: AnyFrame, dice: random.Random) -> AnyFrame:
    names = frame.__struct_fields__
    if not names:
        return frame
    name = dice.choice(names)
    value = getattr(frame, name)
    if isinstance(value, bool):
        value = not value
    elif isinstance(value, int):
        value = dice.choice((*_NUMBERS, value + 1, value - 1, 2 * value))
        value = max(-(2**63), min(2**64 - 1, value))
    elif isinstance(value, bytes):
        value = dice.choice((b"", value + b"x", value[:-1], value * 2, dice.choice(BOMBS)))
    elif isinstance(value, str):
        value = dice.choice(("", value + "x", "x" * 5000, "\x00"))
    elif value is None:
        value = dice.choice((None, 0, 1, b""))
    return msgspec.structs.replace(frame, **{name: value})


def _other_bytes(data: bytearray, dice: random.Random) -> None:
    if not data:
        return
    at = dice.randrange(len(data))
    how = dice.randrange(6)
    if how == 0:
        data[at] = dice.randrange(256)
    elif how == 1:
        data[at] ^= 1 << dice.randrange(8)
    elif how == 2:
        del data[at:]
    elif how == 3:
        data[at:at] = dice.randbytes(dice.randint(1, 8))
    elif how == 4:
        del data[at : at + dice.randint(1, 8)]
    else:
        data += data[at : at + 2000]


def attack(make: Callable[[], tuple[Any, Callable[[Sequence[Any]], None]]], story: Packets, others: Sequence[Packets],
           dice: random.Random) -> int:  # fmt: skip
    """A fresh side hears part of an honest conversation and then mutated messages until it has had enough. How many
    those were; only ProtocolError may end it, and what it keeps is within its bounds."""
    side, drive = make()
    sent = 0
    try:
        if dice.random() < 0.9:  # else the HELLO is missing
            for number in range(dice.randint(1, len(story))):
                drive(side.receive(packet([encode(frame) for frame in story[number]]), 0.0))
                side.outbox.take()
        for number in range(12):
            sent += 1
            drive(side.receive(mutated(story, dice, others), float(number)))
            side.expire(float(number))
            if dice.random() < 0.8:  # else the peer does not read
                side.outbox.take()
    except ProtocolError:
        pass
    held = sum(len(each.buffer) for each in side._assemblies.values())
    most = LIMITS.queued_bytes + 16 * LIMITS.message_bytes
    if side.outbox.queued_bytes > most or held > most:
        raise AssertionError(f"{side.outbox.queued_bytes} bytes wait and {held} are kept after {sent} messages")
    return sent


def as_provider() -> tuple[ProviderSide, Callable[[Sequence[Any]], None]]:
    serving = Serving()
    return serving.side, serving.served


def as_consumer(dice: random.Random) -> tuple[ConsumerSide, Callable[[Sequence[Any]], None]]:
    """With the same calls open as in a conversation of the same dice."""
    calling = Calling()
    calling.begin(dice)
    calling.side.outbox.take()
    return calling.side, calling.heard


__all__ = ["BOMBS", "Hello", "Opened", "as_consumer", "as_provider", "attack", "conversations", "mutated"]
