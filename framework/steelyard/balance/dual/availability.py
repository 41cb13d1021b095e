"""Stage 1 and 2: which nodes succeed less often than the cluster, and how much of their traffic they lose.

    A_cluster = sum(ok) / sum(ok + failed)
    A_i       = (ok_i + m * prior) / (ok_i + failed_i + m)        prior = A_cluster for a node in good standing
    band_i    = z * sqrt(A_cluster * (1 - A_cluster) / (n_i + m)) + 0.002

Below A_cluster - band_i, with D_i = (A_cluster - A_i) / A_cluster:

    kept_i <- kept_i * (1 - D_i) ** g_a              kept = 1 - refuse, never under the floor of exploration

Relative to the cluster and not to a fixed target: when a database behind all nodes fails, shedding any of them helps
nobody. Regimes: a dead node falls to the floor in one or two periods; one that is 2 % sicker needs some 160 calls to be
told from noise, loses about 5 % of its share then, and slides on ever more slowly as it gets fewer calls.

**Each failure is charged once.** A cut spends the outcomes it was made on (window.spend); the next one needs new
failures. The rejected alternative, multiplying every period by the same ten-second window, empties a slightly sick node
exponentially and keeps a healed one out until its failures have left the window, ten seconds later.

**A shed node is no longer presumed to be like the cluster.** Its prior becomes the rate it was shed for, and the way
back is a sequential probability ratio test (Wald 1945) of "healthy" (h) against "as sick as before" (s):

    log_odds += ok * log(h / s) + failed * log((1 - h) / (1 - s))

Over log(readmit_odds) with new successes: kept doubles, once a period, from at least the floor. For s = 0.5 that
takes four good calls, for s = 0 a single one, for s = 0.97 some 250; the false-admission rate is at most 1 in
readmit_odds each try, and a mistake costs one doubling of a few percent, since the first failures stop it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..statistics import Objective, Reason
from ..window import OutcomeWindow
from .member import NO_REASON, Member
from .settings import DualSettings

SHORT_BUCKETS = 2
# "Healthy" is never surer than this: at 1 - 1e-9 one unlucky failure would outweigh a hundred successes.
_SUREST = 0.99
_SICKEST = 0.05
# A share that never fell below this has hardly changed the node's load.
_HARDLY_SHED = 0.8


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the law needs to know of all nodes together. ``availability`` is A_cluster (1.0 without calls);
    ``calls_per_s`` this consumer's rate over the window."""

    availability: float
    calls_per_s: float
    judged: int


def look_at(window: OutcomeWindow, now_s: float, window_s: float) -> Fleet:
    """The fleet by the window that counts all members' calls. *window_s* is how much of it has been lived through."""
    window.advance(now_s)
    judged = window.ok + window.failed
    return Fleet(availability=window.ok / judged if judged else 1.0, calls_per_s=window.sent / window_s, judged=judged)


