"""What protection says of itself: frozen records that statistics, logs, tests and bug reports read alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class Level(IntEnum):
    """What is in force; each level includes those below it.

    HOLD: diversion by availability is halved and frozen. DEGRADE: calls are degraded by priority, and hedges stop.
    NO_RETRY: retries stop too."""

    NONE = 0
    HOLD = 1
    DEGRADE = 2
    NO_RETRY = 3


class Admission(StrEnum):
    """The answer to one call. PROBE passes although its priority is being degraded, to see whether that is still
    needed. The others are not sent: DEGRADE_FAILING because calls fail, DEGRADE_WAITING because it would not be
    answered in time."""

    PASS = "pass"
    PROBE = "probe"
    DEGRADE_FAILING = "failing"
    DEGRADE_WAITING = "waiting"

    @property
    def is_sent(self) -> bool:
        return self in (Admission.PASS, Admission.PROBE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionEvent:
    """A change of level: when (on the caller's clock), from where to where, and the numbers that decided it.

    ``short`` and ``long`` are the success of the watched nodes over 5 s and 30 s; ``degraded_share`` is what was
    degraded in the last period."""

    at_s: float
    before: Level
    level: Level
    reason: str
    short: float | None = None
    long: float | None = None
    degraded_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitStatistics:
    """One method's queue as this consumer sees it: calls under way, answers per second, the mean latency of the last
    tenth of a second, what the method takes without a queue, and what a call sent now would take."""

    in_flight: int
    rate_per_s: float
    recent_s: float
    base_s: float | None
    expected_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionStatistics:
    """Everything that explains the next admission.

    ``since_s``: when this level began. ``short``, ``long``, ``goal``, ``band``: see ``trend``. ``watched_nodes`` of
    ``nodes`` are at or above the cluster's availability. ``degraded_share`` is planned because calls fail (``chances``
    of each priority); ``last_degraded_share`` is what was degraded in the last period, for whatever reason. The counts
    are since the start: calls asked for, degraded by reason and by priority, and probes."""

    level: Level
    since_s: float | None
    reason: str
    short: float | None = None
    long: float | None = None
    goal: float = 1.0
    band: float = 0.0
    watched_nodes: int = 0
    nodes: int = 0
    degraded_share: float = 0.0
    last_degraded_share: float = 0.0
    chances: Mapping[int, float] = field(default_factory=dict)
    asked: int = 0
    degraded_failing: int = 0
    degraded_waiting: int = 0
    degraded_by_priority: Mapping[int, int] = field(default_factory=dict)
    probes: int = 0
    waits: Mapping[str, WaitStatistics] = field(default_factory=dict)
    events: tuple[ProtectionEvent, ...] = ()
