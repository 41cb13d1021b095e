"""What waits to be written on one connection.

There is no timer and no minimum: the writer takes whatever is here when it wakes, so a lone call leaves at once and a
crowd shares a packet. A large body is not a frame but a run of PARTs, cut when they are taken: first go the small
frames that wait, and then a few parts of the body whose turn it is. So a small call never waits behind more than one
packet, however much of large bodies is queued, and no large body for more than a turn of each other one. What is
under way of them is paced, too (``pace``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ..frames import FRAMES_PER_PACKET, PART_HEAD_BYTES, PING, PONG, packet, part_head
from .pace import CALM_PARTS, Pace

PACKET_BYTES = 128 * 1024
# What a crowd has put in one turn of the loop leaves in quanta, so that the other end begins with the first calls while
# this one still makes the last. In one packet, both ends would wait for one another in turn, and a core of two would be
# idle. 64 callers, one core for each end, calls/s over tcp with 4, 8, 16, 32 and no quanta: 45,200, 54,200, 59,500,
# 48,800 and 27,800; over gRPC, whose messages cost more, with 16, 24, 32 and none: 39,100, 42,000, 37,200 and 22,400.
BURST_FRAMES = 16
MESSAGE_FRAMES = 24
# Of a larger crowd a part is enough to keep the other end busy, and each message has a price of its own.
_MESSAGE_PART = 4
_MOST_FRAMES = FRAMES_PER_PACKET - 64
# A body above this is sent in parts of this size. Smaller parts cost more than they give: below 32 KiB the work for a
# part shows, and above 128 KiB a small call feels the copying of one.
PART_BYTES = 64 * 1024
# While nothing small is about, of one of these, over a byte stream and in messages: each has its price, and nobody to
# wait for it. 1 MiB there and back over gRPC, whose messages cost most, takes 930 us of CPU at either end in messages
# of two small parts, 740 in parts of 256 KiB and 660 in these; whole, it has both ends wait for one another.
CALM_PART_BYTES = 256 * 1024
CALM_MESSAGE_BYTES = 512 * 1024
# So much of a body goes before the next one has its turn. Part by part, bodies that are sent together would also be
# complete together: both ends would wait in turn for the other's four bodies to come in or to be made.
TURN_BYTES = 1024 * 1024

Piece = bytes | memoryview
Packet = tuple[list[Piece], int, int]
"""Frames in pieces, how many they are, and how many bytes."""


class Bodies:
    """What waits of one call or stream, once a large body of it does: that body, and whatever must not overtake it.
    ``call_id``: these are parts of this CALL, which has to leave first (0: they are not)."""

    __slots__ = ("call_id", "offset", "waiting")

    def __init__(self, call_id: int = 0) -> None:
        self.call_id = call_id
        self.waiting: deque[tuple[bool, Piece]] = deque()  # (whether to be sent in parts, it)
        self.offset = 0

    @property
    def size(self) -> int:
        return sum(len(piece) for _, piece in self.waiting) - self.offset


class Outbox:
    """Frames in the order in which they are sent.

    ``queued_bytes`` is what they take; ``handed_id`` is the highest id of a call that ``take`` has handed out: a call
    above it has certainly not run. ``is_waiting``: there is something to take. ``is_burst``: a crowd's calls have
    gathered. (Where large bodies wait, their parts are what paces the writer.) ``is_paced``: PONGs are read, so that
    large bodies can wait for them.
    """

    __slots__ = (
        "_bodies",
        "_frames",
        "_has_small",
        "_heads",
        "_is_pong_due",
        "_last_id",
        "_latest_load",
        "_pace",
        "_pong",
        "_turn_bytes",
        "_withdrawn",
        "handed_id",
        "is_burst",
        "is_paced",
        "is_waiting",
        "queued_bytes",
    )

    def __init__(self, pong: Callable[[], bytes] = lambda: PONG) -> None:
        self._pong = pong
        self._frames: deque[tuple[int, bytes]] = deque()
        self._bodies: dict[int, Bodies] = {}
        self._withdrawn: set[int] = set()
        self._last_id = 0
        self._heads = 0  # of the frames that wait: those of large bodies
        self._has_small = False
        self._pace = Pace()
        self._turn_bytes = 0  # what has gone of the body whose turn it is
        self._is_pong_due = False
        self._latest_load: bytes | None = None
        self.handed_id = 0
        self.queued_bytes = 0
        self.is_waiting = self.is_burst = False
        self.is_paced = False  # until somebody reads

    def put(self, frame: bytes, call_id: int = 0) -> None:
        """Queues a frame; *call_id* is the id of the CALL that it is, and 0 for every other kind."""
        frames = self._frames
        frames.append((call_id, frame))
        self.queued_bytes += len(frame)
        self.is_waiting = True
        if call_id:
            self._last_id = call_id
        if len(frames) >= BURST_FRAMES:
            self.is_burst = not self._bodies

    @property
    def has_bodies(self) -> bool:
        """Large bodies wait: see ``take_apart``."""
        return bool(self._bodies)

    def put_in_order(self, id_: int, frame: bytes, body: Piece | None = None) -> None:
        """Queues a frame that must not overtake what waits of call *id_*, and then *body* in parts."""
        bodies = self._bodies.get(id_)
        if bodies is None:
            if body is None:
                # Under minus its id, so that it goes with its call when that is withdrawn.
                self._frames.append((-id_, frame))
                self.queued_bytes += len(frame)
                self.is_waiting = True
                return
            bodies = self._bodies[id_] = Bodies()
            self.is_burst = False
        bodies.waiting.append((False, frame))
        self.queued_bytes += len(frame)
        if body is not None:
            bodies.waiting.append((True, memoryview(body)))
            self.queued_bytes += len(body)
        self.is_waiting = True

    def put_parts(self, call_id: int, body: Piece) -> None:
        """Queues the body of the CALL that was just put, in parts."""
        bodies = self._bodies[call_id] = Bodies(call_id)
        self.is_burst = False
        bodies.waiting.append((True, memoryview(body)))
        self.queued_bytes += len(body)
        self._heads += 1

    def drop(self, id_: int) -> None:
        """Nobody wants what waits of call *id_* any more."""
        bodies = self._bodies.pop(id_, None) if self._bodies else None
        if bodies is not None:
            self.queued_bytes -= bodies.size

    def pong(self) -> None:
        """Any number of PINGs since the last packet gets one PONG, made when it is taken: a flood of them queues
        nothing, and what a PONG tells is never old."""
        self._is_pong_due = self.is_waiting = True

    def load(self, frame: bytes) -> None:
        """Only the newest report is worth sending: a slow reader gathers none."""
        self._latest_load = frame
        self.is_waiting = True

    def withdraw(self, call_id: int) -> bool:
        """Takes back a CALL that has not been handed out yet. False: it is gone."""
        self.drop(call_id)
        if call_id <= self.handed_id:
            return False
        self._withdrawn.add(call_id)
        return True

    def has_left(self, call_id: int) -> bool:
        """Whether all of a CALL is handed out: while something of it is here, it has certainly not run."""
        if call_id > self.handed_id:
            return False
        bodies = self._bodies.get(call_id) if self._bodies else None
        return bodies is None or bodies.call_id == 0

    def take(self, now_s: float = 0.0) -> bytes | None:
        """The next packet, or None when nothing waits: the first quantum of what a crowd has put."""
        waiting = len(self._frames)
        most = max(MESSAGE_FRAMES, waiting // _MESSAGE_PART)
        pieces, count, _ = self.take_pieces(min(most, _MOST_FRAMES) if waiting > most else _MOST_FRAMES, now_s)
        return packet(pieces, count) if count else None

    def take_pieces(self, most: int = _MOST_FRAMES, now_s: float = 0.0) -> tuple[list[Piece], int, int]:
        """The next packet's frames in pieces, how many frames they are, and how many bytes. *most*: so many of those
        that ``put`` has queued."""
        if most < _MOST_FRAMES or self.queued_bytes > PACKET_BYTES:
            pieces, size = self._take_some(min(most, _MOST_FRAMES))
        else:
            pieces, size = self._take_all()
        count = len(pieces)
        if count > self._heads:
            self._has_small = True
        self._heads = 0
        count, size = self._take_signs(pieces, count, size)
        if self._bodies:
            parts, size = self._take_parts(pieces, size, now_s)
            count += parts
        self.is_waiting = bool(self._frames or (self._bodies and self._has_room))
        self.is_burst = False
        return pieces, count, size

    def take_apart(self, now_s: float) -> list[Packet]:
        """The next packets for a byte stream, while large bodies wait: small frames together, and each part by itself,
        so that its receiver can read it straight into the body. None at all: not before a PONG."""
        pieces, size = self._take_some()
        pace = self._pace
        has_small = self._has_small or len(pieces) > self._heads
        pace.look(now_s, has_small=has_small, calm_bytes=CALM_PARTS * CALM_PART_BYTES)
        self._has_small, self._heads = False, 0
        count, size = self._take_signs(pieces, len(pieces), size)
        packets: list[Packet] = [(pieces, count, size)] if count else []
        most = CALM_PART_BYTES if pace.is_calm else PART_BYTES
        taken = 0
        while taken < most and self._has_room and (id_ := self._in_turn()) is not None:
            is_body = self._bodies[id_].waiting[0][0]
            if is_body or not count:
                packets.append(([], 0, 0))
            pieces, count, size = packets[-1]
            took = self._take_piece(id_, pieces, most)
            packets[-1] = (pieces, count + 1, size + took)
            count = 0 if is_body else 1  # nothing joins a part
            taken += took
            pace.sent(took)
        if self.is_paced and pace.asks(now_s):
            packets.append(([PING], 1, len(PING)))
        self.is_waiting = bool(self._frames or (self._bodies and self._has_room))
        self.is_burst = False
        return packets

    @property
    def _has_room(self) -> bool:
        return self._pace.has_room or not self.is_paced

    def ponged(self, now_s: float) -> None:
        """A PONG has come."""
        self._pace.answered(now_s)
        if self._bodies:
            self.is_waiting = True

    def _take_signs(self, pieces: list[Piece], count: int, size: int) -> tuple[int, int]:
        """What there is one of at a time."""
        if self._is_pong_due:
            self._is_pong_due = False
            pong = self._pong()
            pieces.append(pong)
            count, size = count + 1, size + len(pong)
        if self._latest_load is not None:
            pieces.append(self._latest_load)
            count, size = count + 1, size + len(self._latest_load)
            self._latest_load = None
        return count, size

    def clear(self) -> None:
        """Drops everything; what was not handed out never will be."""
        self._last_id = self.handed_id
        self._frames.clear()
        self._bodies.clear()
        self._withdrawn.clear()
        self._is_pong_due = self.is_waiting = self.is_burst = False
        self._latest_load, self.queued_bytes = None, 0

    def _take_all(self) -> tuple[list[Piece], int]:
        queue = self._frames
        if self._bodies or self._withdrawn or len(queue) >= FRAMES_PER_PACKET - 2:
            return self._take_some()
        pieces: list[Piece] = [frame for _, frame in queue]
        queue.clear()
        size, self.queued_bytes = self.queued_bytes, 0
        self.handed_id = self._last_id
        return pieces, size

    def _take_some(self, most: int = _MOST_FRAMES) -> tuple[list[Piece], int]:
        queue, total = self._frames, 0
        pieces: list[Piece] = []
        while queue and len(pieces) < most:
            call_id, frame = queue[0]
            if pieces and total + len(frame) > PACKET_BYTES:
                break
            queue.popleft()
            self.queued_bytes -= len(frame)
            if call_id > 0:
                self.handed_id = call_id
            if call_id and abs(call_id) in self._withdrawn:
                continue
            total += len(frame)
            pieces.append(frame)
        if not queue:  # nothing of them is left behind
            self._withdrawn.clear()
        return pieces, total

    def _take_parts(self, pieces: list[Piece], size: int, now_s: float) -> tuple[int, int]:
        """Parts of the body whose turn it is, until the packet is full; at least one, or a flood of small frames would
        keep large ones waiting for ever."""
        count, pace = 0, self._pace
        pace.look(now_s, has_small=self._has_small, calm_bytes=CALM_PARTS * CALM_MESSAGE_BYTES)
        self._has_small = False
        # What is left of one body goes with the next.
        part, most = (CALM_MESSAGE_BYTES, CALM_MESSAGE_BYTES // 2) if pace.is_calm else (PART_BYTES, PACKET_BYTES)
        while self._has_room and (id_ := self._in_turn()) is not None:
            count += 1
            took = self._take_piece(id_, pieces, part)
            pace.sent(took)
            size += took
            if size >= most:
                break
        if self.is_paced and pace.asks(now_s):
            pieces.append(PING)
            count, size = count + 1, size + len(PING)
        return count, size

    def _in_turn(self) -> int | None:
        """The first whose CALL has gone already."""
        for id_ in self._bodies:
            if not self.handed_id < id_ <= self._last_id:
                return id_
        return None

    def _take_piece(self, id_: int, pieces: list[Piece], part_bytes: int) -> int:
        """One part, or one frame that stood behind a body."""
        bodies = self._bodies[id_]
        is_body, piece = bodies.waiting[0]
        if is_body:
            part = piece[bodies.offset : bodies.offset + part_bytes]
            bodies.offset += len(part)
            if bodies.offset >= len(piece):
                bodies.waiting.popleft()
                bodies.offset = bodies.call_id = 0  # the call itself is out; what follows are its items
            pieces.append(part_head(id_, len(part)))
            size = PART_HEAD_BYTES + len(part)
        else:
            bodies.waiting.popleft()
            part, size = piece, len(piece)
        pieces.append(part)
        self.queued_bytes -= len(part)
        self._turn_bytes += size
        if not bodies.waiting:
            del self._bodies[id_]
            self._turn_bytes = 0
        elif self._turn_bytes >= TURN_BYTES and bodies.size > TURN_BYTES // 4:
            self._bodies[id_] = self._bodies.pop(id_)  # behind the others
            self._turn_bytes = 0
        return size
