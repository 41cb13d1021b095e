"""Virtual time: a heap of events, merged with a sorted list of arrivals.

A small heap and not a simulation library: SimPy 4.1, which runs each request as a generator, makes 90,000 round trips a
second through 40 bare queues where this loop makes 1,000,000 in the same run. With everything else that a call needs
here (policy, accounts, deadline, record) a call takes as long as 9 to 13 bare round trips (``./dev bench sim``), of
which the policy's own part is a quarter to a third. Arrivals are not events: their times are known beforehand, and
merging a sorted array costs a comparison where a heap costs a push and a pop.

Events at one moment happen in the order in which they were scheduled, so that a run is a function of its seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import chain, count, islice
from math import inf
from typing import Any

Action = Callable[[Any], None]


class Kernel:
    """``now_s`` is virtual time in seconds; ``at`` schedules, ``run`` goes on.

    ``events`` is the heap itself and ``number()`` the next event's number: servers push ``(when_s, number(), action,
    argument)`` by themselves, because a call of ``at`` costs more than the push.
    """

    __slots__ = ("_next_arrival", "events", "now_s", "number")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events: list[tuple[float, int, Action, Any]] = []
        self.number: Callable[[], int] = count(1).__next__
        self._next_arrival = 0

    def at(self, when_s: float, action: Action, argument: Any = None) -> None:
        """``action(argument)`` at *when_s*, and now if that is over."""
        heappush(self.events, (when_s, self.number(), action, argument))

    def every(self, period_s: float, first_s: float, action: Callable[[], None]) -> None:
        """``action()`` at *first_s* and then each *period_s*, for ever."""

        def turn(due_s: float) -> None:
            self.at(due_s + period_s, turn, due_s + period_s)
            action()

        self.at(first_s, turn, first_s)

    def run(self, until_s: float, arrivals_s: Sequence[float], arrive: Callable[[int], None]) -> None:
        """Everything up to *until_s*. *arrivals_s* is sorted; ``arrive(i)`` is called at ``arrivals_s[i]``."""
        events = self.events
        at = self._next_arrival
        for arrival_s in chain(islice(arrivals_s, at, None), (inf,)):
            before_s = arrival_s if arrival_s < until_s else until_s
            while events and events[0][0] <= before_s:
                self.now_s, _, action, argument = heappop(events)
                action(argument)
            if arrival_s > until_s:
                break
            self.now_s = arrival_s
            arrive(at)
            at += 1
        self._next_arrival = at
        self.now_s = until_s
