"""Stage 3: equal load on unequal nodes.

    outside the domain:   log w_i += g * (load_ref - load_i) / load_ref          the quotient within -1 and 1
    inside the domain:    log w_i *= 2 ** (-T / half_life)                       weight decay: keys go home

``load_ref`` is the mean of the fresh loads of nodes in good standing. The law has a fixed point: w stands still exactly
where load = load_ref. A weight proportional to idle CPU has none: at equal loads it still pushes. Near the fixed point
the quotient is log(load_ref / load), and with g = 1 the published refuse-list update in weights, w <- w * ref / load.

The quotient and not that logarithm: a load that is measured wrongly by the same amount up and down must not move the
weight on average, and log(1 / (1 - d)) is larger than log(1 + d). Simulated: with two of 16 nodes at 16 times the cost,
whose second-by-second load is all or nothing, the logarithm left them at .89 of utilization where the mean was .63, and
their share at 1.29 % (quotient .85, 1.13 %; p99 730 and 582 ms); with reports 6 periods late, p99 3,016 and 900 ms.

**A step needs evidence.** A second's utilization of a node that serves a few dozen calls is wrong by 10 to 40 % by
chance alone. Following it, smoothed or not, makes weights wander by several percent for ever, and every wander moves
keys. So the reports since the last step are averaged, and a step is taken when their mean is outside the domain *and*
``evidence_z`` standard errors from zero (the node's own noise is measured beside it). A large error is plain at once
and is corrected every period; a small one waits until it is certain. A step spends its evidence, as in the availability
law.

Stability: with a load measured d periods late, log w follows x' = x - g * x(t - d), stable for
g < 2 sin(pi / (2 (2d + 1))). Waiting for evidence only helps: the later steps are the smaller ones.

Hysteresis: a node leaves the domain at 5 % of load_ref and settles at 2.5 %; 0.02 absolute, because 5 % of an idle
fleet's load is measurement error.

Decay acts on weights that are not needed: those of nodes that would still be in the domain at w = 1. In a fleet that is
unequal for good, a decay of all weights would drive each node out of the domain every few seconds, and keys would leave
and come home for ever; so it comes to rest, and a quiet cluster moves no key.

**A drowning node is overloaded, whatever it reports.** A node that gets all that its neighbours on the machine leave it
can be full below the mean load; by its utilization alone it would be given ever more. So a known queue of more than
twice its part of all known queues, and three deviations of chance on top, counts as a load of twice the mean.

Who is left out: shed nodes, and for ``hold_s`` those that just came back (their load is low *because* they get little;
raising w would undo the cut and flood them on their return, as an integrator winds up), stale ones (hold), unknown ones
(decay to neutral). A node that has not answered yet, or whose last call failed, is not given more, however idle it says
it is, and gives back what it was given: failing is little work. (With one call in ten seconds to a node, that is all a
consumer may ever know; the availability law needs more to act.) Its load is no part of the mean either. Warming nodes
can only be told to take less: at a part of its share a node cannot show that it could take more, but it can show that
it is overloaded already.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..load import FRESH_S, UNKNOWN_S
from .member import Member
from .plan import Spread
from .settings import DualSettings

_NEUTRAL = 1e-3  # log weights below this are neutral: a tenth of a percent, below what anybody could see in traffic
_MOST_DRIFT = 0.02
# How much longer than its fair part a known queue must be to say more than a load report. Simulated, p99: ``herd`` at
# 40 / 200 consumers, and two slow nodes of 16. None 826 / 5,000 and 582 ms; 1.25 and 2 deviations 563 / 3,837 and 471,
# but it moves keys of quiet clusters; 2 and 3: 587 / 3,322 and 427; 2.5 and 3: 632 / 3,410 and 489.
_DROWNING, _DROWNING_SIGMAS = 2.0, 3.0
_QUEUE_AT_LEAST = 4.0  # shorter ones are no reason to doubt a report
# A step that waited for its evidence makes up for it, up to so many periods: what as many single steps would have
# done. Simulated with the logarithm, reports 5 / 6 periods late, p99: 1 period 845 / 1,405 ms, 3 periods 919 / 2,945;
# harness, spread of loads after 15 s against plain hashing's, 6 seeds: .31 and .25.
_MOST_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Steering:
    """What one step did. ``load_ref`` is None with fewer than two fresh loads: nothing to compare. ``raw_ref`` is the
    mean of the newest reports (as ``latency`` counts them), at least the domain's floor; 0 likewise. ``has_stepped``:
    somebody's weight was changed on evidence. ``is_decaying``: somebody's weight has come closer to neutral."""

    load_ref: float | None
    raw_ref: float
    has_stepped: bool
    is_decaying: bool


class UtilizationLaw:
    def __init__(self, settings: DualSettings) -> None:
        self._settings = settings
        self._low, self._high = math.log(settings.min_weight), math.log(settings.max_weight)
        self._outer, self._inner = settings.domain, settings.domain_settle
        self._z = settings.evidence_z
        self._is_calm = False

    def calm(self) -> None:
        """From now on a step moves keys: wait for larger deviations, and for more certain ones."""
        settings = self._settings
        self._is_calm = True
        self._outer, self._inner = settings.keyed_domain, settings.keyed_domain_settle
        self._z = settings.keyed_evidence_z

    def update(
        self,
        members: Sequence[Member],
        warming: Sequence[Member],
        now_s: float,
        elapsed_s: float,
        periods: float,
        spread: Spread | None,
        queue_total: float,
    ) -> Steering:
        """One step for all nodes. *spread* is what the plan gives them now, *queue_total* the sum of known queues."""
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
            return Steering(None, 0.0, False, is_decaying)
        trusted = [member for member in fresh if not member.is_doubted]
        if len(trusted) * 2 < len(fresh):
            trusted = fresh  # a consumer that has called few of them yet
        load_ref = sum([member.load.load for member in trusted]) / len(trusted)  # type: ignore[misc]
        raw_ref = max(settings.domain_floor, sum([member.pressure for member in trusted]) / len(trusted))
        drowning = self._drowning(fresh, spread, queue_total)
        for member in drowning:
            self._leave_domain(member, now_s)
            self._step(member, 2.0 * load_ref, load_ref, periods)
            member.forget()
        has_stepped, has_decayed = self._step_all(fresh, load_ref, now_s, periods, decay)
        has_stepped = has_stepped or bool(drowning)
        for member in warming:
            load = member.load.load
            edge = load_ref + max(self._outer * load_ref, settings.domain_floor)
            if load is not None and load > edge and member.load.sampled_at_s >= fresh_from_s:
                self._step(member, load, load_ref, periods)
                has_stepped = True
        return Steering(load_ref, raw_ref, has_stepped, is_decaying or has_decayed)

    def _step_all(
        self, fresh: Sequence[Member], ref: float, now_s: float, periods: float, decay: float
    ) -> tuple[bool, bool]:
        """All at once and with as little as possible per node: this is the part of the tick that grows with n."""
        settings = self._settings
        least = settings.domain_floor / max(ref, settings.domain_floor)
        outer, inner = max(self._outer, least), max(self._inner, least / 2)
        certain = self._z**2
        has_stepped = is_decaying = False
        for member in fresh:
            count = member.reports
            if not count:
                continue
            total = member.excess_sum
            mean = total / member.mean_sum
            edge = inner if member.is_off_domain else outer
            if -edge <= mean <= edge:
                member.is_off_domain = False
            elif total * total > certain * count * member.noise:
                self._leave_domain(member, now_s)
                has_stepped = True
                self._step(member, ref * (1.0 + mean), ref, periods * min(count, _MOST_AT_ONCE))
                member.forget()
                continue
            log_w = member.log_w
            if log_w and -outer <= mean - log_w <= outer:
                log_w *= decay
                member.log_w = log_w if not -_NEUTRAL < log_w < _NEUTRAL else 0.0
                is_decaying = True
        return has_stepped, is_decaying

    def _drowning(self, members: Sequence[Member], spread: Spread | None, queue_total: float) -> list[Member]:
        if spread is None or self._is_calm:
            return []  # keys are not moved for a queue, which bounded load passes by
        base, ratio = spread.base, spread.ratio
        found = []
        for member in members:
            queue = member.queue
            if queue > _QUEUE_AT_LEAST:
                fair = base[member.place] * ratio[member.place] * queue_total
                if queue > 1.0 + _DROWNING * fair + _DROWNING_SIGMAS * math.sqrt(fair):
                    found.append(member)
        return found

    def _leave_domain(self, member: Member, now_s: float) -> None:
        if not member.is_off_domain:
            member.is_off_domain = True
            if not member.log_w or member.off_since_s is None:
                member.off_since_s = now_s

    def _step(self, member: Member, load: float, ref: float, periods: float) -> None:
        floor = self._settings.domain_floor
        error = max(-1.0, min(1.0, (ref - load) / max(ref, floor)))
        if error > 0.0 and member.is_doubted:
            error = -max(0.0, member.log_w)
        log_w = member.log_w + (1.0 - (1.0 - self._settings.gain) ** periods) * error
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
    measured a period late. It acts every period and asks for no evidence. What is refused goes to all others in
    proportion to B * w. Domain, decay and everything else are shared with the log-weight law.
    """

    def __init__(self, settings: DualSettings) -> None:
        super().__init__(replace(settings, evidence_z=0.0))

    def _drowning(self, members: Sequence[Member], spread: Spread | None, queue_total: float) -> list[Member]:
        return []

    def calm(self) -> None:
        """The published law knows nothing of keys."""

    def _step(self, member: Member, load: float, ref: float, periods: float) -> None:
        floor = self._settings.domain_floor
        ref, load, periods = max(ref, floor), max(load, floor), min(1.0, periods)
        if load > ref:
            log_w = member.log_w + periods * math.log(ref / load)
        else:
            refuse = (1.0 - math.exp(member.log_w)) * (1.0 + periods * (load - ref) / ref)
            log_w = math.log1p(-refuse) if refuse < 1.0 else self._low
        member.log_w = min(0.0, max(self._low, log_w))

    def recentre(self, members: Sequence[Member], total: float) -> None:
        """Ratios are absolute in this law."""
