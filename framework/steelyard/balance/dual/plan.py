"""From weights to traffic: least diversion.

    p_i      = B_i * f_i / sum(B * f)             f = w * kept * ramp
    refuse_i = max(0, 1 - p_i / B_i)              the part of its own calls that i gives away
    accept_i = max(0, p_i - B_i)                  the part of all calls that i takes over

The diverted part sum(max(0, B - p)) is the total-variation distance between base and target: no other scheme reaches
the same shares and moves fewer keys. Rejected: hashing by p directly (a ring with weights p moves keys between nodes
that both stay as they are), and a coin per call (a key would lose its cache on both sides).

A Plan is immutable and swapped in one assignment; a pick reads it and computes none of it. There are two bases: the
ring's arcs for calls with a key, and static weights for calls without one. The ring is built at the first call
with a key, so that a service without keys never pays for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..draw import DrawTable
from ..hashing import TWO64
from ..ring import HashRing
from .member import Member
from .warm_up import joint_scale


@dataclass(frozen=True, slots=True)
class Spread:
    """One base and what becomes of it, by place. ``refuse_below`` are refuse ratios as 64-bit thresholds;
    ``accepting`` lists (member, accept weight); ``accept_ratio`` is accept / B over its own maximum."""

    base: tuple[float, ...]
    shares: tuple[float, ...]
    refuse_below: tuple[int, ...]
    accepting: tuple[tuple[Member, float], ...]
    accept_below: tuple[int, ...]

    @property
    def diverted(self) -> float:
        return sum(weight for _, weight in self.accepting)


@dataclass(frozen=True, slots=True)
class Plan:
    """What picks read. Sequences are by place, a member's index in ``members``."""

    members: tuple[Member, ...]
    ring: HashRing | None
    keyed: Spread | None
    free: Spread
    table: DrawTable
    flow: tuple[float, ...]

    @property
    def leading(self) -> Spread:
        """The spread that speaks for this consumer in statistics: by key, once there are keys."""
        return self.keyed or self.free


def make_plan(
    members: Sequence[Member],
    ring: HashRing | None,
    flow: Sequence[float],
    ramps: Sequence[float],
) -> Plan:
    """The plan for *members* (eligible, in the order of their places) with flow f by place; not empty."""
    total_weight = sum(member.weight for member in members)
    free = spread([member.weight / total_weight for member in members], members, flow, ramps)
    return Plan(
        members=tuple(members),
        ring=ring,
        keyed=None if ring is None else spread(ring.shares, members, flow, ramps),
        free=free,
        table=DrawTable(free.shares),
        flow=tuple(flow),
    )


def spread(base: Sequence[float], members: Sequence[Member], flow: Sequence[float], ramps: Sequence[float]) -> Spread:
    """Shares, refuse and accept from a base and flows."""
    is_warming = [member.is_warming for member in members]
    if any(is_warming):
        scale = joint_scale(base, flow, ramps, is_warming)
        flow = [part * scale if is_cold else part for part, is_cold in zip(flow, is_warming, strict=True)]
    parts = [share * part for share, part in zip(base, flow, strict=True)]
    total = sum(parts)
    shares = [part / total for part in parts]
    accept = [share - own if share - own > _NOTHING else 0.0 for share, own in zip(shares, base, strict=True)]
    ratios = [take / own if own > 0 else 0.0 for take, own in zip(accept, base, strict=True)]
    largest = max(ratios)
    return Spread(
        base=tuple(base),
        shares=tuple(shares),
        refuse_below=tuple(
            int((1.0 - share / own) * TWO64) if own - share > _NOTHING else 0
            for share, own in zip(shares, base, strict=True)
        ),
        accepting=tuple((member, take) for member, take in zip(members, accept, strict=True) if take > 0),
        accept_below=tuple(int(ratio / largest * TWO64) if ratio > 0 else 0 for ratio in ratios),
    )


# Rounding of the division by the total must not make a list of everybody.
_NOTHING = 1e-12
