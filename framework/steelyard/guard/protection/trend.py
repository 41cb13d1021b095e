"""Are the healthy drowning? The success of the nodes above the cluster's availability, over 5 s and over 30 s.

Sick nodes are the balancer's business; it sends their calls elsewhere. What it cannot see is that "elsewhere" is going
under. So only nodes at or above the cluster's availability are watched: when *their* success falls, there is nowhere
left to divert to, and less must be sent.

A trend and not a threshold, because no number is right for every service: one that normally succeeds 97 % of the time
is well at 97 %. Two averages of one series, as traders and TCP use them, tell falling from low. A single long
threshold would also miss a fall from 99.99 % to 99 %, which is a hundred times as many errors.

    down   short < long - band        band = z * sqrt(v / (n_short + m)) + floor; v: variance of one outcome, in long
    good   short > long, or both >= goal - band       goal = min(target, what is normal here)

"Normal" is the success of quiet times; it follows within a minute while nothing is wrong, and within ten while
something is, so that a cluster that has changed for good is not fought for ever.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from .settings import ProtectionSettings

# A node's own record fades by this each period: about ten periods, the balancer's window.
_FADE = 0.9
# Below this many calls a node is forgotten.
_NOTHING = 0.05
_NORMAL_FOLLOWS_S = 60.0
_NORMAL_FOLLOWS_WHEN_BAD_S = 600.0


class Direction(StrEnum):
    DOWN = "down"
    STEADY = "steady"
    GOOD = "good"


@dataclass(frozen=True, slots=True)
class Averages:
    """One period's reading. ``short`` and ``long`` are success rates (None without calls), ``goal`` what counts as
    healthy, ``band`` how far short may stay below long by chance, ``watched`` how many nodes were above average."""

    direction: Direction = Direction.GOOD
    short: float | None = None
    long: float | None = None
    goal: float = 1.0
    band: float = 0.0
    watched: int = 0
    nodes: int = 0


class _Record:
    __slots__ = ("all", "failed", "new_failed", "new_ok")

    def __init__(self) -> None:
        self.all = 0.0
        self.failed = 0.0
        self.new_ok = 0
        self.new_failed = 0


class Trend:
    """``count`` every attempt at a node; ``close`` the period to read the averages. O(nodes with calls) a period."""

    def __init__(self, settings: ProtectionSettings) -> None:
        self._settings = settings
        self._records: dict[str, _Record] = {}
        self._periods: deque[tuple[int, int]] = deque(maxlen=settings.long_periods)  # (ok, failed) of watched nodes
        self._normal: float | None = None

    def count(self, node: str, is_ok: bool) -> None:
        record = self._records.get(node)
        if record is None:
            record = self._records[node] = _Record()
        if is_ok:
            record.new_ok += 1
        else:
            record.new_failed += 1

    def close(self, is_quiet: bool) -> Averages:
        """Ends a period. *is_quiet*: no protection is in force, so what is seen now is what is normal."""
        watched = self._close_records()
        short_ok, short_failed = self._sum(self._settings.short_periods)
        long_ok, long_failed = self._sum(self._settings.long_periods)
        n_short, n_long = short_ok + short_failed, long_ok + long_failed
        if not n_short:
            return Averages(goal=self._goal(), watched=watched, nodes=len(self._records))
        short, long = short_ok / n_short, long_ok / n_long
        # Laplace's rule: 0 failures of n are no proof of 0 % failing.
        failing = (long_failed + 1) / (n_long + 2)
        settings = self._settings
        band = settings.band_z * math.sqrt(failing * (1 - failing) / (n_short + settings.prior_calls))
        band += settings.band_floor
        goal = self._goal()
        if short < long - band:
            direction = Direction.DOWN
        elif short > long or min(short, long) >= goal - band:
            direction = Direction.GOOD
        else:
            direction = Direction.STEADY
        self._follow(short, is_quiet=is_quiet and direction is not Direction.DOWN)
        return Averages(direction, short, long, goal, band, watched, len(self._records))

    def _close_records(self) -> int:
        total = failed = 0.0
        for record in self._records.values():
            record.all = record.all * _FADE + record.new_ok + record.new_failed
            record.failed = record.failed * _FADE + record.new_failed
            total += record.all
            failed += record.failed
        cluster = 1.0 - failed / total if total else 1.0
        watched = ok_now = failed_now = 0
        m = self._settings.prior_calls
        for node, record in tuple(self._records.items()):
            # The balancer's own estimate, with its prior: five calls cannot tell a node from the cluster.
            rate = (record.all - record.failed + m * cluster) / (record.all + m)
            if rate >= cluster - 1e-9:
                watched += 1
                ok_now += record.new_ok
                failed_now += record.new_failed
            record.new_ok = record.new_failed = 0
            if record.all < _NOTHING:
                del self._records[node]
        self._periods.append((ok_now, failed_now))
        return watched

    def _sum(self, periods: int) -> tuple[int, int]:
        ok = failed = 0
        for back in range(1, min(periods, len(self._periods)) + 1):
            ok += self._periods[-back][0]
            failed += self._periods[-back][1]
        return ok, failed

    def _goal(self) -> float:
        return self._settings.target if self._normal is None else min(self._settings.target, self._normal)

    def _follow(self, short: float, *, is_quiet: bool) -> None:
        if self._normal is None:
            self._normal = short
            return
        tau_s = _NORMAL_FOLLOWS_S if is_quiet else _NORMAL_FOLLOWS_WHEN_BAD_S
        self._normal += (short - self._normal) * min(1.0, self._settings.period_s / tau_s)
