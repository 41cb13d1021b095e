"""Meters: how loaded a node is, as a number; smaller is better. Each is half of a policy, a chooser is the other half.

Open calls are counted over the static weight, so that they come out in proportion to weights. Latencies are not: a big
node shows its size by being fast, and at equal latency a division would send it everything. A meter may be 0 for many
nodes at once (an idle fleet): choosers break ties by weight, never by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, sqrt
from typing import Any, Protocol

from steelyard.model import Outcome

from ..settings import check_range
from .trace import Traced

_OK, _FAILED, _IGNORED = Outcome.OK, Outcome.FAILED, Outcome.IGNORED


class Meter(Protocol):
    """``cost`` is read at every comparison; the other methods feed what the meter remembers in ``candidate.trace``."""

    def new_trace(self, now_s: float) -> Any: ...

    def cost(self, candidate: Traced, now_s: float) -> float: ...

    def started(self, candidate: Traced, now_s: float) -> None: ...

    def ended(
        self, candidate: Traced, outcome: Outcome, now_s: float, latency_s: float, is_transport: bool
    ) -> None: ...


class SteadyMeter(Meter, Protocol):
    """Its cost is a new one after a call began or ended, and otherwise only at a moment known beforehand. It counts
    open calls as every policy does, and is told of endings only."""

    def holds_until_s(self, candidate: Traced, now_s: float) -> float:
        """Whatever calls begin and end, no cost changes by time alone before this."""


class InFlight:
    """Own open calls over weight (Dubbo's leastactive; Envoy's and gRPC's least request).

    Always counting: Dubbo counts only where a filter was configured, and without it all nodes look idle.
    """

    def new_trace(self, now_s: float) -> Any:
        return None

    def cost(self, candidate: Traced, now_s: float) -> float:
        return candidate.in_flight / candidate.weight

    def holds_until_s(self, candidate: Traced, now_s: float) -> float:
        return inf

    def started(self, candidate: Traced, now_s: float) -> None:
        """Counted by every policy."""

    def ended(self, candidate: Traced, outcome: Outcome, now_s: float, latency_s: float, is_transport: bool) -> None:
        """Counted by every policy."""


class Constant(InFlight):
    """All alike: for choosers that go by order or zone alone."""

    def cost(self, candidate: Traced, now_s: float) -> float:
        return 0.0


@dataclass(slots=True)
class Elapsed:
    """Answers since ``begun_s`` and what they are charged together, in seconds."""

    begun_s: float
    count: int = 0
    total_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestResponseSettings:
    """``slide_s``: how long answers count before the average starts anew (Dubbo: 30 s; 1..3600). ``failure_s``: what a
    failed call is charged at least (Dubbo's default timeout, 1 s; 0..3600)."""

    slide_s: float = 30.0
    failure_s: float = 1.0

    def __post_init__(self) -> None:
        check_range("slide_s", self.slide_s, 1.0, 3600.0)
        check_range("failure_s", self.failure_s, 0.0, 3600.0)


class ResponseTime:
    """Mean latency times (open calls + 1): what the next call would wait (Dubbo's shortestresponse).

    Two things are not as in Dubbo, where a node without a success costs 0, so that one which fails everything, or has
    yet to answer, costs nothing and is sent everything (fleet of 10 at 80 % with one node three times slower: 2 % of
    the calls succeeded). Here a failed call counts as a wait of ``failure_s``, and a node that nothing is known of
    gets one call at a time.
    """

    _UNPROVEN_S = 1e6

    def __init__(self, settings: ShortestResponseSettings) -> None:
        self._slide_s = settings.slide_s
        self._failure_s = settings.failure_s

    def new_trace(self, now_s: float) -> Elapsed:
        return Elapsed(now_s)

    def cost(self, candidate: Traced, now_s: float) -> float:
        elapsed: Elapsed = candidate.trace
        open_calls = candidate.in_flight
        if not elapsed.count or now_s - elapsed.begun_s > self._slide_s:
            return self._UNPROVEN_S + open_calls if open_calls else 0.0
        return elapsed.total_s / elapsed.count * (open_calls + 1)

    def holds_until_s(self, candidate: Traced, now_s: float) -> float:
        elapsed: Elapsed = candidate.trace
        is_over = now_s - elapsed.begun_s > self._slide_s
        return (now_s if is_over else elapsed.begun_s) + self._slide_s

    def started(self, candidate: Traced, now_s: float) -> None:
        """Latency is what counts."""

    def ended(self, candidate: Traced, outcome: Outcome, now_s: float, latency_s: float, is_transport: bool) -> None:
        if outcome is _IGNORED:
            return
        elapsed: Elapsed = candidate.trace
        if now_s - elapsed.begun_s > self._slide_s:
            elapsed.begun_s, elapsed.count, elapsed.total_s = now_s, 0, 0.0
        least_s = 0.0 if outcome is _OK else self._failure_s
        elapsed.count += 1
        elapsed.total_s += latency_s if latency_s > least_s else least_s


@dataclass(slots=True)
class Peak:
    level_s: float = 0.0
    at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakEwmaSettings:
    """``decay_s``: time constant of forgetting (Finagle's decayTime: 10 s; 0.1..3600)."""

    decay_s: float = 10.0

    def __post_init__(self) -> None:
        check_range("decay_s", self.decay_s, 0.1, 3600.0)


class PeakEwma:
    """Latency average that jumps up with every peak and comes down slowly, times (open calls + 1) (Finagle's PeakEwma).

    All outcomes count, as in Finagle: the clock stops when the call is over, however it ended. So failing fast
    attracts here too. A node without history but with open calls is put last until the first answer.
    """

    _UNPROVEN_S = 1e6

    def __init__(self, settings: PeakEwmaSettings) -> None:
        self._decay_s = settings.decay_s

    def new_trace(self, now_s: float) -> Peak:
        return Peak(0.0, now_s)

    def cost(self, candidate: Traced, now_s: float) -> float:
        peak: Peak = candidate.trace
        if peak.level_s == 0.0:
            return self._UNPROVEN_S + candidate.in_flight if candidate.in_flight else 0.0
        age_s = now_s - peak.at_s
        level_s = peak.level_s * exp(-age_s / self._decay_s) if age_s > 0.0 else peak.level_s
        return level_s * (candidate.in_flight + 1)

    def started(self, candidate: Traced, now_s: float) -> None:
        """Latency is what counts."""

    def ended(self, candidate: Traced, outcome: Outcome, now_s: float, latency_s: float, is_transport: bool) -> None:
        peak: Peak = candidate.trace
        if latency_s > peak.level_s:
            peak.level_s = latency_s
        else:
            keep = exp(-max(0.0, now_s - peak.at_s) / self._decay_s)
            peak.level_s = peak.level_s * keep + latency_s * (1.0 - keep)
        peak.at_s = max(peak.at_s, now_s)


@dataclass(slots=True)
class Answered:
    """What Dubbo's AdaptiveMetrics keeps per provider. ``latency_s`` is the average over answers."""

    picked_at_s: float
    answered_at_s: float
    latency_s: float = 0.0
    sent: int = 0
    ok: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveSettings:
    """``timeout_s``: Dubbo's unit of impatience, its default timeout (1 s; 0.01..600): a node not picked for two of
    these is picked next, and one that does not answer for one of these is charged two."""

    timeout_s: float = 1.0

    def __post_init__(self) -> None:
        check_range("timeout_s", self.timeout_s, 0.01, 600.0)


class AdaptiveLoad:
    """Dubbo's adaptive:  cpu * (sqrt(latency_ms) + 1) * (open + 1) / (success_rate * weight + 1).

    cpu is the reported load. Dubbo reads a missing report as 0, which sends a silent node everything; here it is 1, so
    that the other factors decide.
    """

    def __init__(self, settings: AdaptiveSettings) -> None:
        self._timeout_s = settings.timeout_s

    def new_trace(self, now_s: float) -> Answered:
        return Answered(now_s, now_s)

    def cost(self, candidate: Traced, now_s: float) -> float:
        answered: Answered = candidate.trace
        timeout_s = self._timeout_s
        if now_s - answered.picked_at_s > 2 * timeout_s:
            return 0.0
        silent = (now_s - answered.answered_at_s) / timeout_s
        latency_s = answered.latency_s
        if silent > 1.0:
            # Nothing heard: halved for every timeout when nothing is owed, charged two timeouts when something is.
            owes = answered.picked_at_s > answered.answered_at_s
            latency_s = (latency_s + (2 * timeout_s if owes else latency_s * 0.5 ** min(silent, 60.0))) / 2
        load = candidate.load.load
        success = answered.ok / (answered.sent + 1)
        pressure = (1.0 if load is None else load) * (sqrt(latency_s * 1e3) + 1.0) * (candidate.in_flight + 1)
        return pressure / (success * candidate.weight + 1.0)

    def started(self, candidate: Traced, now_s: float) -> None:
        answered: Answered = candidate.trace
        answered.picked_at_s = now_s
        answered.sent += 1

    def ended(self, candidate: Traced, outcome: Outcome, now_s: float, latency_s: float, is_transport: bool) -> None:
        answered: Answered = candidate.trace
        answered.answered_at_s = now_s
        answered.latency_s = (answered.latency_s + (latency_s if latency_s > 0.0 else 0.0)) / 2
        if outcome is _OK:
            answered.ok += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AvailableSettings:
    """``failures`` (1..1000): so many failed calls in a row are as good as one that could not reach the node (Ribbon
    trips after 3 failed connections; what fails may be the caller's doing, so 5, as in ``dual`` and Envoy's outlier
    detection). ``retry_after_s`` (0..3600): how long a node is then passed over; doubles with every trial that fails,
    up to six times as long (Ribbon's longest: 30 s)."""

    retry_after_s: float = 5.0
    failures: int = 5

    def __post_init__(self) -> None:
        check_range("retry_after_s", self.retry_after_s, 0.0, 3600.0)
        check_range("failures", self.failures, 1, 1000)


@dataclass(slots=True)
class Doubt:
    """``failures`` in a row. ``stays_s``: for how long it is passed over, 0 while it is not; ``until_s``: till when."""

    failures: int = 0
    stays_s: float = 0.0
    until_s: float = 0.0


class Reachability:
    """0 for a node that is taken for available; else how long it is still passed over, so that the one whose time is
    over first is tried first.

    Dubbo and gRPC ask the connection. That is not enough: a node may be connected and answer nothing, or only errors,
    and would keep every call for ever. So failures in a row count as well. When its time is over a node is tried with
    one call; the others follow when that one has succeeded.
    """

    _LONGEST = 6.0
    _ON_TRIAL = 1e-6
    _ROUNDING_S = 1e-6

    def __init__(self, settings: AvailableSettings) -> None:
        self._retry_after_s = settings.retry_after_s
        self._failures = settings.failures

    def new_trace(self, now_s: float) -> Doubt:
        return Doubt()

    def cost(self, candidate: Traced, now_s: float) -> float:
        doubt: Doubt = candidate.trace
        if not doubt.stays_s:
            return 0.0
        if now_s < doubt.until_s:
            return doubt.until_s - now_s
        return self._ON_TRIAL if candidate.in_flight else 0.0

    def started(self, candidate: Traced, now_s: float) -> None:
        """Only endings tell."""

    def ended(self, candidate: Traced, outcome: Outcome, now_s: float, latency_s: float, is_transport: bool) -> None:
        doubt: Doubt = candidate.trace
        if outcome is _OK:
            doubt.failures, doubt.stays_s = 0, 0.0
        elif outcome is _FAILED:
            doubt.failures += 1
            if not doubt.stays_s:
                if is_transport or doubt.failures >= self._failures:
                    self._pass_over(doubt, self._retry_after_s, now_s)
            elif now_s - latency_s >= doubt.until_s - self._ROUNDING_S:  # a trial, not one of those under way before
                self._pass_over(doubt, min(2.0 * doubt.stays_s, self._LONGEST * self._retry_after_s), now_s)

    @staticmethod
    def _pass_over(doubt: Doubt, for_s: float, now_s: float) -> None:
        doubt.stays_s, doubt.until_s = for_s, now_s + for_s
