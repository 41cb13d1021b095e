"""Real conversations of two sides, and what a hostile peer could make of their packets.

A mutator of our own and not a fuzzer's: at twenty thousand messages a second it makes a million in a minute, and it
knows the protocol, so that most of what it makes is nearly right, which is where the mistakes are.
"""

from __future__ import annotations

import math
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from steelyard.errors import RpcError
from steelyard.model import Invocation, Packed, Reply
from steelyard.wire import WireLimits
from steelyard.wire.frames import (
    Answer,
    AnyFrame,
    Call,
    Cancel,
    End,
    Hello,
    Item,
    Part,
    Ping,
    Pong,
    ProtocolError,
    encode,
    packet,
    parse,
    part_head,
)
from steelyard.wire.mux import (
    Answered,
    Called,
    Cancelled,
    ConsumerSide,
    Ended,
    Failed,
    InFlight,
    ItemArrived,
    Opened,
    ProviderSide,
    Received,
)
from steelyard.wire.socket_carrier import Link

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
        self._endings: Counter[int] = Counter()

    def begin(self, dice: random.Random) -> None:
        """The calls of one conversation, before the peer has said anything."""
        for number in range(dice.randint(1, 6)):
            method = dice.choice(("echo", "stream", "upload", "large", "fifth"))
            size = dice.choice((0, 5, 300, 70_000 if method == "large" else 40))
            facts: dict[str, Any] = {"stream": object()} if method == "upload" else {}
            body: Any = bytes(size)
            if size > 1 and dice.random() < 0.2:
                body = Packed(dice.choice(("zstd", "lz4")), 2 * size, body)
            with suppress(RpcError):
                opened = self.side.call(
                    number, call(method, body, dice.choice((2.5, math.inf)), attachments={"a": "b"}, **facts), 0.0
                )
                self.open.append(opened)
                if method == "upload":
                    for _ in range(dice.randint(0, 4)):
                        if self.side.may_send(opened):
                            self.side.item(opened, b"up" * dice.choice((1, 20, 40_000)))
                    if dice.random() < 0.7:
                        self.side.end(opened)
        if self.open and dice.random() < 0.2:
            self.side.cancel(self.open.pop())

    def hear(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, ItemArrived):
                self.side.consumed(event.call, event.body)
            elif isinstance(event, Answered | Ended | Failed):
                self._endings[event.call.id] += 1

    def check(self) -> None:
        assert set(self.side._calls) >= set(self.side._assemblies), "parts of calls that are over are kept"

    def close(self) -> None:
        """Every call has ended once, or ends now."""
        self.hear(self.side.lost("gone"))
        assert self._endings == Counter(each.id for each in self.open), "a caller waits for ever, or hears twice"
        assert not self.side._assemblies


class Serving:
    """A provider's driver that answers by the method's name."""

    def __init__(self) -> None:
        self.total = InFlight()
        self.side = ProviderSide(LIMITS, now_s=0.0, identity="node:1", in_flight=self.total)
        self.running: set[int] = set()

    def hear(self, events: Sequence[Any]) -> None:
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

    def check(self) -> None:
        side = self.side
        assert {*self.running, *side._live} >= set(side._assemblies), "parts of calls that are over are kept"
        assert side.running == len(self.running) + len(side._deadlines_at) <= LIMITS.in_flight
        arriving = sum(each.frame.more for each in side._assemblies.values() if type(each.frame) is Call)
        assert side._assembling_bytes == arriving <= LIMITS.queued_bytes

    def close(self) -> None:
        """The connection has ended, and then the handlers."""
        self.side.abandon()
        assert not self.side._assemblies
        for call_id in tuple(self.running):
            self._finish(call_id)
        left = (self.side.running, self.total.count, self.side._raw_bytes, self.side._assembling_bytes)
        assert left == (0, 0, 0, 0), f"{left} are left of a connection that is over"

    def _stream(self, call_id: int) -> None:
        self.side.open_stream(call_id, Reply())
        for number in range(5):
            if self.side.is_live(call_id) and self.side.may_send(call_id):
                with suppress(RpcError):  # a peer whose HELLO takes a byte at most
                    self.side.item(call_id, b"item %d" % number + bytes(70_000 if number == 3 else 0))
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
        calling.side.outbox.is_paced = serving.side.outbox.is_paced = dice.random() < 0.5
        for turn in range(8):
            for data in leaving(calling.side, float(turn)):
                upward.append(owned(parse(data)))
                serving.hear(serving.side.receive(data, float(turn)))
            if turn == 4 and dice.random() < 0.3:
                serving.side.drain()
            if turn == 5:
                serving.side.beat(1e3)
                calling.side.beat(1e3)
            for data in leaving(serving.side, float(turn)):
                downward.append(owned(parse(data)))
                calling.hear(calling.side.receive(data, float(turn)))
        up.append(upward)
        down.append(downward)
    return up, down


