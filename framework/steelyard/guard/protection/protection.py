"""Active protection: when even the healthy nodes sicken, less is sent; when they recover, little by little more.

The balancer moves calls away from sick nodes, and can drown the healthy ones with them. This law watches the healthy
(``trend``) and the queue in front of all of them (``wait``), and answers in levels, mildest first:

    1 HOLD      diversion by availability is halved and frozen: the healthy get air
    2 DEGRADE   calls are degraded by priority, lowest first: by what fails (``share``), by what would wait too long
    3 NO_RETRY  retries stop too (hedges did one level before): nothing is multiplied any more

A falling trend raises the level by one after two periods; a good one, with nothing degraded, lowers it by one after
five. A call that would wait too long raises it to DEGRADE at once, since a queue fills faster than periods pass.

Pure: ``now_s`` (seconds, monotonic) and ``dice`` (uniform in [0, 1)) are arguments. One object protects one service for
one consumer, on one event loop.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from .records import Admission, Level, ProtectionEvent, ProtectionStatistics, WaitStatistics
from .settings import ProtectionSettings
from .share import DegradedShare
from .trend import Averages, Direction, Trend
from .wait import MethodWait

Dice = Callable[[], float]
OnEvent = Callable[[ProtectionEvent], None]

_PASS = Admission.PASS
_KEPT_EVENTS = 100
# The waiting law remembers so many methods at most; a service has a handful, a generic caller may invent names.
_MOST_METHODS = 1024


class Protection:
    """``admit`` before a call; ``started`` and ``ended`` around what is sent; ``node_ended`` for each attempt at a
    node; ``tick`` once a period. *on_event* hears of every change of level."""

    def __init__(self, settings: ProtectionSettings | None = None, on_event: OnEvent | None = None) -> None:
        self.settings = settings or ProtectionSettings()
        self._on_event = on_event
        self._trend = Trend(self.settings)
        self._share = DegradedShare(self.settings)
        self._waits: dict[str, MethodWait] = {}
        self._patience: dict[int, float] = {}  # by priority, as asked for
        self._averages = Averages()
        self._level = Level.NONE
        self._since_s: float | None = None
        self._reason = ""
        self._events: deque[ProtectionEvent] = deque(maxlen=_KEPT_EVENTS)
        self._down = self._good = 0
        self._waits_now = self._waits_last = False
        self._asked_now: dict[int, int] = {}  # by priority
        self._degraded_now = self._ok_now = self._failed_now = 0
        self._last_degraded_share = 0.0
        self._sent_at_s: dict[int, float] = {}
        self._asked = self._failing = self._waiting = self._probes = 0
        self._by_priority: dict[int, int] = {}

    # --- one call -----------------------------------------------------------------------------------------------

    @property
    def level(self) -> Level:
        return self._level

    @property
    def may_retry(self) -> bool:
        """Whether a failed call may be tried again."""
        return not (self._level >= Level.NO_RETRY and self.settings.stops_retries)

    def may_hedge(self, method: str) -> bool:
        """Whether a slow call may be sent to a second node. Hedges help against one slow node. When all are slow (the
        answers that do come take several times what they should, or calls are being degraded already) a hedge is only
        more of what is too much. Fleet, spike x4 with two of eight nodes failing: without this 18 % of the calls were
        hedged, no hedge won, and the budget had nothing left for calls that failed."""
        if not self.settings.stops_retries:
            return True
        wait = self._waits.get(method)
        return self._level < Level.DEGRADE and (wait is None or not wait.is_slow)

    @property
    def diversion(self) -> float | None:
        """The part of the diversion by availability that stays, frozen; None while it is free."""
        return self.settings.diversion if self._level >= Level.HOLD else None

    def admit(self, method: str, priority: int, remaining_s: float, now_s: float, dice: Dice) -> Admission:
        """Whether a call may be sent. *remaining_s*: until its deadline; infinite where it has none."""
        asked = self._asked_now
        asked[priority] = asked.get(priority, 0) + 1
        settings = self.settings
        if not settings.degrades:
            return _PASS
        wait = self._waits.get(method)
        if (
            wait is not None
            and settings.degrades_waiting
            and wait.in_flight >= settings.least_in_flight
            and self._would_wait(wait, priority, remaining_s, now_s)
        ):
            return self._degrade(Admission.DEGRADE_WAITING, priority)
        chances = self._share.chances
        if chances and dice() < chances.get(priority, 0.0):
            if now_s < self._sent_at_s.get(priority, -math.inf) + 1.0 / settings.probes_per_s:
                return self._degrade(Admission.DEGRADE_FAILING, priority)
            self._probes += 1
            self._sent_at_s[priority] = now_s
            return Admission.PROBE
        if chances:
            self._sent_at_s[priority] = now_s
        return _PASS

    def started(self, method: str, now_s: float) -> None:
        """A call that was admitted is sent."""
        wait = self._waits.get(method)
        if wait is None:
            if len(self._waits) >= _MOST_METHODS:
                return
            wait = self._waits[method] = MethodWait()
            wait.advance(now_s)
        wait.in_flight += 1

    def ended(self, method: str, now_s: float, is_ok: bool | None, latency_s: float) -> None:
        """A call that was started is over. *is_ok* None: it says nothing (the caller left, or asked for nonsense)."""
        wait = self._waits.get(method)
        if wait is not None:
            if wait.in_flight:
                wait.in_flight -= 1
            if is_ok:
                wait.answered(now_s, latency_s)
        if is_ok:
            self._ok_now += 1
        elif is_ok is not None:
            self._failed_now += 1

    def node_ended(self, node: str, is_ok: bool) -> None:
        """One attempt at one node succeeded or failed."""
        self._trend.count(node, is_ok)

    def _would_wait(self, wait: MethodWait, priority: int, remaining_s: float, now_s: float) -> bool:
        patience = self._patience.get(priority)
        if patience is None:
            patience = self._patience[priority] = self.settings.patience(priority)
        if not wait.is_late(now_s, remaining_s, patience):
            return False
        self._waits_now = True
        if self._level < Level.DEGRADE:
            expected_s = wait.expected_s() or 0.0
            self._change(
                Level.DEGRADE,
                f"a call of priority {priority} would take {expected_s:.2f} s of its {remaining_s:.2f} s "
                f"({wait.in_flight} under way, {wait.rate_per_s:.0f} answered a second)",
                now_s,
            )
        return True

    def _degrade(self, admission: Admission, priority: int) -> Admission:
        self._degraded_now += 1
        self._by_priority[priority] = self._by_priority.get(priority, 0) + 1
        if admission is Admission.DEGRADE_WAITING:
            self._waiting += 1
        else:
            self._failing += 1
        return admission

    # --- one period ---------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """One period has passed."""
        averages = self._averages = self._trend.close(is_quiet=self._level is Level.NONE)
        degraded, asked = self._degraded_now, sum(self._asked_now.values())
        self._last_degraded_share = degraded / asked if asked else 0.0
        self._asked += asked
        for wait in self._waits.values():
            wait.advance(now_s)
            wait.close_period(is_base=not self._waits_now)
        self._waits_last, self._waits_now = self._waits_now, False
        is_on = self._level >= Level.DEGRADE and self.settings.degrades
        self._share.close(self._asked_now, self._ok_now, self._failed_now, is_on=is_on)
        self._asked_now = {}
        self._degraded_now = self._ok_now = self._failed_now = 0
        is_good = averages.direction is Direction.GOOD and not degraded and not self._share.share
        self._down = self._down + 1 if averages.direction is Direction.DOWN else 0
        self._good = self._good + 1 if is_good else 0
        if self._down >= self.settings.down_periods and self._level < Level.NO_RETRY:
            self._change(Level(self._level + 1), f"success falls: {_of(averages)}", now_s)
        elif self._good >= self.settings.good_periods and self._level > Level.NONE:
            reason = f"good for {self._good} periods, nothing degraded: {_of(averages)}"
            self._change(Level(self._level - 1), reason, now_s)

    def _change(self, level: Level, reason: str, now_s: float) -> None:
        event = ProtectionEvent(
            at_s=now_s,
            before=self._level,
            level=level,
            reason=reason,
            short=self._averages.short,
            long=self._averages.long,
            degraded_share=self._last_degraded_share,
        )
        self._level, self._since_s, self._reason = level, now_s, reason
        self._down = self._good = 0
        self._events.append(event)
        if self._on_event is not None:
            self._on_event(event)

    def reading(self) -> tuple[int, float]:
        """The level, and the share degraded in the last period: for gauges."""
        return int(self._level), self._last_degraded_share

    def statistics(self, now_s: float) -> ProtectionStatistics:
        """Why the next call is treated as it is."""
        for wait in self._waits.values():
            wait.advance(now_s)
        averages = self._averages
        return ProtectionStatistics(
            level=self._level,
            since_s=self._since_s,
            reason=self._reason,
            short=averages.short,
            long=averages.long,
            goal=averages.goal,
            band=averages.band,
            watched_nodes=averages.watched,
            nodes=averages.nodes,
            degraded_share=self._share.share,
            last_degraded_share=self._last_degraded_share,
            chances=dict(self._share.chances),
            asked=self._asked + sum(self._asked_now.values()),
            degraded_failing=self._failing,
            degraded_waiting=self._waiting,
            degraded_by_priority=dict(self._by_priority),
            probes=self._probes,
            waits={
                method: WaitStatistics(
                    in_flight=wait.in_flight,
                    rate_per_s=wait.rate_per_s,
                    recent_s=wait.recent_s,
                    base_s=wait.base_s,
                    expected_s=wait.expected_s(),
                )
                for method, wait in self._waits.items()
            },
            events=tuple(self._events),
        )

    def __repr__(self) -> str:
        return f"Protection({self._level.name}, {self._failing + self._waiting} calls degraded)"


def _of(averages: Averages) -> str:
    if averages.short is None or averages.long is None:
        return "no calls"
    return (
        f"{averages.short:.2%} over the short window, {averages.long:.2%} over the long one "
        f"({averages.watched} of {averages.nodes} nodes watched)"
    )
