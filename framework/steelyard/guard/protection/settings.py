"""Every number of the protection law, with its meaning, unit, range and evidence.

"Fleet" below is the real fleet of tests/chaos and benchmarks/bench_chaos.py: eight provider processes of some 80
calls/s each, and a consumer in a process of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from steelyard.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionSettings:
    """Frozen and checked; ConfigError names field, range and value."""

    # How often tick() is expected, seconds: the balancer's own period.
    period_s: float = 1.0

    # --- the trend ----------------------------------------------------------------------------------------------
    # The two averages, in periods. 5 and 30: a spike is seen within five, and thirty still know what was normal.
    short_periods: int = 5
    long_periods: int = 30
    # Short below long by more than z standard deviations (of the short average) and the fixed part is "down". z = 3,
    # like the balancer's own band, and for the same reason: it is looked at every period.
    band_z: float = 3.0
    band_floor: float = 0.002
    # Calls' worth of caution in the band: one failure among five calls is no trend.
    prior_calls: float = 20.0
    # What counts as healthy without further proof; where a cluster's own normal success is lower, that counts.
    target: float = 0.999
    # Down for so many periods: one level up. Good for so many: one level down. Slow to relax, because every relaxation
    # is an experiment with the callers' calls.
    down_periods: int = 2
    good_periods: int = 5

    # --- the levels' effects ------------------------------------------------------------------------------------
    # Level 1: what remains of the diversion by availability (None: level 1 changes nothing).
    diversion: float | None = 0.5
    # Level 2: calls are degraded (False: never).
    degrades: bool = True
    # Level 3: retries and hedges stop (False: never).
    stops_retries: bool = True

    # --- degrading by failures ----------------------------------------------------------------------------------
    # K of p = max(0, (req - K * ok) / (req + 1)) (Google's SRE book, "Handling Overload", client-side throttling). 2:
    # for every call that can succeed one more is let through, so that recovery is seen at once.
    k: float = 2.0
    # A degraded share below this ends, if what was let through succeeded.
    least_share: float = 1 / 16
    # A priority that is degraded altogether still sends so many calls a second, to be seen to recover.
    probes_per_s: float = 1.0

    # --- degrading by waiting -----------------------------------------------------------------------------------
    # The part of its time that a call may be expected to spend in queues, for priority 0 and for the lowest:
    # patience(priority) = least + (most - least) / 2 ** priority, so 60, 40, 30, ... 20 %. The queue settles at the
    # patience of the lowest priority that is let in, and a call that fails at its end needs to go through it once more:
    # fleet, spike x4, two nodes failing half of their calls: with 80, 55, 42, ... 30 % some 1 to 2 % of what was
    # admitted ran out of time in its second queue.
    degrades_waiting: bool = True
    most_wait: float = 0.6
    least_wait: float = 0.2
    # Fewer calls under way than this are no queue.
    least_in_flight: int = 8

    def __post_init__(self) -> None:
        for field, low, high in _RANGES:
            _check(field, getattr(self, field), low, high, is_whole=field in _WHOLE)
        if self.diversion is not None:
            _check("diversion", self.diversion, 0.0, 1.0)
        for field in ("degrades", "stops_retries", "degrades_waiting"):
            if not isinstance(getattr(self, field), bool):
                raise ConfigError(f"ProtectionSettings.{field} must be True or False, not {getattr(self, field)!r}")
        for low_field, high_field in (("short_periods", "long_periods"), ("least_wait", "most_wait")):
            if getattr(self, low_field) > getattr(self, high_field):
                raise ConfigError(
                    f"ProtectionSettings.{low_field} ({getattr(self, low_field)!r}) must not exceed {high_field} "
                    f"({getattr(self, high_field)!r})"
                )

    def patience(self, priority: int) -> float:
        """The part of a call's time that may go into waiting."""
        return self.least_wait + (self.most_wait - self.least_wait) * 2.0 ** -min(max(priority, 0), 64)


_RANGES = (
    ("period_s", 0.01, 60.0),
    ("short_periods", 1, 1000),
    ("long_periods", 2, 10_000),
    ("band_z", 0.0, 10.0),
    ("band_floor", 0.0, 1.0),
    ("prior_calls", 0.0, 10_000.0),
    ("target", 0.0, 1.0),
    ("down_periods", 1, 100),
    ("good_periods", 1, 1000),
    ("k", 1.0, 100.0),
    ("least_share", 0.0, 0.5),
    ("probes_per_s", 0.001, 1000.0),
    ("most_wait", 0.0, 1.0),
    ("least_wait", 0.0, 1.0),
    ("least_in_flight", 1, 1_000_000),
)
_WHOLE = ("short_periods", "long_periods", "down_periods", "good_periods", "least_in_flight")


def _check(field: str, value: Any, low: float, high: float, *, is_whole: bool = False) -> None:
    is_number = isinstance(value, int) or (not is_whole and isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not is_number or not low <= value <= high:
        kind = "a whole number" if is_whole else "a number"
        raise ConfigError(f"ProtectionSettings.{field} must be {kind} in [{low:g}, {high:g}], not {value!r}")