def leaving(side: ConsumerSide | ProviderSide, now_s: float) -> Iterator[bytes]:
    """What waits, packet by packet, as a byte stream's driver takes it."""
    while True:
        if side.outbox.has_bodies:
            packets = side.outbox.take_apart(now_s)
            yield from (packet(pieces, count) for pieces, count, _ in packets)
            if not packets:
                return
        elif (data := side.outbox.take(now_s)) is not None:
            yield data
        else:
            return


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


def wire(frames: Sequence[AnyFrame]) -> bytes:
    """A packet as its sender writes it: a PART that is alone, with its numbers at full width."""
    if len(frames) == 1 and isinstance(part := frames[0], Part) and 0 <= part.id < 2**64:
        return packet([part_head(part.id, len(part.body)), part.body], 1)
    return packet([encode(frame) for frame in frames])


def mutated(packets: Packets, dice: random.Random, others: Sequence[Packets]) -> list[bytes]:
    """Packets that are nearly some of *packets*."""
    frames = list(dice.choice(packets))
    kind = dice.random()
    if kind < 0.08:
        return [dice.choice(BOMBS)]
    if kind < 0.3:
        return _bodies(dice)
    if kind < 0.65:
        return [wire(_other_frames(frames, dice, others))]
    data = bytearray(wire(frames))
    for _ in range(dice.randint(1, 4)):
        _other_bytes(data, dice)
    return [bytes(data)]


def _bodies(dice: random.Random) -> list[bytes]:
    """A body in parts that has something wrong: too much, too little, twice, after its end, for nobody, between others,
    compressed; and signs of life that nobody has asked for."""
    id_ = dice.choice((1, 2, 3, 4, 5, 0, 2**40, dice.randint(100, 10**6)))
    size = dice.choice((1, 100, 20_000, 40_000, 70_000, 200_000))
    more = max(-(2**63), size + dice.choice((0, 0, 0, 0, 1, -1, -size, 10**6, 2**40)))
    head = dice.choice((
        Call(id_, dice.choice((1, 1, 1, 2, 9)), dice.choice((None, 1, 2500)), 1,
             dice.choice((b"", b"", b"\x81\xa1a\xa1b", b"\xff\xff", BOMBS[2])), b"", more, dice.random() < 0.3),
        Answer(id_, b"", b"", 0, more),
        Item(id_, b"", more),
    ))  # fmt: skip
    if dice.random() < 0.2:
        head.raw = dice.choice((1, 2 * size, 200_001, 2**41))
        head.how = dice.choice((1, 2, 3))
    run: list[AnyFrame] = [head]
    while size > 0:
        some = min(size, dice.choice((1, 16_384, 20_000, 65_536, 200_000)))
        run.append(Part(id_, memoryview(bytes(some))))
        size -= some
    for _ in range(dice.randint(0, 2)):
        at = dice.randrange(len(run) + 1)
        how = dice.randrange(8)
        if how == 0:
            run.insert(at, dice.choice(run))
        elif how == 1 and len(run) > 1:
            del run[at % len(run)]
        elif how == 2:
            dice.shuffle(run)
        else:
            strange = (Pong(), Pong(2**40, math.nan), Ping(), End(id_, 0), Cancel(id_), Part(id_, memoryview(b"")))
            run.insert(at, dice.choice(strange))
    if dice.random() < 0.2:
        return [wire(run)]
    return [wire([frame]) for frame in run]


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
    elif isinstance(value, bytes | memoryview):
        value = bytes(value)
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


Driver = Calling | Serving


