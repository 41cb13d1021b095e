"""Thousands of deadlines under one timer.

Nearly every call ends before its deadline, so what must be cheap is to set one and to forget it. A timer of the event
loop for each call costs about 1.5 us for that. Here setting one is a push on a heap (deadlines mostly come in order,
and such a push moves nothing), and forgetting one is nothing at all: the heap asks the owner's table of open calls
whether a key is still there, and is swept when most of its entries are not.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

_TOLERATED_DEAD = 1024


class Deadlines:
    """A set of (moment, key), in seconds on the caller's clock. *live* holds the keys that still matter; a key that
    left it never comes back."""

    __slots__ = ("_heap", "_live")

    def __init__(self, live: Collection[int]) -> None:
        self._live = live
        self._heap: list[tuple[float, int]] = []

    def add(self, at_s: float, key: int) -> None:
        heap = self._heap
        heapq.heappush(heap, (at_s, key))
        if len(heap) > 2 * len(self._live) + _TOLERATED_DEAD:
            self._heap = [entry for entry in heap if entry[1] in self._live]
            heapq.heapify(self._heap)

    def expired(self, now_s: float) -> list[int]:
        """Takes out the live keys whose moment has come, earliest first."""
        keys: list[int] = []
        while self._heap and self._heap[0][0] <= now_s:
            key = heapq.heappop(self._heap)[1]
            if key in self._live:
                keys.append(key)
        return keys

    def next_at(self) -> float | None:
        """When ``expired`` will have something next; None while there is nothing."""
        while self._heap and self._heap[0][1] not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        """Entries, dead ones included."""
        return len(self._heap)
