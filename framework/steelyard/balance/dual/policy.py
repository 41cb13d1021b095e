"""The dual-objective policy: availability first, then utilization, moving as few keys as that takes.

This file only connects the parts. Each law is a file: availability, ejection, utilization, warm_up say what f = w *
kept * ramp should be; plan turns f into shares, refuse ratios and accept weights; by_key reads the plan for a call
with a key, and ``_pick_free`` for one without.

Without a key: up to four choices, nodes drawn by p (in larger fleets the last is one that has just replied, see
``recent``), and the one with the smallest q / p gets the call, on a tie the first drawn. p is the slow loop (what a
node can carry), q the fast one (what it has to do right now). q is the in-flight count of the node's last *reply* plus
what was sent since: every reply is a free probe and consumers learn at different moments. Reports pushed to all at once
would make them herd, towards a short queue and away from a long one, so q is none of their business; what they tell of
a long queue makes its node take only a part of its draws (see ``latency``). q is kept until the next reply (a drowning
node answers nobody), and only halves every 15 s. Simulated, p99 of 20 nodes with neighbours and 100 consumers, where it
halves in 2, 5 and 15 s: 613, 470 and 450 ms (seed 2).

q / p and not (q + 1) / p: on an idle fleet the latter gives every draw to the node with the larger p, so that p = 3/4
takes 15/16 of the calls, and two equal nodes' shares jump as soon as their p differ at all, which the slow loop then
chases. Simulated, 1:2:4 fleet without keys, 10 consumers, (q + 1) / p against q / p at loads of .2, .6 and .9: p99 156
/ 157, 285 / 294 and 655 / 671 ms; loads settled in 40 / 12, 23 / 12 and 11 / 15 s.

What happens between two ticks is only counted (own calls are facts at once: they are in q and in the totals that
bounded load compares with). What a tick costs grows with n in one place, the utilization law; availability looks at
nodes with new failures and at shed ones, and the plan is made anew only when somebody is outside a domain or shed,
warming or back: a quiet cluster keeps its plan, and so its keys.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from operator import mul

from steelyard.model import LoadReport, Outcome
from steelyard_registry.node import Node

from ..candidate import Candidate
from ..draw import Dice
from ..hashing import mix64
from ..load import UNKNOWN_S, is_believable
from ..policy import PolicyBase
from ..ring import HashRing
from ..statistics import PolicyStatistics
from ..window import BUCKET_S, BUCKETS, OutcomeWindow
from . import explain
from .availability import AvailabilityLaw, Fleet, look_at
from .by_key import TWO48, KeyedPicker, least_loaded
from .ejection import EjectionLaw
from .hold import freeze, held
from .member import Member
from .plan import Plan, make_plan
from .recent import Recent, is_news_scarce
from .settings import DualSettings
from .told import Told
from .utilization import RatioLaw, UtilizationLaw
from .warm_up import apply_ramps, ramp

_OK = Outcome.OK
_REDRAWS = 6
_QUARTER = 4
_SAME_SAMPLE_S = 0.05
# Ratios are flows over their common sum. Dividing by a sum that changes with every step of anybody would move some keys
# of all; so the divisor stays while it is this nearly right.
_MOST_OFF_SCALE = 0.03
# Decay alone is put into effect every few periods: at a half-life of 90 s this is 4 % of a log weight at a time.
_PERIODS_PER_DECAY = 5.0


class Dual(PolicyBase[Member]):
    """Picks by the plan; learns in ``ended`` and ``report``; plans in ``tick`` and ``set_nodes``."""

    def __init__(self, settings: DualSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or DualSettings()
        self.name = "ratio" if self.settings.law == "ratio" else "dual"
        self.tau_s = self.settings.tau_s
        self.resources = self.settings.steering
        self._availability = AvailabilityLaw(self.settings)
        self._ejection = EjectionLaw(self.settings)
        self._utilization = (RatioLaw if self.settings.law == "ratio" else UtilizationLaw)(self.settings)
        self._by_key = KeyedPicker(self.settings.bound, self.settings.bound_sigmas)
        self._plan: Plan | None = None
        self._ring: HashRing | None = None
        self._weights: list[float] = []
        self._is_keyed = self._is_free = False
        self._window = OutcomeWindow()  # of all members together
        self._fleet = Fleet(availability=1.0, calls_per_s=0.0, judged=0)
        self._load_ref: float | None = None
        self._raw_ref = 0.0
        self._scale = 1.0  # of flows to ratios; 1 / sum(B * f) when it was last set
        self._is_panic = False
        self._panics = 0
        self._queue_total = 0.0
        self._queue_mean = 0.0
        self._told = Told(self.settings.slow_latency)
        # The published law is measured as it was published: two choices, and utilization alone.
        self._is_published = self.settings.law == "ratio"
        self._further = range(0)  # the draws of a pick beyond two
        self._recent = Recent()
        self._remembers = False  # so the last choice is not drawn
        # The few that need looking at, so that a tick need not look at all.
        self._failing: list[Member] = []
        self._shed: list[Member] = []
        self._warming: list[Member] = []
        self._is_stale = False  # the plan is
        self._held: float | None = None
        self._decayed_periods = 0.0
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
        spread, ring = plan.keyed, plan.ring
        if spread is None or ring is None:
            self._is_keyed = True
            self._utilization.calm()
            plan = self._replan(now_s)
            spread, ring = plan.keyed, plan.ring
            assert spread is not None
            assert ring is not None
        at = ring.owner(key)
        home = plan.members[at]
        if home.is_blocked or excluded:
            return self._pick_away(plan, now_s, dice, key, excluded, home)
        ratio = spread.ratio[at]
        if ratio < 1.0 and mix64(key ^ home.salt) >> 16 < (1.0 - ratio) * TWO48:
            if now_s < home.probe_at_s:
                return self._by_key.divert(plan, spread, key, excluded, self._queue_total)
            home.probe_at_s = now_s + home.probe_every_s
            return home
        if home.queue <= 1.0 or self._by_key.is_within(spread, home, self._queue_total):
            return home
        return self._by_key.walk(plan, spread, key, excluded, self._queue_total) or home

    def _pick_away(
        self, plan: Plan, now_s: float, dice: Dice, key: int, excluded: Collection[str], home: Member
    ) -> Member | None:
        """For a key whose home is ejected, or may be excluded."""
        spread = plan.keyed
        assert spread is not None
        is_allowed = home.identity not in excluded
        if is_allowed and (not home.is_blocked or self._ejection.may_probe(home, now_s, dice)):
            return home
        return self._by_key.divert(plan, spread, key, excluded, self._queue_total)

    def _pick_free(self, plan: Plan, now_s: float, dice: Dice, excluded: Collection[str]) -> Member | None:
        table = plan.table
        if table is None:
            self._is_free = True
            plan = self._replan(now_s)
            table = plan.table
            assert table is not None
        if now_s >= self._next_probe_at_s:
            probed = self._due_probe(now_s, dice, excluded)
            if probed is not None:
                return probed
        members, parts = plan.members, plan.parts
        if len(members) == 1 and not excluded and not members[0].is_blocked:
            return members[0]
        first_at, other_at = table.draw_two(dice)
        first, other = members[first_at], members[other_at]
        if first.passes + other.passes < 2.0 or excluded:
            drawn = self._draw_passing(plan, dice, excluded, (first_at, other_at))
            return self._recent.or_better(drawn, parts, dice, excluded) if self._remembers else drawn
        if other.queue * parts[first_at] < first.queue * parts[other_at]:
            first, first_at = other, other_at
        for _ in self._further:
            other_at = table.draw(dice)
            other = members[other_at]
            if other.queue * parts[first_at] < first.queue * parts[other_at] and (
                other.passes >= 1.0 or dice() < other.passes
            ):
                first, first_at = other, other_at
        return self._recent.or_better(first, parts, dice) if self._remembers else first

    def _choose(self) -> None:
        """How many choices a pick has, and whether the last of them is remembered. At most a quarter of the nodes are
        drawn: the shortest queue of half a fleet is the shortest queue, whatever the shares say. The fleet of
        ``bench_fleet`` in virtual time (four quotas and two devices), spread of its loads after 30 s, ten runs: 4
        choices .060, 2 choices .051 (.088 and .046 with other reports and another law)."""
        nodes = len(self.eligible)
        choices = 2 if self._is_published else min(self.settings.choices, max(2, nodes // _QUARTER))
        has_parts = self._is_free or not self._is_keyed
        self._remembers = choices > 2 and has_parts and is_news_scarce(self._fleet.calls_per_s, nodes)
        if not self._remembers:
            self._recent.forget()
        self._further = range(choices - (3 if self._remembers else 2))

    def _draw_passing(self, plan: Plan, dice: Dice, excluded: Collection[str], drawn: tuple[int, ...]) -> Member | None:
        """The same where draws may not count: those already *drawn*, a few redraws, then a scan."""
        assert plan.table is not None
        best: Member | None = None
        spare: Member | None = None
        best_score = 0.0
        found = 0
        enough = len(self._further) + 2
        for number in range(_REDRAWS + len(self._further)):
            at = drawn[number] if number < len(drawn) else plan.table.draw(dice)
            member = plan.members[at]
            if member.is_blocked or member.identity in excluded:
                continue
            if member.passes < 1.0 and dice() >= member.passes:
                spare = member
                continue
            score = member.queue / plan.parts[at]
            if best is None or score < best_score:
                best, best_score = member, score
            found += 1
            if found == enough:
                break
        return best or spare or least_loaded(plan, plan.leading, excluded)

    def _due_probe(self, now_s: float, dice: Dice, excluded: Collection[str]) -> Member | None:
        """A shed or ejected node whose time to be tried has come. Looks at shed nodes only, a few times a second and
        while there are any: ``_next_probe_at_s`` is infinite otherwise."""
        due: Member | None = None
        next_at_s = math.inf
        for member in self._shed:
            if not member.is_shed or member.place < 0:
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
        # What PolicyBase and the windows do, written out here and in ``ended``: this runs for every call, and each call
        # of a function costs as much as it does.
        assert isinstance(candidate, Member)
        candidate.in_flight += 1
        candidate.queue += 1.0
        window = candidate.window
        if now_s >= window.until_s:
            window.advance(now_s)
        window.sent += 1
        if candidate.is_member:
            self.open_calls += 1
            self._queue_total += 1.0
            window = self._window
            if now_s >= window.until_s:
                window.advance(now_s)
            window.sent += 1
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
        in_use = candidate.in_flight
        if outcome is _OK and in_use > 0 and candidate.is_member and not candidate.is_ejected:
            self._ended_well(candidate, now_s, in_use - 1, in_flight)
            return
        is_failed = outcome is Outcome.FAILED
        kept_queue = candidate.queue
        super().ended(candidate, outcome, now_s, latency_s=latency_s, in_flight=in_flight)
        if is_failed:
            # Failing fast must not look like being idle. The mean is a period old, and a spike fills queues faster:
            # without what is under way now, the failing are the shortest queues of all until the next tick.
            mean = max(self._queue_mean, self.open_calls / max(1, len(self.eligible)))
            candidate.queue = max(kept_queue - 1.0, mean + 1.0, float(candidate.in_flight))
        if not candidate.is_member:
            return
        self._queue_total += candidate.queue - kept_queue
        if is_failed:
            self._window.count_failed(now_s)
            if not candidate.new_failed:
                self._failing.append(candidate)
            candidate.new_failed += 1
            candidate.is_doubted = True
        elif outcome is Outcome.OK:
            self._window.count_ok(now_s)
            candidate.new_ok += 1
            candidate.is_doubted = False
        if not is_failed and not candidate.is_ejected:
            candidate.transport_failures = 0
        elif self._ejection.count(candidate, is_transport_failure=is_failed and is_transport):
            self._eject(candidate, now_s)
        elif candidate.is_ejected and outcome is not Outcome.IGNORED and not is_transport:
            self._ejection.readmit(candidate)
            candidate.probe_at_s = now_s
            self._next_probe_at_s = min(self._next_probe_at_s, now_s)

    def _ended_well(self, member: Member, now_s: float, own: int, told: int | None) -> None:
        """What becomes of nearly every call. *own* calls of this consumer are left, *told* is what the reply said."""
        member.in_flight = own
        before = member.queue
        queue = before - 1.0 if told is None or told < 0 else float(told)
        if queue < own:
            queue = float(own)
        member.queue = queue
        self._queue_total += queue - before
        self.open_calls -= 1
        window = member.window
        if now_s >= window.until_s:
            window.advance(now_s)
        window.ok += 1
        window = self._window
        if now_s >= window.until_s:
            window.advance(now_s)
        window.ok += 1
        member.new_ok += 1
        member.is_doubted = False
        member.transport_failures = 0
        if self._remembers and told is not None and member.place >= 0 and self._plan is not None:
            self._recent.heard(member, self._plan.parts, now_s)

    def report(self, address: str, report: LoadReport, now_s: float) -> None:
        if report.utilization:
            for member in self.at(address):
                self._note_stream(member, now_s)
        rejected = self.rejected_reports
        super().report(address, report, now_s)
        reference, settings = self._raw_ref, self.settings
        hears_queues = not self._is_keyed and not self._is_published and report.in_flight is not None
        if hears_queues and self.rejected_reports != rejected:
            hears_queues = is_believable(report)  # or else it is only frozen
        for member in self.at(address):
            signal = member.load
            member.pressure = signal.raw
            if hears_queues and abs(now_s - report.age_s - signal.sampled_at_s) < _SAME_SAMPLE_S:
                self._told.hear(member, report, self._load_ref or 0.0, now_s)
            if signal.repeats == 1:
                member.log_w_then = member.log_w
            if reference and signal.load is not None and member.held_until_s <= now_s:
                least_s = 0.5 * settings.period_s
                member.observe(member.pressure, reference, signal.sampled_at_s, least_s, settings.evidence_reports)

    def _note_stream(self, member: Member, now_s: float) -> None:
        """A report stream that begins anew, on a node that answered nothing meanwhile, is a process that restarted."""
        if math.isinf(member.load.sampled_at_s) or now_s - member.load.sampled_at_s <= UNKNOWN_S:
            return
        member.window.advance(now_s)
        if member.window.ok == 0 and member.load.repeats == 0:
            self._warm_again(member, now_s)

    def _warm_again(self, member: Member, now_s: float) -> None:
        if self.settings.warm_up_s > 0 and not member.is_warming:
            member.warm(now_s)
            self._warming.append(member)
            self._is_stale = True

    def _disbelieved(self, candidate: Member, now_s: float) -> None:
        # What it said since it began to repeat itself was no measurement, and the weight it led to is no weight.
        if candidate.log_w != candidate.log_w_then:
            candidate.log_w = candidate.log_w_then
            candidate.forget()
            self._is_stale = True

    def _eject(self, member: Member, now_s: float) -> None:
        if not member.is_ejected:
            if not member.is_shed:
                self._shed.append(member)
            self._availability.empty(member, self._fleet, self._ejection.reason(member, now_s))
            self._ejection.eject(member)
            self._judge_panic(now_s)
        self._ejection.eject(member)
        member.block(not self._is_panic)
        self._next_probe_at_s = -math.inf

    def hold_diversion(self, factor: float | None) -> None:
        """Active protection: from the next tick on diversion by availability keeps *factor* of its size and does not
        grow (see ``hold``). None frees it."""
        if factor != self._held:
            self._held, self._is_stale = factor, True

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
        self._fleet = look_at(self._window, now_s, lived_s)
        self._choose()
        self._decay_queues(elapsed_s)
        self._told.update(self.eligible, now_s, are_keyed=self._is_keyed)
        self._judge_members(now_s, periods)
        self._judge_panic(now_s)
        spread = self._plan.leading if self._plan is not None else None
        steering = self._utilization.update(
            self.eligible, self._warming, now_s, elapsed_s, periods, spread, self._queue_total
        )
        self._load_ref, self._raw_ref = steering.load_ref, steering.raw_ref
        self._next_probe_at_s = min((member.probe_at_s for member in self._shed), default=math.inf)
        if steering.is_decaying:
            self._decayed_periods += periods
        if (
            steering.has_stepped
            or self._shed
            or self._warming
            or self._is_stale
            or self._decayed_periods >= _PERIODS_PER_DECAY
        ):
            self._replan(now_s)

    def _decay_queues(self, elapsed_s: float) -> None:
        keep = 2.0 ** (-elapsed_s / self.settings.queue_half_life_s)
        total = 0.0
        for member in self.eligible:
            queue = member.queue
            if queue > member.in_flight:
                queue *= keep
                member.queue = queue = queue if queue > member.in_flight else float(member.in_flight)
            total += queue
        self._queue_total = total
        self._queue_mean = total / len(self.eligible)

    def _judge_members(self, now_s: float, periods: float) -> None:
        judged = {member: None for member in (*self._failing, *self._shed) if member.place >= 0}
        self._failing.clear()
        for member in judged:
            before = member.kept, member.sick_rate
            # What answered nothing since is not worth calling, however little evidence there is of it yet.
            is_frozen = self._held is not None and member.new_ok > 0
            self._availability.update(member, self._fleet, now_s, periods)
            if is_frozen:
                freeze(member, *before)
        shed = [member for member in judged if member.is_shed]
        self._is_stale = self._is_stale or len(shed) != len(self._shed)
        self._shed = shed

    def _judge_panic(self, now_s: float) -> None:
        """Panic: those below target hold more than ``panic_share`` of the weight, or those that are not below it fail
        more often than they succeed. Either way the comparison no longer tells whom to trust, and all are used. This is
        also why the last node is never emptied.

        The weight and not the base share: a ring never cuts two equal nodes into equal arcs, and one sick node of two
        would be a panic or not by the luck of its port (19 of 40 pairs stayed in panic for good)."""
        ok, failed = self._window.ok, self._window.failed
        below = 0.0
        for member in self._shed:
            if member.is_shed and member.place >= 0:
                member.window.advance(now_s)
                below += member.weight
                ok -= member.window.ok
                failed -= member.window.failed
        if below:
            below /= sum(member.weight for member in self.eligible)
        is_panic = below > self.settings.panic_share + 1e-9 or (
            failed > ok and ok + failed >= self.settings.prior_calls
        )
        if is_panic == self._is_panic:
            return
        self._panics += is_panic
        self._is_panic, self._is_stale = is_panic, True
        for member in self.eligible:
            member.block(member.is_ejected and not is_panic)

    def _replan(self, now_s: float) -> Plan:
        members = self.eligible
        self._is_stale = False
        self._decayed_periods = 0.0
        if self._is_keyed and self._ring is None:
            self._ring = self._make_ring()
        exp = math.exp
        flow = [exp(member.log_w) for member in members]
        base = self._ring.shares if self._ring is not None else self._weights
        self._utilization.recentre(members, sum(map(mul, base, flow)))
        if not self._is_panic:
            for member in self._shed:
                if member.place >= 0:
                    flow[member.place] *= held(member, self._held)
        ramps = [(member.place, ramp(member, now_s, self.settings)) for member in self._warming if member.place >= 0]
        if ramps:
            apply_ramps(base, flow, ramps)
            self._warming = [member for member in self._warming if member.is_warming and member.is_member]
        total = sum(map(mul, base, flow))
        if abs(total * self._scale - 1.0) > _MOST_OFF_SCALE:
            self._scale = 1.0 / total
        weights = self._weights if self._is_free or not self._is_keyed else None
        self._choose()
        self._plan = make_plan(members, flow, ring=self._ring, weights=weights, scale=self._scale)
        return self._plan

    def _make_ring(self) -> HashRing:
        """At the first call with a key, and from then on whenever the members change."""
        identities = [member.identity for member in self.eligible]
        weights = [member.weight for member in self.eligible]
        before = self._plan.ring if self._plan is not None else None
        if before is None:
            ring = HashRing(identities, weights, self.settings.virtual_nodes)
        else:
            ring = before.changed(identities, weights, self.settings.virtual_nodes)
        for member, share in zip(self.eligible, ring.shares, strict=True):
            member.base = share
        return ring

    # --- members ------------------------------------------------------------------------------------------------

    def _new_candidate(self, node: Node, now_s: float) -> Member:
        is_warming = self._first_seen_at_s is not None and self.settings.warm_up_s > 0
        member = Member(node, now_s, is_warming=is_warming)
        if is_warming:
            self._warming.append(member)
        return member

    def _updated(self, candidate: Member, node: Node, now_s: float) -> None:
        has_restarted = 0 < candidate.node.started_at_ms < node.started_at_ms
        super()._updated(candidate, node, now_s)
        if candidate.weight <= 0:
            candidate.place = -1
        if has_restarted:
            self._warm_again(candidate, now_s)

    def _left(self, candidate: Member, now_s: float) -> None:
        self._window.take_out(candidate.window, now_s)
        candidate.place = -1

    def _rebuild(self, now_s: float) -> None:
        # ``is_shed``, written out: each turn here is taken for ten thousand nodes when one of them changes.
        self._shed = [member for member in self.eligible if member.kept < 1.0 or member.is_ejected]
        self._warming = [member for member in self._warming if member.is_member]
        self._ring = None
        self._recent.forget()
        if not self.eligible:
            self._plan = None
            self._queue_total = 0.0
            return
        if self._first_seen_at_s is None:
            self._first_seen_at_s = now_s
        weights = [member.weight for member in self.eligible]
        total = sum(weights)
        self._weights = [weight / total for weight in weights]
        for place, (member, share) in enumerate(zip(self.eligible, self._weights, strict=True)):
            member.place = place
            member.base = share
        self._queue_total = sum([member.queue for member in self.eligible])
        self._judge_panic(now_s)
        self._replan(now_s)

    def statistics(self, now_s: float) -> PolicyStatistics:
        for member in self.candidates.values():
            member.window.advance(now_s)
        fleet = look_at(self._window, now_s, BUCKETS * BUCKET_S)
        return PolicyStatistics(
            policy=self.name,
            nodes=explain.nodes(
                self.candidates.values(),
                self._plan,
                now_s,
                sent=self._sent(),
                load_ref=self._load_ref,
                told=self._told,
                resources=self.resources,
            ),
            availability=fleet.availability if fleet.judged else None,
            load_ref=self._load_ref,
            is_panic=self._is_panic,
            panics=self._panics,
            diverted_fraction=self._plan.leading.diverted if self._plan is not None else 0.0,
            rejected_reports=self.rejected_reports,
            open_calls=self.open_calls,
        )
