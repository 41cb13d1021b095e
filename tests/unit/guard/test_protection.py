"""The levels: why they rise, what they do, and that they come down by themselves."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest

from steelyard.errors import ConfigError
from steelyard.guard import Admission, Level, Protection, ProtectionEvent, ProtectionSettings


class Service:
    """A consumer's calls in virtual time: 100 a second over eight nodes and three priorities."""

    def __init__(self, settings: ProtectionSettings | None = None) -> None:
        self.events: list[ProtectionEvent] = []
        self.protection = Protection(settings, self.events.append)
        self.now_s = 0.0
        self.random = random.Random(1)
        self.verdicts: list[tuple[int, Admission]] = []

    def second(self, success: Callable[[int], float] = lambda node: 1.0, calls: int = 100) -> None:
        self.verdicts = []
        for at in range(calls):
            self.now_s += 1.0 / calls
            priority = at % 3
            verdict = self.protection.admit("predict", priority, 1.0, self.now_s, self.random.random)
            self.verdicts.append((priority, verdict))
            if not verdict.is_sent:
                continue
            node = self.random.randrange(8)
            is_ok = self.random.random() < success(node)
            self.protection.started("predict", self.now_s)
            self.protection.node_ended(f"n{node}", is_ok)
            self.protection.ended("predict", self.now_s + 0.001, is_ok=is_ok, latency_s=0.001)
        self.protection.tick(self.now_s)

    def run(self, seconds: int, success: Callable[[int], float] = lambda node: 1.0) -> None:
        for _ in range(seconds):
            self.second(success)

    def degraded(self, priority: int) -> float:
        asked = [verdict for found, verdict in self.verdicts if found == priority]
        return sum(not verdict.is_sent for verdict in asked) / len(asked)


def test_two_periods_down_are_a_level_up() -> None:
    service = Service()
    service.run(20)
    service.second(lambda node: 0.3)
    assert service.protection.level is Level.NONE
    service.second(lambda node: 0.3)
    assert service.protection.level is Level.HOLD
    assert service.protection.diversion == 0.5
    assert service.protection.may_hedge("predict")
    service.run(2, lambda node: 0.3)
    assert service.protection.level is Level.DEGRADE
    assert not service.protection.may_hedge("predict")
    assert service.protection.may_retry
    service.run(2, lambda node: 0.3)
    assert service.protection.level is Level.NO_RETRY
    assert not service.protection.may_retry


def test_one_sick_node_is_the_balancers_business() -> None:
    service = Service()
    service.run(20)
    service.run(30, lambda node: 0.0 if node == 0 else 1.0)
    assert service.protection.level is Level.NONE
    assert service.events == []


def test_the_lowest_priority_is_degraded_first() -> None:
    service = Service()
    service.run(20)
    for _ in range(12):  # whatever is sent, thirty a second succeed
        left = iter(range(30))
        service.second(lambda node, left=left: float(next(left, None) is not None))  # type: ignore[misc]
    assert service.protection.statistics(service.now_s).degraded_share == pytest.approx(0.4, abs=0.05)
    assert service.degraded(2) > 0.9
    assert 0.0 < service.degraded(1) < 0.6
    assert service.degraded(0) == 0.0
    assert Admission.PROBE in {verdict for priority, verdict in service.verdicts if priority == 2}


def test_in_a_full_outage_probes_go_on() -> None:
    service = Service()
    service.run(20)
    service.run(10, lambda node: 0.0)
    for _ in range(5):
        service.second(lambda node: 0.0)
        sent = sum(verdict.is_sent for _, verdict in service.verdicts)
        assert 1 <= sent <= 8


def test_recovery_is_gradual_and_complete_and_takes_less_than_thirty_seconds() -> None:
    service = Service()
    service.run(20)
    service.run(20, lambda node: 0.0)
    at_s = service.now_s
    parts = []
    for _ in range(30):
        service.second()
        parts.append(sum(not verdict.is_sent for _, verdict in service.verdicts) / len(service.verdicts))
    # Never more than half of what was degraded comes back at once; 0.1 for the dice and probes.
    assert all(later >= earlier / 2 - 0.1 for earlier, later in itertools.pairwise(parts))
    assert parts.index(0.0) <= 12
    assert service.protection.level is Level.NONE
    downs = [event for event in service.events if event.level < event.before]
    ups = [event for event in service.events if event.level > event.before]
    assert len(downs) == len(ups) == 3
    assert downs[0].at_s > at_s