class AvailabilityLaw:
    def __init__(self, settings: DualSettings) -> None:
        self._settings = settings
        self._readmit_at = math.log(settings.readmit_odds)

    def update(self, member: Member, fleet: Fleet, now_s: float, periods: float) -> None:
        """Judge one node on what is new. *periods* since the last update, at most 1. Only nodes that are shed or had a
        failure since the last tick need it: a success alone cannot bring A_i below the band."""
        member.window.advance(now_s)
        ok, failed = member.new_ok, member.new_failed
        member.new_ok = member.new_failed = 0
        if member.is_ejected:
            return  # single probes decide, and their back-off rules
        if member.kept < 1.0:
            self._set_probing(member, fleet, now_s)
            self._weigh(member, fleet.availability, ok, failed)
            if failed and member.log_odds < 0.0:
                self._judge(member, fleet, now_s, prior=member.sick_rate)
            elif ok and member.log_odds >= self._readmit_at:
                self._readmit(member, fleet, now_s, periods)
        elif failed:
            # Without a new failure A_i cannot have fallen.
            self._judge(member, fleet, now_s, prior=fleet.availability)

    def floor(self, member: Member, fleet: Fleet) -> float:
        """The part of its fair share that an emptied node keeps, so that it can be seen to recover."""
        settings = self._settings
        fair_per_s = member.base * fleet.calls_per_s
        wanted = settings.explore_per_s / fair_per_s if fair_per_s > 0 else settings.max_explore
        return min(settings.max_explore, max(settings.min_explore, wanted))

    def empty(self, member: Member, fleet: Fleet, reason: Reason) -> None:
        """Down to the floor at once (ejection); the way back is the same as for any shed node."""
        member.kept = member.deepest = self.floor(member, fleet)
        member.sick_rate = _SICKEST
        member.reason = reason
        member.held_until_s = math.inf
        self._spend(member)

    def _judge(self, member: Member, fleet: Fleet, now_s: float, prior: float) -> None:
        settings = self._settings
        worst: float | None = None
        for buckets, z in ((10, settings.band_z), (SHORT_BUCKETS, settings.short_band_z)):
            ok, failed = member.window.evidence(buckets)
            rate = self._below(ok, failed, fleet.availability, prior, z)
            if rate is not None and (worst is None or rate < worst):
                worst = rate
        if worst is None:
            return
        # A cluster at 0 has nobody below it, so the division is safe.
        imbalance = (fleet.availability - worst) / fleet.availability
        member.kept = max(self.floor(member, fleet), member.kept * (1.0 - imbalance) ** settings.availability_gain)
        member.kept = min(member.kept, math.nextafter(1.0, 0.0))
        member.deepest = min(member.deepest, member.kept)
        member.sick_rate = max(_SICKEST, worst)
        member.held_until_s = math.inf
        since_s = member.reason.since_s if member.reason.objective is Objective.AVAILABILITY else now_s
        member.reason = Reason(
            objective=Objective.AVAILABILITY,
            imbalance=imbalance,
            since_s=since_s,
            text=f"succeeds {worst:.1%} where the cluster succeeds {fleet.availability:.1%}",
        )
        self._spend(member)
        self._set_probing(member, fleet, now_s)

    def _below(self, ok: int, failed: int, cluster: float, prior: float, z: float) -> float | None:
        """A_i if it is below the band, else None."""
        settings = self._settings
        weight = ok + failed + settings.prior_calls
        if failed <= 0 or weight <= 0:
            return None
        rate = (ok + settings.prior_calls * prior) / weight
        band = z * math.sqrt(cluster * (1.0 - cluster) / weight) + settings.band_floor
        return rate if rate < cluster - band else None

    def _weigh(self, member: Member, cluster: float, ok: int, failed: int) -> None:
        healthy = max(0.1, min(_SUREST, cluster))
        sick = min(member.sick_rate, healthy - 0.01)
        member.log_odds += ok * math.log(healthy / sick) + failed * math.log((1.0 - healthy) / (1.0 - sick))
        # Bounded, so that an hour of good behaviour does not buy minutes of failing, nor an outage of all a long exile.
        bound = 2.0 * self._readmit_at
        member.log_odds = max(-bound, min(bound, member.log_odds))

    def _readmit(self, member: Member, fleet: Fleet, now_s: float, periods: float) -> None:
        member.kept = max(member.kept, self.floor(member, fleet)) * 2.0**periods
        if member.kept >= 1.0:
            # By the deepest cut and not by the last step: from a floor of 0.1 the last step starts at 0.8.
            member.held_until_s = math.inf if member.is_warming else -math.inf
            if member.deepest < _HARDLY_SHED and not member.is_warming:
                member.hold(now_s, self._settings.hold_s)
            member.deepest = 1.0
            member.kept = 1.0
            member.probe_at_s = member.probe_every_s = math.inf
            member.reason = NO_REASON
        else:
            since_s = member.reason.since_s
            member.reason = Reason(objective=Objective.AVAILABILITY, since_s=since_s, text="recovering by evidence")

    def _spend(self, member: Member) -> None:
        member.window.spend()
        member.log_odds = 0.0

    def _set_probing(self, member: Member, fleet: Fleet, now_s: float) -> None:
        """Timed exploration beside the share: a node whose few keys are all refused, or whose share loses every draw,
        would otherwise never be seen again."""
        rate = self.floor(member, fleet) * member.base * fleet.calls_per_s
        member.probe_every_s = min(10.0, 1.0 / rate) if rate > 0 else 1.0
        member.probe_at_s = min(member.probe_at_s, now_s + member.probe_every_s)
