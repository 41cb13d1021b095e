"""A waiting line in which the more important go first, then the more urgent, then the earlier.

Deadline-first within a priority class serves the most calls in time while there is capacity for them (Liu and Layland
1973); first-come-first-served makes the urgent wait behind the patient. Classes are strict: while calls of class 0 wait
none of class 1 is started. What bounds the harm of both is that the line is short and its owner refuses.

A call without a deadline is ordered as if it had PATIENCE_S from its arrival, or a steady load of calls with deadlines
would keep it waiting for ever.

Not thread-safe; pure.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Any

PATIENCE_S = 10.0
# Lazy deletion leaves at most so many more dead entries in a heap than living ones.
_SLACK = 64


class Place:
    """One who waits. ``is_out``: it has been served, sent away, or has left. Its ``item`` is then None, because the
    heaps keep the place for a while."""

    __slots__ = ("deadline_at", "is_out", "item", "number", "priority")

    def __init__(self, priority: int, deadline_at: float, number: int, item: Any) -> None:
        self.priority = priority
        self.deadline_at = deadline_at
        self.number = number
        self.item = item
        self.is_out = False


class Line:
    """Who waits. Bounds are its owner's business: see ``worse_than``."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._best: list[tuple[int, float, int, Place]] = []
        self._worst: list[tuple[int, int, Place]] = []
        self._alive = 0

    def __len__(self) -> int:
        return self._alive

    def join(self, item: Any, *, priority: int, deadline_at: float, now_s: float) -> Place:
        if math.isinf(deadline_at):
            deadline_at = now_s + PATIENCE_S
        place = Place(priority, deadline_at, next(self._numbers), item)
        heapq.heappush(self._best, (priority, deadline_at, place.number, place))
        heapq.heappush(self._worst, (-priority, -place.number, place))
        self._alive += 1
        return place

    def head(self) -> tuple[int, float] | None:
        """The order of the next one, to be compared with that of other lines; None: nobody waits."""
        best = self._best
        while best and best[0][3].is_out:
            heapq.heappop(best)
        return best[0][:2] if best else None

    def next(self) -> Any:
        """Takes out the one whose turn it is, and returns its item. None: nobody waits."""
        if self.head() is None:
            return None
        return self._taken(heapq.heappop(self._best)[3])

    def worse_than(self, priority: int) -> Any:
        """Takes out the one who has to make room for a newcomer of *priority*, and returns its item: of the least
        important class below it the one who came last and so has lost the least. None: nobody here is less
        important."""
        worst = self._worst
        while worst and worst[0][2].is_out:
            heapq.heappop(worst)
        if not worst or -worst[0][0] <= priority:
            return None
        return self._taken(heapq.heappop(worst)[2])

    def leave(self, place: Place) -> None:
        """*place* waits no longer. Idempotent."""
        if place.is_out:
            return
        place.is_out, place.item = True, None
        self._alive -= 1
        most = 2 * self._alive + _SLACK
        if len(self._best) > most:
            self._best = [entry for entry in self._best if not entry[3].is_out]
            heapq.heapify(self._best)
        if len(self._worst) > most:
            self._worst = [entry for entry in self._worst if not entry[2].is_out]
            heapq.heapify(self._worst)

    def clear(self) -> list[Any]:
        """Takes out everybody, and returns their items."""
        places = [entry[3] for entry in self._best if not entry[3].is_out]
        return [self._taken(place) for place in places]

    def _taken(self, place: Place) -> Any:
        item = place.item
        self.leave(place)
        return item
