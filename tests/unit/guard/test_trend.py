"""The healthy are watched, and their success falling is told from its being low."""

from __future__ import annotations

import random

import pytest

from steelyard.guard.protection.settings import ProtectionSettings
from steelyard.guard.protection.trend import Averages, Direction, Trend


class Fleet:
    """Nodes with a success rate each, so many calls a period."""

    def __init__(self, rates: dict[str, float], calls: int = 50, seed: int = 1, **settings: object) -> None:
        self.rates, self.calls = rates, calls
        self.trend = Trend(ProtectionSettings(**settings))  # type: ignore[arg-type]
        self.random = random.Random(seed)

    def run(self, periods: int, *, is_quiet: bool = True) -> list[Averages]:
        readings = []
        for _ in range(periods):
            for node, rate in self.rates.items():
                for _ in range(self.calls):
                    self.trend.count(node, self.random.random() < rate)
            readings.append(self.trend.close(is_quiet))
        return readings


def healthy(nodes: int = 8, rate: float = 1.0) -> dict[str, float]:
    return {f"n{at}": rate for at in range(nodes)}


def test_a_sick_node_is_not_watched_and_moves_nothing() -> None:
    fleet = Fleet(healthy())
    fleet.run(10)
    fleet.rates["n0"] = 0.0
    readings = fleet.run(30)
    assert {reading.direction for reading in readings} == {Direction.GOOD}
    assert {reading.watched for reading in readings} == {7}
    assert readings[-1].nodes == 8


def test_when_the_healthy_sicken_the_trend_is_down() -> None:
    fleet = Fleet(healthy())
    fleet.run(30)
    fleet.rates = healthy(rate=0.8)
    readings = fleet.run(3)
    assert [reading.direction for reading in readings] == [Direction.DOWN] * 3
    assert readings[-1].short is not None
    assert readings[-1].long is not None
    assert readings[-1].short < readings[-1].long - readings[-1].band


def test_low_is_not_falling() -> None:
    """A service that succeeds 90 % of the time has its own normal, and is well there."""
    fleet = Fleet(healthy(rate=0.9))
    directions = [reading.direction for reading in fleet.run(300)][30:]
    assert Direction.DOWN not in directions
    assert directions.count(Direction.GOOD) > 200


@pytest.mark.parametrize("calls", [1, 5, 25])
def test_chance_is_no_trend(calls: int) -> None:
    readings = Fleet(healthy(rate=0.995), calls=calls).run(600)
    assert sum(reading.direction is Direction.DOWN for reading in readings) <= 3


def test_one_failure_of_few_calls_is_no_trend() -> None:
    fleet = Fleet({"only": 1.0}, calls=5)
    fleet.run(30)
    fleet.trend.count("only", False)
    assert fleet.run(1)[0].direction is not Direction.DOWN


def test_rising_is_good_before_all_is_well() -> None:
    fleet = Fleet(healthy())
    fleet.run(30)
    fleet.rates = healthy(rate=0.5)
    fleet.run(10, is_quiet=False)
    fleet.rates = healthy(rate=1.0)
    readings = fleet.run(6, is_quiet=False)
    assert [reading.direction for reading in readings[-2:]] == [Direction.GOOD] * 2
    assert readings[-1].long is not None
    assert readings[-1].long < 0.95


def test_what_has_changed_for_good_becomes_normal() -> None:
    fleet = Fleet(healthy())
    fleet.run(60)
    fleet.rates = healthy(rate=0.9)
    goals = [reading.goal for reading in fleet.run(1200, is_quiet=False)]
    assert goals[20] > 0.98
    assert goals[-1] == pytest.approx(0.9, abs=0.03)


def test_without_calls_nothing_is_wrong_and_nodes_are_forgotten() -> None:
    fleet = Fleet(healthy())
    fleet.run(5)
    fleet.rates = {}
    readings = fleet.run(90)
    assert readings[-1].direction is Direction.GOOD
    assert readings[-1].short is None
    assert readings[-1].nodes == 0