def test_a_call_that_would_wait_too_long_raises_the_level_at_once() -> None:
    service = Service()
    service.run(5)
    for _ in range(60):  # a queue: 100 answers a second, each later than the one before
        service.protection.started("predict", service.now_s)
    for at in range(20):
        service.now_s += 0.01
        service.protection.ended("predict", service.now_s, is_ok=True, latency_s=0.01 * at + 0.2)
        service.protection.started("predict", service.now_s)
    service.now_s += 0.1
    verdict = service.protection.admit("predict", 2, 1.0, service.now_s, lambda: 0.99)
    assert verdict is Admission.DEGRADE_WAITING
    assert service.protection.level is Level.DEGRADE
    assert "would take" in service.events[-1].reason
    assert service.protection.admit("predict", 0, 30.0, service.now_s, lambda: 0.99) is Admission.PASS
    assert service.protection.admit("another", 2, 1.0, service.now_s, lambda: 0.99) is Admission.PASS


def test_hedges_stop_when_answers_in_general_are_slow() -> None:
    service = Service()
    service.run(5)
    for latency_s, may_hedge in ((0.002, True), (0.02, False), (0.001, True)):
        for _ in range(30):
            service.now_s += 0.01
            service.protection.started("predict", service.now_s)
            service.protection.ended("predict", service.now_s, is_ok=True, latency_s=latency_s)
        assert service.protection.may_hedge("predict") is may_hedge
    assert service.protection.may_hedge("another")
    assert service.protection.level is Level.NONE


def test_each_effect_can_be_switched_off() -> None:
    service = Service(ProtectionSettings(diversion=None, degrades=False, stops_retries=False))
    service.run(20)
    service.run(20, lambda node: 0.0)
    assert service.protection.level is Level.NO_RETRY
    assert service.protection.diversion is None
    assert service.protection.may_retry
    assert service.protection.may_hedge("predict")
    assert all(verdict is Admission.PASS for _, verdict in service.verdicts)


def test_statistics_say_why() -> None:
    service = Service()
    service.run(20)
    service.run(8, lambda node: 0.3)
    shown = service.protection.statistics(service.now_s)
    assert shown.level is service.protection.level
    assert "success falls" in shown.reason
    assert shown.events == tuple(service.events)
    assert shown.asked == 2800
    assert shown.degraded_failing == sum(shown.degraded_by_priority.values()) > 0
    assert shown.degraded_waiting == 0
    assert shown.waits["predict"].in_flight == 0
    assert shown.short is not None
    assert shown.chances[2] > 0.9
    assert "degraded" in repr(service.protection)


def test_what_says_nothing_is_not_counted_and_method_names_are_bounded() -> None:
    protection = Protection()
    for at in range(3000):
        protection.started(f"m{at}", 0.0)
        protection.ended(f"m{at}", 0.1, is_ok=None, latency_s=0.1)
    protection.tick(1.0)
    shown = protection.statistics(1.0)
    assert shown.level is Level.NONE
    assert len(shown.waits) == 1024


@pytest.mark.parametrize(
    "bad",
    [
        {"k": 0.5},
        {"diversion": 1.5},
        {"band_z": math.nan},
        {"short_periods": 40},
        {"least_wait": 0.9},
        {"good_periods": 0},
        {"good_periods": 2.5},
        {"k": "2"},
        {"k": True},
        {"degrades": 1},
        {"diversion": "half"},
    ],
)
def test_bad_settings_are_named(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        ProtectionSettings(**bad)  # type: ignore[arg-type]


def test_patience_falls_with_every_priority() -> None:
    settings = ProtectionSettings()
    patience = [settings.patience(priority) for priority in range(256)]
    assert patience[0] == settings.most_wait
    assert patience == sorted(patience, reverse=True)
    assert patience[255] == pytest.approx(settings.least_wait)