class Ear:
    """What a side hears of a byte stream, through a Link: whole packets, and parts straight into their bodies."""

    def __init__(self, driver: Driver) -> None:
        self._side, self._drive = driver.side, driver.hear
        self.now_s = 0.0
        self.error: Exception | None = None

    def packet(self, data: memoryview) -> None:
        if self.error is None:
            self._hear(lambda: self._side.receive(data, self.now_s))

    def place(self, id_: int, size: int) -> memoryview | None:
        return None if self.error is not None else self._side.place(id_, size)

    def placed(self, id_: int) -> None:
        if self.error is None:
            self._hear(lambda: self._side.placed(id_, self.now_s))

    def _hear(self, what: Callable[[], Sequence[Any]]) -> None:
        try:
            self._drive(what())
        except ProtocolError as error:
            self.error = error

    def lost(self, error: Exception | None) -> None:
        self.error = error

    def writable(self) -> None: ...


class Wire:
    """Data on its way to a side: packet by packet, or cut anywhere (*dice*), within a running loop."""

    def __init__(self, driver: Driver, dice: random.Random | None) -> None:
        self._side, self._drive, self._dice = driver.side, driver.hear, dice
        self._ear = Ear(driver)
        if dice is not None:
            self._link = Link(LIMITS)
            self._link.connection_made(NoTransport())
            self._link.attach(self._ear)

    def carry(self, data: bytes, now_s: float) -> None:
        """Raises ProtocolError."""
        if self._dice is None:
            self._drive(self._side.receive(data, now_s))
            return
        self._ear.now_s = now_s
        size = len(data) if self._dice.random() < 0.99 else self._dice.choice((0, 3, len(data) - 1, 2**31, 2**32 - 1))
        data = struct.pack(">I", max(0, size)) + data
        while data:
            window = self._link.get_buffer(-1)
            count = min(len(window), len(data), self._dice.choice((1, 4, 25, 30, 5000, 10**6, 10**6, 10**6)))
            window[:count] = data[:count]
            self._link.buffer_updated(count)
            data = data[count:]
            if self._ear.error is not None:
                raise self._ear.error


class NoTransport:
    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, **_: int) -> None: ...

    def get_extra_info(self, _: str) -> None: ...


def attack(make: Callable[[], Driver], story: Packets, others: Sequence[Packets], dice: random.Random) -> int:
    """A fresh side hears part of an honest conversation and then mutated messages until it has had enough. How many
    those were; only ProtocolError may end it, what it keeps is within its bounds and of calls that are there, and when
    it is over nothing is left and nobody waits."""
    driver = make()
    side: Any = driver.side
    side.outbox.is_paced = dice.random() < 0.5
    wire_ = Wire(driver, dice if dice.random() < 0.5 else None)
    sent = 0
    try:
        if dice.random() < 0.9:  # else the HELLO is missing
            for number in range(dice.randint(1, len(story))):
                wire_.carry(wire(story[number]), 0.0)
                side.outbox.take()
        for number in range(12):
            for data in mutated(story, dice, others):
                sent += 1
                wire_.carry(data, float(number))
            expired = side.expire(float(number))
            if isinstance(driver, Calling):
                driver.hear(expired)
            if dice.random() < 0.8:  # else the peer does not read
                for _ in zip(range(4), leaving(side, float(number)), strict=False):
                    pass
            _check(driver, sent)
    except ProtocolError:
        pass
    _check(driver, sent)
    driver.close()
    return sent


def _check(driver: Driver, sent: int) -> None:
    side = driver.side
    held = sum(len(each.buffer) for each in side._assemblies.values())
    most = LIMITS.queued_bytes + 16 * LIMITS.message_bytes
    if side.outbox.queued_bytes > most or held > most:
        raise AssertionError(f"{side.outbox.queued_bytes} bytes wait and {held} are kept after {sent} messages")
    assert side._begun == sum(bool(each.buffer) for each in side._assemblies.values())
    driver.check()


def as_consumer(dice: random.Random) -> Calling:
    """With the same calls open as in a conversation of the same dice."""
    calling = Calling()
    calling.begin(dice)
    calling.side.outbox.take()
    return calling


__all__ = ["BOMBS", "Hello", "Opened", "Serving", "as_consumer", "attack", "conversations", "mutated"]
