"""Thousands of deadlines under one timer.

Nearly every call ends before its deadline, so what must be cheap is to set one and to take it back. A timer of the
event loop for each call costs about 1.5 us for that; here a deadline is put in a slot of 1 ms and taken out of it,
and the owner arms one timer for the earliest slot. A slot that became empty is left in the heap and skipped when its
time comes, and the heap is rebuilt when such slots prevail, so that long deadlines do not gather either.
"""

from __future__ import annotations

import heapq

TICKS_PER_S = 1000
_TOLERATED_EMPTY = 1024


class Deadlines:
    """A set of (moment, key). Moments are seconds on the caller's clock; one fires up to 1 ms late and never early."""

    __slots__ = ("_heap", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, set[int]] = {}
        self._heap: list[int] = []

    def add(self, at_s: float, key: int) -> int:
        """Returns the tick by which ``discard`` finds the key again."""
        tick = int(at_s * TICKS_PER_S) + 1
        slot = self._slots.get(tick)
        if slot is None:
            self._slots[tick] = {key}
            heapq.heappush(self._heap, tick)
            if len(self._heap) > 2 * len(self._slots) + _TOLERATED_EMPTY:
                self._heap = sorted(self._slots)
        else:
            slot.add(key)
        return tick

    def discard(self, tick: int, key: int) -> None:
        slot = self._slots.get(tick)
        if slot is not None:
            slot.discard(key)
            if not slot:
                del self._slots[tick]

    def expired(self, now_s: float) -> list[int]:
        """Takes out the keys whose moment has passed, earliest first."""
        keys: list[int] = []
        now = int(now_s * TICKS_PER_S)
        while self._heap and self._heap[0] <= now:
            keys.extend(sorted(self._slots.pop(heapq.heappop(self._heap), ())))
        return keys

    def next_at(self) -> float | None:
        """When ``expired`` will have something next; None while there is nothing."""
        while self._heap and self._heap[0] not in self._slots:
            heapq.heappop(self._heap)
        return self._heap[0] / TICKS_PER_S if self._heap else None

    def __len__(self) -> int:
        return sum(len(slot) for slot in self._slots.values())
