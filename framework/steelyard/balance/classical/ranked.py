"""Ranked: the least loaded of all, for meters that change with calls alone (Dubbo's leastactive, shortestresponse).

Asking each node at each call takes 75 us at 1,000 nodes. But a call changes the cost of one node only, so nodes are
kept by cost, and each start and end moves one of them, in O(log n) steps: together 2 us at any number of nodes. (Where
many cost the same and weights differ, the draw among them looks at each of these: 30 us on an idle 1,000.) What no
bookkeeping cures is herding: all consumers see the same smallest. ``LeastOfTwo`` does.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from steelyard.model import Outcome

from ..candidate import Candidate
from ..draw import Dice, DrawTable
from ..policy import PolicyBase
from .metered import Metered
from .meters import Meter, SteadyMeter
from .trace import Traced

_ROUNDING_S = 1e-6
_MOST_STALE = 4  # times as many costs in the heap as there are; then it is made anew


class LeastOfAll:
    """The smallest of all; ties are drawn by weight. Must be told (``moved``) of each call that began or ended."""

    def __init__(self, meter: SteadyMeter) -> None:
        self._meter = meter
        self._cost = meter.cost
        self._members: Sequence[Traced] = ()
        self._places: dict[Candidate, int] = {}  # empty until they have been ranked
        self._costs: list[float] = []
        self._at_cost: dict[float, list[int]] = {}  # the places of those that cost so much, ascending
        self._heap: list[float] = []  # of these costs, and of some that nobody has any more
        self._ends: list[tuple[float, int]] = []  # when the time of a cost is over, and at which place
        self._holds_until_s = -inf  # no cost changes by time alone before this
        self._weight: int | None = None  # everybody's, where it is the same

    def set_members(self, members: Sequence[Traced]) -> None:
        self._members = members
        self._places = {}
        weights = {member.weight for member in members}
        self._weight = weights.pop() if len(weights) == 1 else None
        self._holds_until_s = -inf

    def moved(self, candidate: Candidate, now_s: float) -> None:
        """A call to *candidate* began or ended."""
        at = self._places.get(candidate)
        if at is None:
            return
        before, cost = self._costs[at], self._cost(self._members[at], now_s)
        if cost == before:
            return
        self._costs[at] = cost
        at_cost = self._at_cost
        left = at_cost[before]
        if len(left) == 1:
            del at_cost[before]
        else:
            del left[bisect_left(left, at)]
        joined = at_cost.get(cost)
        if joined is not None:
            insort(joined, at)
            return
        at_cost[cost] = [at]
        heappush(self._heap, cost)
        if len(self._heap) > _MOST_STALE * len(at_cost) + _MOST_STALE:
            self._heap = sorted(at_cost)

    def choose(self, meter: Meter, now_s: float, dice: Dice, excluded: Collection[str]) -> Traced | None:
        if now_s > self._holds_until_s:
            if self._places:
                self._renew(now_s)
            else:
                self._rank(now_s)
        at_cost = self._at_cost
        if not at_cost:
            return None
        if not excluded:
            heap = self._heap
            while heap[0] not in at_cost:
                heappop(heap)
            best = at_cost[heap[0]]
            return self._members[best[0]] if len(best) == 1 else self._draw(best, dice)
        for cost in sorted(at_cost):
            allowed = [at for at in at_cost[cost] if self._members[at].identity not in excluded]
            if allowed:
                return self._draw(allowed, dice)
        return None

    def _draw(self, best: Sequence[int], dice: Dice) -> Traced:
        members, weight = self._members, self._weight
        if len(best) == 1:
            return members[best[0]]
        if weight is None:
            return members[best[DrawTable(members[at].weight for at in best).draw(dice)]]
        # What a table of equal weights would say, without making it.
        at = int(dice() * (weight * len(best)) // weight)
        return members[best[at] if at < len(best) else best[-1]]

    def _rank(self, now_s: float) -> None:
        """All anew: the members have changed."""
        meter = self._meter
        self._places = {member: at for at, member in enumerate(self._members)}
        self._costs = [meter.cost(member, now_s) for member in self._members]
        self._at_cost = {}
        for at, cost in enumerate(self._costs):
            self._at_cost.setdefault(cost, []).append(at)
        self._heap = sorted(self._at_cost)
        ends = ((meter.holds_until_s(member, now_s), at) for at, member in enumerate(self._members))
        self._ends = [end for end in ends if end[0] < inf]
        heapify(self._ends)
        self._holds_until_s = self._ends[0][0] - _ROUNDING_S if self._ends else inf

    def _renew(self, now_s: float) -> None:
        """The time of some costs is over. Of these only: of ten thousand nodes one's is over all the time."""
        ends, over = self._ends, []
        while ends and now_s > ends[0][0] - _ROUNDING_S:
            over.append(heappop(ends)[1])
        for at in over:
            member = self._members[at]
            self.moved(member, now_s)
            heappush(ends, (self._meter.holds_until_s(member, now_s), at))
        self._holds_until_s = ends[0][0] - _ROUNDING_S


class Ranked(Metered):
    """Metered, by the smallest cost of all."""

    def __init__(self, name: str, meter: SteadyMeter) -> None:
        ranking = LeastOfAll(meter)
        super().__init__(name, meter, ranking)
        self._moved = ranking.moved

    def started(self, candidate: Candidate, now_s: float) -> None:
        # By name and not by super(), which costs as much again; this and ``ended`` run for every call.
        PolicyBase.started(self, candidate, now_s)
        self._moved(candidate, now_s)

    def ended(
        self,
        candidate: Candidate,
        outcome: Outcome,
        now_s: float,
        *,
        latency_s: float,
        in_flight: int | None = None,
        is_transport: bool = False,
    ) -> None:
        PolicyBase.ended(self, candidate, outcome, now_s, latency_s=latency_s, in_flight=in_flight)
        assert isinstance(candidate, Traced)
        self._meter.ended(candidate, outcome, now_s, latency_s, is_transport)
        self._moved(candidate, now_s)
