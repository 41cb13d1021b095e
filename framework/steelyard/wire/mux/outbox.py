"""What waits to be written on one connection.

There is no timer and no minimum: the writer takes whatever is here when it wakes, so a lone call leaves at once and a
crowd shares a packet. Large packets are cut at PACKET_BYTES, so that a small call never waits behind more than that
and one frame.
"""

from __future__ import annotations

from collections import deque

from ..frames import FRAMES_PER_PACKET, PONG, packet

PACKET_BYTES = 256 * 1024


class Outbox:
    """Frames in the order in which they are sent.

    ``queued_bytes`` is what they take; ``handed_id`` is the highest id of a call that ``take`` has handed out: a call
    above it has certainly not run. ``is_waiting``: there is something to take.
    """

    __slots__ = (
        "_frames",
        "_is_pong_due",
        "_last_id",
        "_latest_load",
        "_withdrawn",
        "handed_id",
        "is_waiting",
        "queued_bytes",
    )

    def __init__(self) -> None:
        self._frames: deque[tuple[int, bytes]] = deque()
        self._withdrawn: set[int] = set()
        self._last_id = 0
        self._is_pong_due = False
        self._latest_load: bytes | None = None
        self.handed_id = 0
        self.queued_bytes = 0
        self.is_waiting = False

    def put(self, frame: bytes, call_id: int = 0) -> None:
        """Queues a frame; *call_id* is the id of the CALL that it is, and 0 for every other kind."""
        self._frames.append((call_id, frame))
        self.queued_bytes += len(frame)
        self.is_waiting = True
        if call_id:
            self._last_id = call_id

    def pong(self) -> None:
        """Any number of PINGs since the last packet gets one PONG: a flood of them queues nothing."""
        self._is_pong_due = self.is_waiting = True

    def load(self, frame: bytes) -> None:
        """Only the newest report is worth sending: a slow reader gathers none."""
        self._latest_load = frame
        self.is_waiting = True

    def withdraw(self, call_id: int) -> bool:
        """Takes back a CALL that has not been handed out yet. False: it is gone."""
        if call_id <= self.handed_id:
            return False
        self._withdrawn.add(call_id)
        return True

    def take(self) -> bytes | None:
        """The next packet, or None when nothing waits."""
        frames = self._take_all() if self.queued_bytes <= PACKET_BYTES else self._take_some()
        if self._is_pong_due:
            self._is_pong_due = False
            frames.append(PONG)
        if self._latest_load is not None:
            frames.append(self._latest_load)
            self._latest_load = None
        self.is_waiting = bool(self._frames)
        return packet(frames) if frames else None

    def clear(self) -> None:
        """Drops everything; what was not handed out never will be."""
        self._last_id = self.handed_id
        self._frames.clear()
        self._withdrawn.clear()
        self._is_pong_due = self.is_waiting = False
        self._latest_load, self.queued_bytes = None, 0

    def _take_all(self) -> list[bytes]:
        queue = self._frames
        if self._withdrawn or len(queue) >= FRAMES_PER_PACKET - 2:
            return self._take_some()
        frames = [frame for _, frame in queue]
        queue.clear()
        self.queued_bytes = 0
        self.handed_id = self._last_id
        return frames

    def _take_some(self) -> list[bytes]:
        queue, total = self._frames, 0
        frames: list[bytes] = []
        while queue and len(frames) < FRAMES_PER_PACKET - 2:
            call_id, frame = queue[0]
            if frames and total + len(frame) > PACKET_BYTES:
                break
            queue.popleft()
            self.queued_bytes -= len(frame)
            if call_id:
                self.handed_id = call_id
                if call_id in self._withdrawn:
                    self._withdrawn.discard(call_id)
                    continue
            total += len(frame)
            frames.append(frame)
        return frames
