"""Stage 3: equal load on unequal nodes.

    outside the domain:   log w_i += g * log(load_ref / load_i)
    inside the domain:    log w_i *= 2 ** (-T / half_life)            weight decay: keys go home, while that is free

``load_ref`` is the mean of the fresh loads of nodes in good standing. Logs make the law symmetric (twice too much and
half too little are equally wrong) and give it a fixed point: w stands still exactly where load = load_ref. A weight
proportional to idle CPU has none: at equal loads it still pushes. For w < 1 and g = 1 the first line is the published
refuse-list update, ratio <- ratio + (1 - ratio) * (load - ref) / load.

Stability: with a load measured d periods late, log w follows x' = x - g * x(t - d), stable for
g < 2 sin(pi / (2 (2d + 1))).

Hysteresis: a node leaves the domain at 5 % of load_ref and settles at 2.5 %, so that noise at the edge does not switch
it on and off; 0.02 absolute, because 5 % of an idle fleet's load is measurement error.

Decay stops where it would cost something: a node that gives calls away takes them back only while its load is not above
the inner edge of the domain, one that has taken calls over gives them back only while its load is not below it. In a
fleet that is unequal for good, decay to the outer edge would drive each node out of the domain every few seconds, and
keys would leave and come home for ever; so it comes to rest, and a quiet cluster moves no key.

Who is left out: shed nodes, and for ``hold_s`` those that just came back (their load is low *because* they get little;
raising w would undo the cut and flood them on their return, as an integrator winds up), stale ones (hold), unknown ones
(decay to neutral). A node that has not answered yet, or whose last call failed, is not given more, however idle it says
it is, and gives back what it was given: failing is little work. (With one call in ten seconds to a node, that is all a
consumer may ever know; the availability law needs more to act.) Warming nodes can only be told to take less: at a part
of its share a node cannot show that it could take more, but it can show that it is overloaded already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..load import FRESH_S, UNKNOWN_S
from .member import Member
from .settings import DualSettings

_NEUTRAL = 1e-3  # log weights below this are neutral: a tenth of a percent, below what anybody could see in traffic
_MOST_DRIFT = 0.02


@dataclass(frozen=True, slots=True)
class Steering:
    """What one step did. ``load_ref`` is None with fewer than two fresh loads: nothing to compare. ``is_off``: somebody
    is outside the domain. ``is_decaying``: somebody's weight has come closer to neutral."""

    load_ref: float | None
    is_off: bool
    is_decaying: bool


