"""Stage 3: equal load on unequal nodes.

    outside the domain:   log w_i += g * log(load_ref / load_i)
    inside the domain:    log w_i *= 2 ** (-T / half_life)            weight decay: keys go home

``load_ref`` is the mean of the fresh loads of nodes in good standing. Logs make the law symmetric (twice too much and
half too little are equally wrong) and give it a fixed point: w stands still exactly where load = load_ref. A weight
proportional to idle CPU has none: at equal loads it still pushes. For w < 1 and g = 1 the first line is the published
refuse-list update, ratio <- ratio + (1 - ratio) * (load - ref) / load.

Stability: with a load measured d periods late, log w follows x' = x - g * x(t - d), stable for
g < 2 sin(pi / (2 (2d + 1))).

Hysteresis: a node leaves the domain at 5 % of load_ref and settles at 2.5 %, so that noise at the edge does not switch
it on and off; 0.02 absolute, because 5 % of an idle fleet's load is measurement error.

Who is left out: shed and warming nodes, and for ``hold_s`` those that just came back (their load is low *because* they
get little; raising w would undo the cut and flood them on their return, as an integrator winds up), stale ones (hold),
unknown ones (decay to neutral).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..load import ReportState
from ..statistics import Objective, Reason
from .member import NO_REASON, Member
from .settings import DualSettings

_NEUTRAL = 1e-6  # log weights below this are exactly neutral, so that a quiet cluster's plan stops changing


class UtilizationLaw:
    def __init__(self, settings: DualSettings) -> None:
        self._settings = settings
        self._low, self._high = math.log(settings.min_weight), math.log(settings.max_weight)

    def update(self, members: Sequence[Member], now_s: float, elapsed_s: float, periods: float) -> float | None:
        """One step for all nodes; returns load_ref (None with fewer than two fresh loads: nothing to compare)."""
        fresh: list[tuple[Member, float]] = []
        decay = 2.0 ** (-elapsed_s / self._settings.decay_half_life_s)
        for member in members:
            if member.is_shed or member.is_warming or now_s < member.held_until_s:
                continue
            state = member.load.state(now_s)
            if state is ReportState.FRESH and member.load.load is not None:
                fresh.append((member, member.load.load))
            elif state is ReportState.UNKNOWN and member.log_w:
                self._settle(member, decay)
        if len(fresh) < 2:
            return None
        load_ref = sum(load for _, load in fresh) / len(fresh)
        for member, load in fresh:
            self._step(member, load, load_ref, now_s, periods, decay)
        self._recentre(members)
        return load_ref

    def _step(self, member: Member, load: float, ref: float, now_s: float, periods: float, decay: float) -> None:
        settings = self._settings
        away = abs(load - ref)
        if member.is_off_domain:
            member.is_off_domain = away > max(settings.domain_settle * ref, settings.domain_floor / 2)
        else:
            member.is_off_domain = away > max(settings.domain * ref, settings.domain_floor)
        if not member.is_off_domain:
            self._settle(member, decay)
            return
        # The floor keeps an idle node's log finite; below it there is nothing to measure anyway.
        error = math.log(max(ref, settings.domain_floor) / max(load, settings.domain_floor))
        member.log_w = min(self._high, max(self._low, member.log_w + settings.gain * periods * error))
        if member.reason.objective in (Objective.NONE, Objective.UTILIZATION):
            since_s = member.reason.since_s if member.reason.objective is Objective.UTILIZATION else now_s
            member.reason = Reason(
                objective=Objective.UTILIZATION,
                imbalance=error,
                since_s=since_s,
                text=f"load {load:.2f} where the mean is {ref:.2f}",
            )

    def _settle(self, member: Member, decay: float) -> None:
        member.is_off_domain = False
        member.log_w *= decay
        if abs(member.log_w) < _NEUTRAL:
            member.log_w = 0.0
        if member.reason.objective is Objective.UTILIZATION and member.log_w == 0.0:
            member.reason = NO_REASON

    def _recentre(self, members: Sequence[Member]) -> None:
        """Keep sum(B * w) = 1: only ratios of weights matter, and a common drift (the mean log error is never exactly
        zero) would run all of them into the clamp."""
        total = sum(member.base * math.exp(member.log_w) for member in members)
        shift = math.log(total) if total > 0 else 0.0
        if abs(shift) < _NEUTRAL:
            return
        for member in members:
            member.log_w = min(self._high, max(self._low, member.log_w - shift))
