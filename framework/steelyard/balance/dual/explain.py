"""Why a node has the numbers it has: the law's state as records."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

from ..hashing import TWO64
from ..policy import node_statistics
from ..statistics import NodeList, NodeStatistics, Objective, Reason
from .member import Member
from .plan import Plan

# Ratios this near to 1 are neutral: half a percent of a share is below what anybody could see in traffic.
_NEUTRAL = 0.005
# kept at or below this is an emptied node that lives on exploration (DualSettings.max_explore).
_EMPTIED = 0.1


def nodes(members: Collection[Member], plan: Plan | None, now_s: float, *, sent: int) -> tuple[NodeStatistics, ...]:
    return tuple(_node(member, plan, now_s, sent) for member in members)


def _node(member: Member, plan: Plan | None, now_s: float, sent: int) -> NodeStatistics:
    if plan is None or member.weight <= 0:
        record = node_statistics(member, now_s, sent=sent, share=0.0, base_share=0.0)
        return replace(record, flow_ratio=0.0, weight_ratio=math.exp(member.log_w), reason=_OUT)
    spread = plan.leading
    share, base = spread.shares[member.place], spread.base[member.place]
    record = node_statistics(member, now_s, sent=sent, share=share, base_share=base)
    return replace(
        record,
        weight_ratio=math.exp(member.log_w),
        refuse_ratio=1.0 if member.is_blocked else spread.refuse_below[member.place] / TWO64,
        accept_weight=max(0.0, share - base),
        list=_list(member, record.flow_ratio),
        reason=_warming_reason(member, now_s) if member.is_warming and not member.is_shed else member.reason,
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


def _warming_reason(member: Member, now_s: float) -> Reason:
    age_s = now_s - member.joined_at_s
    return Reason(objective=Objective.WARM_UP, since_s=member.joined_at_s, text=f"joined {age_s:.0f} s ago")


_OUT = Reason(text="takes no traffic: not ready, or weight 0")