class UtilizationLaw:
    def __init__(self, settings: DualSettings) -> None:
        self._settings = settings
        self._low, self._high = math.log(settings.min_weight), math.log(settings.max_weight)

    def update(
        self, members: Sequence[Member], warming: Sequence[Member], now_s: float, elapsed_s: float, periods: float
    ) -> Steering:
        """One step for all nodes."""
        settings = self._settings
        decay = 2.0 ** (-elapsed_s / settings.decay_half_life_s)
        fresh_from_s = now_s - FRESH_S
        # None is no number to compare, but the sampling time of such a signal may be fresh: hence the second test.
        fresh = [
            member
            for member in members
            if member.load.sampled_at_s >= fresh_from_s
            and member.held_until_s <= now_s
            and member.load.load is not None
        ]
        is_decaying = len(fresh) < len(members) and self._settle_unknown(members, now_s, decay)
        if len(fresh) < 2:
            return Steering(None, False, is_decaying)
        loads: list[float] = [member.load.load for member in fresh]  # type: ignore[misc]
        load_ref = sum(loads) / len(loads)
        is_off, has_decayed = self._step_all(fresh, loads, load_ref, now_s, periods, decay)
        for member in warming:
            load = member.load.load
            edge = load_ref + max(settings.domain * load_ref, settings.domain_floor)
            if load is not None and load > edge and member.load.sampled_at_s >= fresh_from_s:
                self._step(member, load, load_ref, periods)
                is_off = True
        return Steering(load_ref, is_off, is_decaying or has_decayed)

    def _step_all(
        self, fresh: Sequence[Member], loads: Sequence[float], ref: float, now_s: float, periods: float, decay: float
    ) -> tuple[bool, bool]:
        """All at once and with as little as possible per node: this is the part of the tick that grows with n."""
        settings = self._settings
        outer = max(settings.domain * ref, settings.domain_floor)
        inner = max(settings.domain_settle * ref, settings.domain_floor / 2)
        low, high, low_inner, high_inner = ref - outer, ref + outer, ref - inner, ref + inner
        is_off = is_decaying = False
        for member, load in zip(fresh, loads, strict=True):
            if low <= load <= high and (not member.is_off_domain or low_inner <= load <= high_inner):
                member.is_off_domain = False
                log_w = member.log_w
                if log_w and (load <= high_inner if log_w < 0.0 else load >= low_inner):
                    log_w *= decay
                    member.log_w = log_w if not -_NEUTRAL < log_w < _NEUTRAL else 0.0
                    is_decaying = True
                continue
            if not member.is_off_domain:
                member.is_off_domain = True
                if not member.log_w or member.off_since_s is None:
                    member.off_since_s = now_s
            is_off = True
            self._step(member, load, ref, periods)
        return is_off, is_decaying

    def _step(self, member: Member, load: float, ref: float, periods: float) -> None:
        floor = self._settings.domain_floor
        # The floor keeps an idle node's log finite; below it there is nothing to measure anyway.
        error = math.log(max(ref, floor) / max(load, floor))
        if error > 0.0 and member.is_doubted:
            error = -max(0.0, member.log_w)
        log_w = member.log_w + self._settings.gain * periods * error
        member.log_w = min(self._high, max(self._low, log_w))

    def _settle_unknown(self, members: Sequence[Member], now_s: float, decay: float) -> bool:
        """Nodes of which nothing is known go home; those that are only stale, held or shed stay as they are."""
        is_decaying = False
        known_from_s = now_s - UNKNOWN_S
        for member in members:
            if member.log_w and member.held_until_s <= now_s:
                signal = member.load
                if signal.sampled_at_s < known_from_s or signal.load is None:
                    log_w = member.log_w * decay
                    member.log_w = log_w if not -_NEUTRAL < log_w < _NEUTRAL else 0.0
                    member.is_off_domain = False
                    is_decaying = True
        return is_decaying

    def recentre(self, members: Sequence[Member], total: float) -> None:
        """Bring *total* = sum(B * w) back to 1: only ratios of weights matter, and a common drift (the mean log error
        is never exactly zero) would run all of them into the clamp."""
        shift = math.log(total) if total > 0 else 0.0
        if abs(shift) < _MOST_DRIFT:
            return
        for member in members:
            member.log_w = min(self._high, max(self._low, member.log_w - shift))


class RatioLaw(UtilizationLaw):
    """The published law, to be measured beside ours: each node has a refuse ratio r, all start in the refuse list at 0.

        load > ref:   r <- r + (1 - r) * (load - ref) / load
        load < ref:   r <- r * (1 + (load - ref) / ref)

    In weights, w = 1 - r: the first line is log w += log(ref / load), a gain of 1, which rings as soon as the load is
    measured a period late. What is refused goes to all others in proportion to B * w. Domain, decay and everything
    else are shared with the log-weight law.
    """

    def _step(self, member: Member, load: float, ref: float, periods: float) -> None:
        floor = self._settings.domain_floor
        ref, load = max(ref, floor), max(load, floor)
        if load > ref:
            log_w = member.log_w + periods * math.log(ref / load)
        else:
            refuse = (1.0 - math.exp(member.log_w)) * (1.0 + periods * (load - ref) / ref)
            log_w = math.log1p(-refuse) if refuse < 1.0 else self._low
        member.log_w = min(0.0, max(self._low, log_w))

    def recentre(self, members: Sequence[Member], total: float) -> None:
        """Ratios are absolute in this law."""
