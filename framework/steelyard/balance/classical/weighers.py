"""Weighers: how much of the traffic a node should get. Each is half of a policy, a spreader is the other half.

None means "cannot say": such a node gets the mean of those that can (gRPC's rule), or static weights when nobody can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from steelyard.model import LoadReport

from ..load import NOT_STEERING, ReportState
from ..settings import check_range
from .trace import Traced


class Weigher(Protocol):
    """``is_live``: weights change without the members changing, so they are asked for at every tick."""

    is_live: bool

    def new_trace(self, now_s: float) -> Any: ...

    def weight(self, candidate: Traced, now_s: float) -> float | None: ...

    def reported(self, candidate: Traced, report: LoadReport, now_s: float) -> None: ...


class StaticWeight:
    """The weight in the registry."""

    is_live = False

    def new_trace(self, now_s: float) -> Any:
        return None

    def weight(self, candidate: Traced, now_s: float) -> float | None:
        return float(candidate.weight)

    def reported(self, candidate: Traced, report: LoadReport, now_s: float) -> None:
        """Static weights do not listen."""


class IdleCpu(StaticWeight):
    """Static weight times idle share (JD's RALB and many others): the baseline *without a fixed point*.

    At equal loads it still pushes, because the weight depends on the load itself and not on its distance from the
    others: where the loads settle depends on where they started. It is here to be measured beside laws that have one.
    """

    is_live = True
    _LEAST_IDLE = 0.01  # a node that says it is full still gets something, or it would never be seen to recover

    def weight(self, candidate: Traced, now_s: float) -> float | None:
        load = candidate.load.load
        if load is None or candidate.load.state(now_s) is ReportState.UNKNOWN:
            return None
        return candidate.weight * max(self._LEAST_IDLE, 1.0 - load)


@dataclass(slots=True)
class Reported:
    """A58's weight of a node, since when it reports without a gap, and when it last did."""

    weight: float = 0.0
    since_s: float = math.inf
    at_s: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedRoundRobinSettings:
    """gRFC A58's fields, with its defaults. ``blackout_s`` (0..3600): a node's weight is used once it has reported for
    this long. ``expiry_s`` (0..86400): without a report for this long the weight is forgotten. ``error_penalty``
    (0..1000): what an error rate of 1 adds to the utilization. ``outlier_ejection``: with gRFC A50's ejection or
    without.
    """

    blackout_s: float = 10.0
    expiry_s: float = 180.0
    error_penalty: float = 1.0
    outlier_ejection: bool = False

    def __post_init__(self) -> None:
        check_range("blackout_s", self.blackout_s, 0.0, 3600.0)
        check_range("expiry_s", self.expiry_s, 0.0, 86400.0)
        check_range("error_penalty", self.error_penalty, 0.0, 1000.0)


_LEAST_WEIGHT, _MOST_WEIGHT = 1e-30, 1e30  # so that sums and quotients are numbers, whatever a node says


class ReportedLoad:
    """gRFC A58:  weight = calls/s / (utilization + errors/s / calls/s * error_penalty).

    Rates are the provider's own where its report has them. Where it has not, this consumer's rates stand in for them:
    they say the same as long as all consumers spread their calls alike, which under this policy they nearly do.
    """

    is_live = True

    def __init__(self, settings: WeightedRoundRobinSettings) -> None:
        self._settings = settings

    def new_trace(self, now_s: float) -> Reported:
        return Reported()

    def weight(self, candidate: Traced, now_s: float) -> float | None:
        reported: Reported = candidate.trace
        if now_s - reported.at_s >= self._settings.expiry_s:
            reported.since_s = math.inf
            return None
        if now_s - reported.since_s < self._settings.blackout_s:
            return None
        return reported.weight

    def reported(self, candidate: Traced, report: LoadReport, now_s: float) -> None:
        utilization = max(
            (value for name, value in report.utilization.items() if name not in NOT_STEERING), default=0.0
        )
        calls, errors = self._rates(candidate, report, now_s)
        if utilization <= 0.0 or calls <= 0.0:
            return
        reported: Reported = candidate.trace
        if now_s - reported.at_s >= self._settings.expiry_s:
            reported.since_s = now_s
        reported.at_s = now_s
        weight = calls / (utilization + min(1.0, errors / calls) * self._settings.error_penalty)
        reported.weight = max(_LEAST_WEIGHT, min(weight, _MOST_WEIGHT))

    def _rates(self, candidate: Traced, report: LoadReport, now_s: float) -> tuple[float, float]:
        if report.calls_per_s is not None:
            return report.calls_per_s, report.errors_per_s or 0.0
        window = candidate.window
        window.advance(now_s)
        return float(window.ok + window.failed), float(window.failed)
