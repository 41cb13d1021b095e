"""From weights to traffic: least diversion.

    p_i      = B_i * f_i / sum(B * f)             f = w * kept * ramp
    refuse_i = max(0, 1 - p_i / B_i)              the part of its own calls that i gives away
    accept_i = max(0, p_i - B_i)                  the part of all calls that i takes over

The diverted part sum(max(0, B - p)) is the total-variation distance between base and target: no other scheme reaches
the same shares and moves fewer keys. Rejected: hashing by p directly (a ring with weights p moves keys between nodes
that both stay as they are), and a coin per call (a key would lose its cache on both sides).

A Plan is immutable and swapped in one assignment; a pick reads it and computes none of it. There are two bases: the
ring's arcs for calls with a key, and static weights for calls without one; each has its own spread, made once calls of
that kind are seen, so that a service pays only for what it uses. B is exact in both: an arc is a part of the key space,
and smooth weighted picking gives each node its weight's share by construction, so neither has to be measured.

Everything a pick asks of a spread follows from one number per node, p_i / B_i (``ratio``): a plan for 10,000 nodes
takes milliseconds, and 8 bytes a node.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul

from ..draw import DrawTable
from ..hashing import MASK64
from ..ring import HashRing
from .member import Member

# Rounding of the division by the total must not make a list of everybody.
_NOTHING = 1e-9
# Lists this short are compared one by one.
SHORT_LIST = 6
# Where fewer than one node in so many accepts, the ring would be searched for them: they get a small ring of their own.
_SPARSE = 8
# A node's positions on the small ring: its salt, which is a hash, times odd numbers (the first words of MCG tables).
_SPOTS = (0x9E3779B97F4A7C15, 0xD1342543DE82EF95, 0xAF251AF3B0F025B5, 0xDA942042E4DD58B5)


@dataclass(frozen=True, slots=True)
class Spread:
    """A base and what becomes of it, by place: ``ratio`` is p / B."""

    base: Sequence[float]
    ratio: Sequence[float]

    @property
    def diverted(self) -> float:
        return sum(own * (1.0 - ratio) for own, ratio in zip(self.base, self.ratio, strict=True) if ratio < 1.0)


@dataclass(frozen=True, slots=True)
class SecondHomes:
    """The accept list in the form that its length asks for.

    Short: ``listed`` are (member, accept weight). Long: ``owner_of`` gives a place for a position in the key space, in
    proportion to arcs, and ``chance`` by place is accept / arc over its maximum, times 2**48. ``nobody`` accepts: both
    are empty.
    """

    listed: tuple[tuple[Member, float], ...] = ()
    ring: HashRing | SmallRing | None = None
    chance: Sequence[float] = ()


class SmallRing:
    """A few positions for each of the accepting nodes alone."""

    __slots__ = ("_owners", "_points")

    def __init__(self, members: Sequence[Member], places: Sequence[int]) -> None:
        bits = len(members).bit_length()
        placed = [
            (salt * spot & MASK64) << bits | place
            for salt, place in zip((members[place].salt for place in places), places, strict=True)
            for spot in _SPOTS
        ]
        placed.sort()
        mask = (1 << bits) - 1
        self._points = [one >> bits for one in placed]
        self._owners = [one & mask for one in placed]

    def owner(self, key: int) -> int:
        at = bisect_left(self._points, key)
        return self._owners[at if at < len(self._owners) else 0]

    def arcs(self) -> dict[int, int]:
        arcs: dict[int, int] = {}
        before = self._points[-1] - (1 << 64)
        for point, owner in zip(self._points, self._owners, strict=True):
            arcs[owner] = arcs.get(owner, 0) + point - before
            before = point
        return arcs


@dataclass(frozen=True, slots=True)
class Plan:
    """What picks read. Sequences are by place, a member's index in ``members``. ``keyed`` is None until there are calls
    with a key, ``free`` until there are calls without one; ``parts`` are proportional to the free spread's shares."""

    members: Sequence[Member]
    ring: HashRing | None
    keyed: Spread | None
    homes: SecondHomes
    free: Spread | None
    parts: Sequence[float]
    table: DrawTable | None

    @property
    def leading(self) -> Spread:
        """The spread that speaks for this consumer in statistics: by key, once there are keys."""
        spread = self.keyed or self.free
        assert spread is not None
        return spread


def make_plan(
    members: Sequence[Member],
    flow: Sequence[float],
    *,
    ring: HashRing | None,
    weights: Sequence[float] | None,
    scale: float | None = None,
) -> Plan:
    """The plan for *members* (eligible, in the order of their places) with flow f by place; not empty. *ring* is the
    base of calls with a key, *weights* (sum 1) that of calls without; None: no such calls. *scale* stands in for
    1 / sum(B * f), to which it is close."""
    keyed = None if ring is None else spread(ring.shares, flow, scale)
    homes = SecondHomes() if ring is None or keyed is None else second_homes(keyed, members, ring)
    free = None if weights is None else spread(weights, flow, scale)
    parts = [] if weights is None else list(map(mul, weights, flow))
    return Plan(
        members=members,
        ring=ring,
        keyed=keyed,
        homes=homes,
        free=free,
        parts=parts,
        table=DrawTable(parts) if parts else None,
    )


def spread(base: Sequence[float], flow: Sequence[float], scale: float | None = None) -> Spread:
    if scale is None:
        scale = 1.0 / sum(map(mul, base, flow))
    return Spread(base, array("d", [part * scale for part in flow]))


def second_homes(spread: Spread, members: Sequence[Member], ring: HashRing) -> SecondHomes:
    above = 1.0 + _NOTHING
    most = max(spread.ratio)
    if most <= above:
        return SecondHomes()
    places = [place for place, ratio in enumerate(spread.ratio) if ratio > above]
    if len(places) <= SHORT_LIST:
        listed = tuple((members[place], spread.base[place] * (spread.ratio[place] - 1.0)) for place in places)
        return SecondHomes(listed=listed)
    if len(places) * _SPARSE >= len(members):
        scale = 2.0**48 / _rounded_up(most - 1.0)
        chance = array("d", [(ratio - 1.0) * scale if ratio > above else 0.0 for ratio in spread.ratio])
        return SecondHomes(ring=ring, chance=chance)
    small = SmallRing(members, places)
    chance = array("d", bytes(8 * len(members)))
    for place, arc in small.arcs().items():
        chance[place] = spread.base[place] * (spread.ratio[place] - 1.0) / arc
    scale = 2.0**48 / _rounded_up(max(chance))
    return SecondHomes(ring=small, chance=array("d", [one * scale for one in chance]))


def _rounded_up(number: float) -> float:
    """To the next of 1, 3/4 and powers of two of these: a maximum that moves a little leaves all others' chances, and
    so their keys, alone."""
    mantissa, exponent = math.frexp(number)
    return math.ldexp(0.75 if mantissa <= 0.75 else 1.0, exponent)
