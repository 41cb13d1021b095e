"""The dual-objective policy: availability first, then utilization, moving as few keys as that takes.

This file only connects the parts. Each law is a file: availability, ejection, utilization, warm_up say what f = w *
kept * ramp should be; plan turns f into shares, refuse ratios and accept weights; by_key reads the plan for a call
with a key, and ``_pick_free`` for one without.

Without a key: two nodes drawn by p, and the one with the smaller (q + 1) / p gets the call. p is the slow loop (what a
node can carry), q the fast one (what it has to do right now). q is the in-flight count of the node's last *reply* plus
what was sent since: every reply is a free probe and consumers learn at different moments; reports pushed to all at
once make them herd. It is kept until the next reply (a drowning node answers nobody), and only halves every 5 s.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from steelyard.model import Outcome
from steelyard_registry.node import Node

from ..candidate import Candidate
from ..draw import Dice
from ..hashing import mix64
from ..policy import PolicyBase
from ..ring import HashRing
from ..statistics import PolicyStatistics
from ..window import BUCKET_S, BUCKETS
from . import explain
from .availability import AvailabilityLaw, Fleet, look_at
from .by_key import KeyedPicker, least_loaded
from .ejection import EjectionLaw
from .member import Member
from .plan import Plan, make_plan
from .settings import DualSettings
from .utilization import UtilizationLaw
from .warm_up import ramp

_REDRAWS = 6


class Dual(PolicyBase[Member]):
    """Picks by the plan; learns in ``ended`` and ``report``; plans in ``tick`` and ``set_nodes``."""

    name = "dual"
    settings_type = DualSettings

    def __init__(self, settings: DualSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or DualSettings()
        self.tau_s = self.settings.tau_s
        self.resources = self.settings.resources
        self._availability = AvailabilityLaw(self.settings)
        self._ejection = EjectionLaw(self.settings)
        self._utilization = UtilizationLaw(self.settings)
        self._by_key = KeyedPicker(self.settings.bound, self.settings.bound_sigmas)
        self._plan: Plan | None = None
        self._ring: HashRing | None = None
        self._is_keyed = False
        self._fleet = Fleet(availability=1.0, calls_per_s=0.0, judged=0)
        self._load_ref: float | None = None
        self._is_panic = False
        self._panics = 0
        self._held: float | None = None
        self._queue_total = 0.0
        self._queue_mean = 0.0
        self._next_probe_at_s = math.inf
        self._first_seen_at_s: float | None = None
        self._ticked_at_s: float | None = None

    # --- picking ------------------------------------------------------------------------------------------------

    def pick(self, now_s: float, dice: Dice, key: int | None = None, excluded: Collection[str] = ()) -> Member | None:
        plan = self._plan
        if plan is None:
            return None
        if key is None:
            return self._pick_free(plan, now_s, dice, excluded)
        if plan.ring is None:
            plan = self._build_ring(now_s)
        spread, ring = plan.keyed, plan.ring
        assert spread is not None
        assert ring is not None
        home = plan.members[ring.owner(key)]
        limit = spread.refuse_below[home.place]
        open_calls = self._queue_total
        if open_calls < self.open_calls:
            open_calls = self.open_calls
        if excluded and home.identity in excluded:
            return self._by_key.divert(plan, spread, key, excluded, open_calls)
        if home.is_blocked:
            if self._ejection.may_probe(home, now_s, dice):
                return home
            return self._by_key.divert(plan, spread, key, excluded, open_calls)
        if limit and mix64(key ^ home.salt) < limit:
            if now_s < home.probe_at_s:
                return self._by_key.divert(plan, spread, key, excluded, open_calls)
            home.probe_at_s = now_s + home.probe_every_s
            return home
        if home.queue <= 1.0 or self._by_key.is_within(spread, home, open_calls):
            return home
        return self._by_key.walk(plan, spread, key, excluded, open_calls) or home

    def _pick_free(self, plan: Plan, now_s: float, dice: Dice, excluded: Collection[str]) -> Member | None:
        if now_s >= self._next_probe_at_s:
            probed = self._due_probe(plan, now_s, dice, excluded)
            if probed is not None:
                return probed
        members, shares, draw = plan.members, plan.free.shares, plan.table.draw
        first_at, other_at = draw(dice), draw(dice)
        first, other = members[first_at], members[other_at]
        if first.is_blocked or other.is_blocked or excluded:
            return self._draw_allowed(plan, dice, excluded)
        if (other.queue + 1.0) * shares[first_at] < (first.queue + 1.0) * shares[other_at]:
            return other
        return first

    def _draw_allowed(self, plan: Plan, dice: Dice, excluded: Collection[str]) -> Member | None:
        """Two choices among those that are left: a few redraws, then a scan."""
        best: Member | None = None
        best_score = 0.0
        found = 0
        for _ in range(_REDRAWS):
            at = plan.table.draw(dice)
            member = plan.members[at]
            if member.is_blocked or member.identity in excluded:
                continue
            score = (member.queue + 1.0) / plan.free.shares[at]
            if best is None or score < best_score:
                best, best_score = member, score
            found += 1
            if found == 2:
                break
        return best or least_loaded(plan, plan.free, excluded)

    def _due_probe(self, plan: Plan, now_s: float, dice: Dice, excluded: Collection[str]) -> Member | None:
        """A shed or ejected node whose time to be tried has come. O(n), but only a few times a second and only while
        some node is shed: ``_next_probe_at_s`` is infinite otherwise."""
        due: Member | None = None
        next_at_s = math.inf
        for member in plan.members:
            if not member.is_shed:
                continue
            if due is None and member.identity not in excluded:
                if member.is_blocked:
                    if self._ejection.may_probe(member, now_s, dice):
                        due = member
                elif now_s >= member.probe_at_s:
                    member.probe_at_s = now_s + member.probe_every_s
                    due = member
            # An ejected node that waits for its open calls to end is looked at again a little later.
            next_at_s = min(next_at_s, max(member.probe_at_s, now_s + 0.05))
        self._next_probe_at_s = next_at_s
        return due

    # --- learning -----------------------------------------------------------------------------------------------

    def started(self, candidate: Candidate, now_s: float) -> None:
        super().started(candidate, now_s)
        assert isinstance(candidate, Member)
        if candidate.kept < 1.0 and not candidate.is_ejected:
            candidate.probe_at_s = now_s + candidate.probe_every_s

    def ended(
        self,
        candidate: Candidate,
        outcome: Outcome,
        now_s: float,
        *,
        latency_s: float,
        in_flight: int | None = None,
        is_transport: bool = False,
    ) -> None:
        assert isinstance(candidate, Member)
        is_failed = outcome is Outcome.FAILED
        kept_queue = candidate.queue
        super().ended(candidate, outcome, now_s, latency_s=latency_s, in_flight=in_flight)
        if is_failed:
            candidate.new_failed += 1
            # Failing fast must not look like being idle.
            candidate.queue = max(kept_queue - 1.0, self._queue_mean + 1.0, float(candidate.in_flight))
        elif outcome is Outcome.OK:
            candidate.new_ok += 1
        if not candidate.is_member:
            return
        if self._ejection.count(candidate, is_transport_failure=is_failed and is_transport):
            self._eject(candidate, now_s)
        elif candidate.is_ejected and outcome is not Outcome.IGNORED and not is_transport:
            self._ejection.readmit(candidate)
            candidate.probe_at_s = now_s
            self._next_probe_at_s = min(self._next_probe_at_s, now_s)

    def _eject(self, member: Member, now_s: float) -> None:
        if not member.is_ejected:
            self._availability.empty(member, self._fleet, self._ejection.reason(member, now_s))
            self._ejection.eject(member)
            self._judge_panic()
        self._ejection.eject(member)
        member.is_blocked = not self._is_panic
        self._next_probe_at_s = -math.inf

    # --- planning -----------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        if self._first_seen_at_s is None or not self.eligible:
            self._ticked_at_s = now_s
            return
        before_s = self._ticked_at_s if self._ticked_at_s is not None else now_s - self.settings.period_s
        elapsed_s = max(0.0, now_s - before_s)
        self._ticked_at_s = now_s
        # A late tick is one step and not several: the signals have not been seen in between.
        periods = min(1.0, elapsed_s / self.settings.period_s)
        lived_s = min(BUCKETS * BUCKET_S, max(1.0, now_s - self._first_seen_at_s))
        self._fleet = look_at(self.eligible, now_s, lived_s)
        self._decay_queues(elapsed_s)
        for member in self.eligible:
            if member.new_ok or member.new_failed or member.kept < 1.0:
                before = member.kept
                self._availability.update(member, self._fleet, now_s, periods)
                if self._held is not None and member.sick_rate >= 0.5:
                    member.kept = max(member.kept, before)
        self._judge_panic()
        self._load_ref = self._utilization.update(self.eligible, now_s, elapsed_s, periods)
        self._next_probe_at_s = min((member.probe_at_s for member in self.eligible if member.is_shed), default=math.inf)
        self._make_plan(now_s)

    def _decay_queues(self, elapsed_s: float) -> None:
        keep = 2.0 ** (-elapsed_s / self.settings.queue_half_life_s)
        total = 0.0
        for member in self.eligible:
            if member.queue > member.in_flight:
                member.queue = max(member.queue * keep, float(member.in_flight))
            total += member.queue
        self._queue_total = total
        self._queue_mean = total / len(self.eligible)

    def _judge_panic(self) -> None:
        """Panic: those below target hold more than ``panic_share`` of the base, or those that are not below it fail
        more often than they succeed. Either way the comparison no longer tells whom to trust, and all are used. This is
        also why the last node is never emptied."""
        below = 0.0
        ok = failed = 0
        for member in self.eligible:
            if member.is_shed:
                below += member.base
            else:
                ok += member.window.ok
                failed += member.window.failed
        is_panic = below > self.settings.panic_share + 1e-9 or (
            failed > ok and ok + failed >= self.settings.prior_calls
        )
        if is_panic and not self._is_panic:
            self._panics += 1
        if is_panic != self._is_panic:
            for member in self.eligible:
                member.is_blocked = member.is_ejected and not is_panic
        self._is_panic = is_panic

    def _make_plan(self, now_s: float) -> None:
        members = self.eligible
        ramps = [ramp(member, now_s, self.settings) for member in members]
        flow = [
            math.exp(member.log_w) * self._kept(member) * part
            for member, part in zip(members, ramps, strict=True)
        ]
        plan = self._plan
        if plan is not None and plan.ring is self._ring and plan.flow == tuple(flow):
            return  # a quiet cluster keeps its plan, and so its keys
        self._plan = make_plan(members, self._ring, flow, ramps)

    def hold_diversion(self, factor: float | None) -> None:
        """Active protection, level 1: from the next tick on, diversion by availability keeps *factor* of its size and
        does not grow; None frees it. Only as far as that relieves the healthy: a call to a node that succeeds with a
        spares them a, and costs them a retry with 1 - a, so a node gains 2a - 1 of the relief, and a dead one none."""
        self._held = factor

    def _kept(self, member: Member) -> float:
        if self._is_panic:
            return 1.0
        if self._held is None or member.kept >= 1.0:
            return member.kept
        relief = (1.0 - self._held) * max(0.0, 2.0 * member.sick_rate - 1.0)
        return 1.0 - (1.0 - member.kept) * (1.0 - relief)

    def _build_ring(self, now_s: float) -> Plan:
        """At the first call with a key, and from then on whenever the members change."""
        self._is_keyed = True
        self._ring = HashRing(
            [member.identity for member in self.eligible],
            [member.weight for member in self.eligible],
            self.settings.virtual_nodes,
        )
        for member, share in zip(self.eligible, self._ring.shares, strict=True):
            member.base = share
        self._make_plan(now_s)
        assert self._plan is not None
        return self._plan

    def _new_candidate(self, node: Node, now_s: float) -> Member:
        is_warming = self._first_seen_at_s is not None and self.settings.warm_up_s > 0
        return Member(node, now_s, is_warming=is_warming)

    def _rebuild(self, now_s: float) -> None:
        if not self.eligible:
            self._plan = None
            return
        if self._first_seen_at_s is None:
            self._first_seen_at_s = now_s
        total = sum(member.weight for member in self.eligible)
        for place, member in enumerate(self.eligible):
            member.place = place
            member.base = member.weight / total
        self._plan = self._ring = None
        if self._is_keyed:
            self._build_ring(now_s)
        self._judge_panic()
        self._make_plan(now_s)

    def statistics(self, now_s: float) -> PolicyStatistics:
        for member in self.candidates.values():
            member.window.advance(now_s)
        fleet = look_at(self.candidates.values(), now_s, BUCKETS * BUCKET_S)
        return PolicyStatistics(
            policy=self.name,
            nodes=explain.nodes(self.candidates.values(), self._plan, now_s, sent=self._sent()),
            availability=fleet.availability if fleet.judged else None,
            load_ref=self._load_ref,
            is_panic=self._is_panic,
            panics=self._panics,
            diverted_fraction=self._plan.leading.diverted if self._plan is not None else 0.0,
            rejected_reports=self.rejected_reports,
            open_calls=self.open_calls,
        )
