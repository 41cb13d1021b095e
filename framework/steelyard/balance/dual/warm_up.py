"""Slow start: a node that joins a running fleet gets its share little by little.

Linear from 10 % to all of its share over ``warm_up_s``: caches, JITs and connection pools fill with the calls served,
which grow as the square of time under a linear ramp. Nodes of the first snapshot are not warming: it is this consumer
that is new.

A process that restarted is a new node too, whether or not the registry saw it leave. Two things tell: a later start
time in its record, and a report stream that begins anew after a silence in which the node answered nothing. (A stream
that was lost while calls went on being answered says that a connection failed, and nothing about the process.)

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
    age_s = now_s - member.warm_from_s
    if age_s >= settings.warm_up_s:
        member.is_warming = False
        if not member.is_shed:
            member.hold(now_s, settings.hold_s)
        return 1.0
    return max(settings.warm_up_from, age_s / settings.warm_up_s)


def apply_ramps(base: Sequence[float], flow: list[float], ramps: Sequence[tuple[int, float]]) -> None:
    """Scale the flow of warming nodes, given as (place, ramp), each by its ramp and all within their joint ramp."""
    for place, part in ramps:
        flow[place] *= part
    total = sum(share * part for share, part in zip(base, flow, strict=True))
    warming = sum(base[place] * flow[place] for place, _ in ramps)
    cold_share = sum(base[place] * part for place, part in ramps)
    scale = joint_scale(warming, cold_share, total - warming)
    for place, _ in ramps:
        flow[place] *= scale


def joint_scale(warming: float, cold_share: float, warm: float) -> float:
    """The factor (at most 1) on the warming nodes' summed flow *warming*, beside *warm* of the others, that keeps their
    part of all within *cold_share*."""
    if warming <= 0 or warm <= 0 or warming <= cold_share * (warming + warm):
        return 1.0
    return cold_share * warm / ((1.0 - cold_share) * warming)
