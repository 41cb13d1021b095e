"""Choosers: whom to measure. With a meter each makes a policy (the cut is Finagle's load metric x distributor).

A chooser is told the members once per change and asked once per call. All break ties by weight or by lot, and all
end: they look at a bounded number of nodes or at each node once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from ..draw import Dice, DrawTable
from .meters import Meter
from .trace import Traced


class Chooser(Protocol):
    def set_members(self, members: Sequence[Traced]) -> None: ...

    def choose(self, meter: Meter, now_s: float, dice: Dice, excluded: Collection[str]) -> Traced | None: ...


class LeastOfTwo:
    """The smaller of two different nodes drawn by weight (power of two choices, Mitzenmacher 2001): nearly all of the
    gain of comparing all, at O(log n), and consumers do not run to one node together. On an idle fleet the first drawn
    wins, so shares are weights; on a busy one open calls come out in proportion to weights."""

    def __init__(self) -> None:
        self._members: Sequence[Traced] = ()
        self._table: DrawTable | None = None

    def set_members(self, members: Sequence[Traced]) -> None:
        self._members = members
        self._table = DrawTable(member.weight for member in members) if members else None

    def choose(self, meter: Meter, now_s: float, dice: Dice, excluded: Collection[str]) -> Traced | None:
        if excluded:
            return self._choose_allowed(meter, now_s, dice, excluded)
        if self._table is None:
            return None
        at = self._table.draw(dice)
        first = self._members[at]
        if len(self._members) == 1:
            return first
        other = self._members[self._table.draw_other(dice, at)]
        return other if meter.cost(other, now_s) < meter.cost(first, now_s) else first

    def _choose_allowed(self, meter: Meter, now_s: float, dice: Dice, excluded: Collection[str]) -> Traced | None:
        rest = LeastOfTwo()
        rest.set_members([member for member in self._members if member.identity not in excluded])
        return rest.choose(meter, now_s, dice, ())


class OwnZone:
    """The less loaded of two in the own zone; another zone's when the own is ``spill_over`` times as loaded, or empty.

    Comparing two measured nodes and not two zones' averages: no state, no threshold on the number of nodes, and a zone
    that is too small for its callers overflows by as much as it is too small.
    """

    def __init__(self, zone: str, spill_over: float) -> None:
        self._zone = zone
        self._spill_over = spill_over
        self._near, self._far = LeastOfTwo(), LeastOfTwo()

    def set_members(self, members: Sequence[Traced]) -> None:
        near = [member for member in members if not self._zone or member.node.zone == self._zone]
        self._near.set_members(near)
        self._far.set_members([member for member in members if self._zone and member.node.zone != self._zone])

    def choose(self, meter: Meter, now_s: float, dice: Dice, excluded: Collection[str]) -> Traced | None:
        near = self._near.choose(meter, now_s, dice, excluded)
        if near is not None and near.in_flight == 0:
            return near
        far = self._far.choose(meter, now_s, dice, excluded)
        if near is None or far is None:
            return near or far
        # One more call than is open, on both sides: else any idle node elsewhere would draw calls out of the zone.
        here = (near.in_flight + 1) / near.weight
        there = (far.in_flight + 1) / far.weight
        return far if here > self._spill_over * there else near


class First:
    """The first in the registry's order with the smallest cost (Dubbo's Available, gRPC's pick_first)."""

    def __init__(self) -> None:
        self._members: Sequence[Traced] = ()

    def set_members(self, members: Sequence[Traced]) -> None:
        self._members = members

    def choose(self, meter: Meter, now_s: float, dice: Dice, excluded: Collection[str]) -> Traced | None:
        best: Traced | None = None
        smallest = float("inf")
        for member in self._members:
            if excluded and member.identity in excluded:
                continue
            cost = meter.cost(member, now_s)
            if cost < smallest:
                best, smallest = member, cost
                if cost == 0.0:
                    break
        return best
