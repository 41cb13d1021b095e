"""Prequal: probing to reduce queuing and latency (Wydrowski, Kleinberg, Rumble, Archer, NSDI 2024; arXiv 2312.10172).

Nodes are asked, asynchronously and a few per call, how many calls they have in flight and how long a call takes them at
that number. Answers wait in a small pool; each call takes its node from the pool by the hot-cold lexicographic rule: a
probe is *hot* when its in-flight count exceeds the ``hot_quantile`` of those seen lately. Among cold ones the lowest
latency wins; when all are hot, the lowest in-flight count.

Probes age (1 s), are used a few times only, count the calls that we sent there since, and are taken out at a steady
rate, the oldest and the worst in turn: a pool from which only good ones are used would fill up with bad ones.

Who uses this policy asks ``probes()`` after each call and about once a second, sends those probes, and hands the
answers to ``probed()``. Until two answers are in the pool calls are spread at random, as in the paper. Its defence
against nodes that fail fast is described there without numbers and is not built.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from steelyard_registry.node import Node

from ..candidate import Candidate
from ..draw import Dice
from ..policy import PolicyBase
from ..settings import check_range
from .spreaders import Draw
from .trace import Traced

_RECENT = 128  # in-flight counts that the quantile is taken of: some eight pools
_MOST_USES = 1_000
_PROBES_AT_ONCE = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrequalSettings:
    """The paper's parameters and baseline values.

    ``pool_size`` m (2..1024); ``probe_rate`` probes a call (0..100); ``remove_rate`` probes taken out a call (0..100);
    ``hot_quantile`` Q_RIF (0..1; 1 calls nothing hot, which is latency control); ``max_age_s`` (0.01..600);
    ``net_gain`` delta (0..100), how much faster than they are used up probes are to come in; ``idle_probe_s``
    (0.01..600): a consumer without calls sends a probe this often.
    """

    pool_size: int = 16
    probe_rate: float = 3.0
    remove_rate: float = 1.0
    hot_quantile: float = 2.0**-0.25
    max_age_s: float = 1.0
    net_gain: float = 1.0
    idle_probe_s: float = 1.0

    def __post_init__(self) -> None:
        check_range("pool_size", self.pool_size, 2, 1024)
        check_range("probe_rate", self.probe_rate, 0.0, 100.0)
        check_range("remove_rate", self.remove_rate, 0.0, 100.0)
        check_range("hot_quantile", self.hot_quantile, 0.0, 1.0)
        check_range("max_age_s", self.max_age_s, 0.01, 600.0)
        check_range("net_gain", self.net_gain, 0.0, 100.0)
        check_range("idle_probe_s", self.idle_probe_s, 0.01, 600.0)


class Probe(msgspec.Struct, eq=False, gc=False):
    """An answer in the pool. ``in_flight`` grows with the calls sent there since.

    A Struct because three are made for every call, and are made in C. Nothing holds one but the pool.
    """

    candidate: Traced
    at_s: float
    in_flight: int
    latency_s: float
    uses_left: int


_IN_FLIGHT, _LATENCY = attrgetter("in_flight"), attrgetter("latency_s")


class Prequal(PolicyBase[Traced]):
    name = "prequal"

    def __init__(self, settings: PrequalSettings | None = None) -> None:
        super().__init__()
        self._settings = settings or PrequalSettings()
        self._pool: list[Probe] = []  # as they came: the oldest first
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        self._fallback = Draw()
        self._probes_owed = 0.0
        self._removals_owed = 0.0
        self._uses = self._uses_of_one()
        self._uses_owed = 0.0
        self._removes_oldest = True
        self._probed_at_s = -math.inf

    def pick(self, now_s: float, dice: Dice, key: int | None = None, excluded: Collection[str] = ()) -> Traced | None:
        if not self.eligible:
            return None
        self._expire(now_s)
        pool = self._pool
        if excluded:
            pool = [probe for probe in pool if probe.candidate.identity not in excluded]
        if len(pool) < 2 and (not pool or len(self.eligible) > 1):
            return self._fallback.pick(now_s, dice, None, excluded)
        hot_above = self._hot_above()
        best: Probe | None = None
        shortest_s = math.inf
        for probe in pool:
            if probe.in_flight <= hot_above and probe.latency_s < shortest_s:
                best, shortest_s = probe, probe.latency_s
        if best is None:  # all are hot
            best = min(pool, key=_IN_FLIGHT)
        return best.candidate

    def started(self, candidate: Candidate, now_s: float) -> None:
        PolicyBase.started(self, candidate, now_s)
        settings = self._settings
        self._probes_owed = min(self._probes_owed + settings.probe_rate, _PROBES_AT_ONCE)
        used: Probe | None = None
        for probe in self._pool:
            if probe.candidate is candidate:
                probe.in_flight += 1
                used = used or probe
        if used is not None:
            used.uses_left -= 1
            if used.uses_left <= 0:
                self._pool.remove(used)
        self._removals_owed += settings.remove_rate
        while self._removals_owed >= 1.0:
            self._removals_owed -= 1.0
            self._remove_one()

    def probes(self, now_s: float, dice: Dice) -> Sequence[Traced]:
        """The nodes to be probed now: different ones, drawn uniformly."""
        if self._probes_owed < 1.0 and now_s - self._probed_at_s >= self._settings.idle_probe_s:
            self._probes_owed = 1.0
        owed, eligible = int(self._probes_owed), self.eligible
        count = min(owed, len(eligible))
        if count <= 0:
            return ()
        self._probes_owed -= owed
        self._probed_at_s = now_s
        # Floyd's sample: `count` different places in `count` steps, whatever the number of nodes.
        places: set[int] = set()
        for top in range(len(eligible) - count, len(eligible)):
            at = int(dice() * (top + 1))
            places.add(top if at in places else at)
        return [eligible[at] for at in sorted(places)]

    def probed(self, candidate: Candidate, now_s: float, *, in_flight: int, latency_s: float) -> None:
        """*candidate* has answered a probe. An answer that makes no sense, or of a node that has left, is dropped."""
        if not candidate.is_member or in_flight < 0 or not 0.0 <= latency_s < math.inf:
            return
        assert isinstance(candidate, Traced)
        pool, recent = self._pool, self._recent
        if len(pool) >= self._settings.pool_size:
            del pool[0]
        self._uses_owed += self._uses
        uses = int(self._uses_owed)
        self._uses_owed -= uses
        pool.append(Probe(candidate, now_s, in_flight, latency_s, uses))
        recent.append(in_flight)
        insort(self._sorted, in_flight)
        if len(recent) > _RECENT:
            del self._sorted[bisect_left(self._sorted, recent.popleft())]

    def _uses_of_one(self) -> float:
        """b_reuse = max(1, (1 + delta) / ((1 - m/n) * r_probe - r_remove)), which keeps the pool full; a fraction is
        carried over from probe to probe."""
        settings = self._settings
        left = 1.0 - settings.pool_size / max(1, len(self.eligible))
        rate = left * settings.probe_rate - settings.remove_rate
        if rate <= 0.0:
            # Fewer probes come in than go out unused: with few nodes each probe soon has a fresher one beside it.
            return 1.0 if left <= 0.0 else float(_MOST_USES)
        return min(float(_MOST_USES), max(1.0, (1.0 + settings.net_gain) / rate))

    def _hot_above(self) -> float:
        if self._settings.hot_quantile >= 1.0 or not self._sorted:
            return math.inf
        if self._settings.hot_quantile <= 0.0:
            return -1.0
        return self._sorted[int(self._settings.hot_quantile * (len(self._sorted) - 1))]

    def _expire(self, now_s: float) -> None:
        oldest_s = now_s - self._settings.max_age_s
        if self._pool and self._pool[0].at_s < oldest_s:
            self._pool = [probe for probe in self._pool if probe.at_s >= oldest_s]

    def _remove_one(self) -> None:
        if not self._pool:
            return
        if self._removes_oldest:
            del self._pool[0]
        else:
            gone = max(self._pool, key=_IN_FLIGHT)
            if gone.in_flight <= self._hot_above():  # none is hot
                gone = max(self._pool, key=_LATENCY)
            self._pool.remove(gone)
        self._removes_oldest = not self._removes_oldest

    def _new_candidate(self, node: Node, now_s: float) -> Traced:
        return Traced(node, now_s)

    def _rebuild(self, now_s: float) -> None:
        self._pool = [probe for probe in self._pool if probe.candidate.is_member and probe.candidate.weight > 0]
        self._uses = self._uses_of_one()
        if self.eligible:
            self._fallback.set_weights(self.eligible, [float(member.weight) for member in self.eligible])


class LatencyByLoad:
    """The provider's half: the latency a probe is answered with, the median of recent ones at a similar in-flight
    count.

    Counts are similar when they differ by less than a fifth (buckets of a quarter of an octave); each bucket keeps the
    16 newest latencies, and an empty one is answered by the nearest that is not.
    """

    _KEPT = 16

    def __init__(self) -> None:
        self._buckets: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}  # of the buckets that have not changed since they were asked

    def observe(self, in_flight: int, latency_s: float) -> None:
        """A call that found *in_flight* others when it arrived took *latency_s*."""
        bucket = _FIRST[in_flight] if 0 <= in_flight < _FIRST_COUNTS else _bucket(in_flight)
        kept = self._buckets.get(bucket)
        if kept is None:
            kept = self._buckets[bucket] = deque(maxlen=self._KEPT)
        kept.append(latency_s)
        self._medians.pop(bucket, None)

    def estimate(self, in_flight: int) -> float:
        """Seconds; 0 before the first call, so that a new node is tried."""
        if not self._buckets:
            return 0.0
        bucket = _FIRST[in_flight] if 0 <= in_flight < _FIRST_COUNTS else _bucket(in_flight)
        if bucket not in self._buckets:
            bucket = min(self._buckets, key=lambda one: (abs(one - bucket), one))
        median_s = self._medians.get(bucket)
        if median_s is None:
            ordered = sorted(self._buckets[bucket])
            middle = len(ordered) // 2
            median_s = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
            self._medians[bucket] = median_s
        return median_s


def _bucket(in_flight: int) -> int:
    return int(4.0 * math.log2(max(0, in_flight) + 1))


# Each call of a provider looks one up.
_FIRST_COUNTS = 256
_FIRST = tuple(map(_bucket, range(_FIRST_COUNTS)))
