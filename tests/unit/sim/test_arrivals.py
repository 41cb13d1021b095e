"""Calls: rates, keys, traces; the same for whoever balances them."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.sim.worlds import scenario

from steelyard.errors import ConfigError
from steelyard.sim.arrivals import draw_arrivals, load_points, step_starts


def test_the_rate_is_the_load_times_the_capacity() -> None:
    one = scenario(traffic={"load": 0.5}, work={"mean_s": 0.01}, seconds=50)
    assert one.capacity == pytest.approx(400.0)
    assert len(draw_arrivals(one, 1).at_s) == pytest.approx(0.5 * 400 * 50, rel=0.05)


def test_a_load_of_points_rises_between_them() -> None:
    one = scenario(traffic={"load": [[0, 0.2], [10, 0.2], [20, 1.0]]}, work={"mean_s": 0.004}, seconds=20)
    at_s = draw_arrivals(one, 1).at_s
    early, late = sum(at < 10 for at in at_s), sum(at >= 10 for at in at_s)
    assert late / early == pytest.approx(3.0, rel=0.1)
    assert list(at_s) == sorted(at_s)


def test_a_gap_in_the_load_is_a_gap_in_the_calls() -> None:
    one = scenario(traffic={"load": [[0, 1], [5, 1], [5, 0], [10, 0], [10, 1]]}, work={"mean_s": 0.01}, seconds=20)
    at_s = draw_arrivals(one, 1).at_s
    assert not [at for at in at_s if 5.1 < at < 9.9]
    assert [at for at in at_s if at > 10.2]


def test_a_staircase() -> None:
    one = scenario(steps={"first": 0.5, "last": 0.6, "ratio": 1.1, "seconds": 10})
    assert [at_s for at_s, _ in step_starts(one)] == [0, 10]
    assert load_points(one) == [(0, 0.5), (10, 0.5), (10, pytest.approx(0.55)), (20, pytest.approx(0.55))]


def test_another_seed_is_another_day_and_the_same_seed_the_same() -> None:
    one = scenario(traffic={"keys": 50, "priorities": [0.5]})
    assert draw_arrivals(one, 1) == draw_arrivals(one, 1)
    assert draw_arrivals(one, 1).at_s != draw_arrivals(one, 2).at_s


def test_keys_are_popular_by_rank() -> None:
    drawn = draw_arrivals(scenario(traffic={"keys": 100, "zipf": 1.0}, work={"mean_s": 0.004}), 1)
    assert drawn.key is not None
    assert drawn.key.count(0) > 3 * drawn.key.count(9) > 0
    assert len(set(drawn.hashes)) == 100


def test_priorities_are_running_shares() -> None:
    drawn = draw_arrivals(scenario(traffic={"priorities": [0.2, 0.8]}, work={"mean_s": 0.004}), 1)
    assert drawn.priority is not None
    share = drawn.priority.count(1) / len(drawn.priority)
    assert share == pytest.approx(0.6, abs=0.03)


def test_a_recorded_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("seconds,key,work\n2.5,b,0.3\n1.5,a,0.1\n# a remark\n3.5,a,0.2\n99,a,1\n", encoding="utf-8")
    drawn = draw_arrivals(scenario(traffic={"trace": str(path)}), 1)
    assert list(drawn.at_s) == [1.5, 2.5, 3.5]
    assert list(drawn.work_s) == [0.1, 0.3, 0.2]
    assert drawn.key is not None
    assert list(drawn.key) == [0, 1, 0]


def test_a_wrong_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("soon\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cannot read .*trace.csv as seconds"):
        draw_arrivals(scenario(traffic={"trace": str(path)}), 1)
