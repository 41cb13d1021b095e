"""Meter x chooser: how loaded a node is, times how many nodes are compared (the cut is Finagle's).

A meter is a number per candidate, smaller is better; a chooser decides whom to measure. Each named policy is one pair,
so a new meter (latency, reported load) or a new chooser (a zone first) is one function and not a class per
combination.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

from steelyard_registry.node import Node

from ..candidate import Candidate
from ..draw import Dice
from ..policy import PolicyBase
from ..settings import NoSettings

Meter = Callable[[Candidate], float]
Chooser = Callable[[Sequence[Candidate], Meter, Dice, Collection[str]], Candidate | None]


def active_per_weight(candidate: Candidate) -> float:
    """Own open calls, the one to come included, over weight: what the node's work per capacity would be."""
    return (candidate.in_flight + 1) / candidate.weight


def least_of_all(
    candidates: Sequence[Candidate], meter: Meter, dice: Dice, excluded: Collection[str]
) -> Candidate | None:
    """The smallest of all; ties are drawn by lot, for else the first in the list would take every quiet moment. O(n),
    and herding: all consumers see the same smallest. ``least_of_two`` is the cure of both."""
    best: list[Candidate] = []
    smallest = float("inf")
    for candidate in candidates:
        if excluded and candidate.identity in excluded:
            continue
        size = meter(candidate)
        if size < smallest:
            smallest, best = size, [candidate]
        elif size == smallest:
            best.append(candidate)
    return best[int(dice() * len(best))] if best else None


def least_of_two(
    candidates: Sequence[Candidate], meter: Meter, dice: Dice, excluded: Collection[str]
) -> Candidate | None:
    """The smaller of two different nodes drawn uniformly (Mitzenmacher 2001): nearly all of the gain of comparing all,
    at O(1), and consumers do not run to one node together."""
    count = len(candidates)
    if count == 0:
        return None
    at = int(dice() * count)
    if not excluded and count > 1:
        # The second from the others, without redrawing: skip over the first's place.
        other_at = int(dice() * (count - 1))
        first, other = candidates[at], candidates[other_at + (other_at >= at)]
        return other if meter(other) < meter(first) else first
    allowed = [candidate for candidate in candidates if candidate.identity not in excluded]
    return least_of_two(allowed, meter, dice, ()) if len(allowed) > 1 else (allowed[0] if allowed else None)


class _Metered(PolicyBase[Candidate]):
    settings_type = NoSettings
    _meter: Meter
    _choose: Chooser

    def __init__(self, settings: NoSettings | None = None) -> None:
        super().__init__()

    def pick(
        self, now_s: float, dice: Dice, key: int | None = None, excluded: Collection[str] = ()
    ) -> Candidate | None:
        return type(self)._choose(self.eligible, type(self)._meter, dice, excluded)

    def _new_candidate(self, node: Node, now_s: float) -> Candidate:
        return Candidate(node, now_s)


class LeastActive(_Metered):
    """Fewest open calls per weight (Dubbo's leastactive, counting always)."""

    name: ClassVar[str] = "least_active"
    _meter = staticmethod(active_per_weight)
    _choose = staticmethod(least_of_all)


class TwoChoices(_Metered):
    """The less loaded of two (power of two choices)."""

    name: ClassVar[str] = "p2c"
    _meter = staticmethod(active_per_weight)
    _choose = staticmethod(least_of_two)
