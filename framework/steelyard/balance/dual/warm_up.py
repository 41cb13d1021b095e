"""Slow start: a node that joins a running fleet gets its share little by little.

Linear from 10 % to all of its share over ``warm_up_s``: caches, JITs and connection pools fill with the calls served,
which grow as the square of time under a linear ramp. Nodes of the first snapshot are not warming: it is this consumer
that is new.

The joint ramp: when most of the fleet joins at once, dividing by the sum of weights hands the newcomers far more than
their ramps say (nine at 0.1 beside one at 1 would get half). So together they never get more than the sum of base share
times ramp, as long as there is anybody warm to take the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from .member import Member
from .settings import DualSettings


def ramp(member: Member, now_s: float, settings: DualSettings) -> float:
    """The factor in [warm_up_from, 1]; ends the warming of a node whose time is over."""
    if not member.is_warming:
        return 1.0
    age_s = now_s - member.joined_at_s
    if age_s >= settings.warm_up_s:
        member.is_warming = False
        member.hold(now_s, settings.hold_s)
        return 1.0
    return max(settings.warm_up_from, age_s / settings.warm_up_s)


def joint_scale(
    base: Sequence[float], flow: Sequence[float], ramps: Sequence[float], is_warming: Sequence[bool]
) -> float:
    """The factor on the warming nodes' flow that keeps their joint share within their joint ramp (at most 1)."""
    warming = cold_share = warm = 0.0
    for share, weight, part, is_cold in zip(base, flow, ramps, is_warming, strict=True):
        if is_cold:
            warming += share * weight
            cold_share += share * part
        else:
            warm += share * weight
    if warming <= 0 or warm <= 0 or warming <= cold_share * (warming + warm):
        return 1.0
    return cold_share * warm / ((1.0 - cold_share) * warming)
