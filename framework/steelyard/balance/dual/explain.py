"""Why a node has the numbers it has: the law's state as records."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from ..policy import node_statistics
from ..statistics import NodeList, NodeStatistics, Objective, Reason
from . import latency
from .member import NO_REASON, Member
from .plan import Plan
from .told import LongQueue, Told

# Ratios this near to 1 are neutral: half a percent of a share is below what anybody could see in traffic.
_NEUTRAL = 0.005
_LEAST_LOAD = 1e-3
# kept at or below this is an emptied node that lives on exploration (DualSettings.max_explore).
_EMPTIED = 0.1


def nodes(
    members: Collection[Member],
    plan: Plan | None,
    now_s: float,
    *,
    sent: int,
    load_ref: float | None,
    told: Told,
    resources: frozenset[str] | None,
) -> tuple[NodeStatistics, ...]:
    return tuple(
        replace(
            _node(member, plan, now_s, sent, load_ref, told.mean_s, resources),
            passes=member.passes,
            long_queue=_long_queue(member, told.long_queues.get(member)),
        )
        for member in members
    )


def _node(
    member: Member,
    plan: Plan | None,
    now_s: float,
    sent: int,
    load_ref: float | None,
    told_s: float | None,
    resources: frozenset[str] | None,
) -> NodeStatistics:
    resource = member.load.dominant(resources)
    if plan is None or member.place < 0:
        record = node_statistics(member, now_s, sent=sent, share=0.0, base_share=0.0)
        return replace(record, flow_ratio=0.0, weight_ratio=math.exp(member.log_w), resource=resource, reason=_OUT)
    spread = plan.leading
    base, ratio = spread.base[member.place], spread.ratio[member.place]
    record = node_statistics(member, now_s, sent=sent, share=base * ratio, base_share=base)
    return replace(
        record,
        weight_ratio=math.exp(member.log_w),
        refuse_ratio=1.0 if member.is_blocked else max(0.0, 1.0 - ratio),
        accept_weight=max(0.0, base * (ratio - 1.0)),
        resource=resource,
        list=_list(member, ratio),
        reason=_reason(member, now_s, load_ref, told_s, resource),
    )


def _list(member: Member, flow_ratio: float) -> NodeList:
    if member.is_ejected:
        return NodeList.EJECTED
    if member.kept <= _EMPTIED:
        return NodeList.PROBING
    if member.is_warming:
        return NodeList.WARMING
    if flow_ratio < 1.0 - _NEUTRAL:
        return NodeList.REFUSE
    return NodeList.ACCEPT if flow_ratio > 1.0 + _NEUTRAL else NodeList.NEUTRAL


def _reason(member: Member, now_s: float, load_ref: float | None, told_s: float | None, resource: str | None) -> Reason:
    """The first of the law's aims that moves this node: out of reach, failing, warming, loaded otherwise than
    others."""
    if member.is_shed:
        return member.reason
    if member.is_warming:
        age_s = now_s - member.warm_from_s
        text = f"began {age_s:.0f} s ago"
        return Reason(objective=Objective.WARM_UP, since_s=member.warm_from_s, text=text)
    if not member.log_w and not member.is_off_domain:
        return NO_REASON
    load = member.load.load
    if load is None or load_ref is None:
        return Reason(objective=Objective.UTILIZATION, since_s=member.off_since_s, text="nothing to compare with")
    # 0: it has told nothing for a while, and counts as what it told last.
    own_s = latency.seconds(member.told_in_flight, member.answered_per_s)
    if told_s and own_s > 0.0 and member.pressure > member.load.raw:
        text = f"calls take {own_s:.3g} s where the mean is {told_s:.3g} s, so {resource} at {load:.2f} counts as more"
        since_s = member.off_since_s
        return Reason(objective=Objective.LATENCY, imbalance=math.log(told_s / own_s), since_s=since_s, text=text)
    imbalance = math.log(max(load_ref, _LEAST_LOAD) / max(load, _LEAST_LOAD))
    text = f"{resource} at {load:.2f} where the mean load is {load_ref:.2f}"
    if not member.is_off_domain:
        text += ", held there by its share" if abs(member.log_w) > _NEUTRAL else ""
    return Reason(objective=Objective.UTILIZATION, imbalance=imbalance, since_s=member.off_since_s, text=text)


def _long_queue(member: Member, queue: LongQueue | None) -> Reason:
    if queue is None or member.passes >= 1.0 or member.is_blocked:
        return NO_REASON
    text = f"told of {queue.told:.0f} calls, {queue.fair:.0f} being its part: takes {member.passes:.0%} of its draws"
    return Reason(objective=Objective.QUEUE, imbalance=queue.told - queue.fair, since_s=queue.since_s, text=text)


_OUT = Reason(text="takes no traffic: not ready, or weight 0")
