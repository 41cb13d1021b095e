"""Paired differences, ties and gates."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.sim import Result, Table, contenders, gate_rows, judge, plain, rows
from steelyard.sim.compare import paired
from steelyard.sim.scenario import Scenario


def result(policy: str, seed: int, variant: dict[str, Any] | None = None, **metrics: float) -> Result:
    return Result(scenario="s", variant=variant or {}, policy=policy, seed=seed, metrics=metrics, calls=1)


def described(*gates: dict[str, Any], axes: tuple[dict[str, Any], ...] = ()) -> Scenario:
    document = {"name": "s", "text": ".", "nodes": [{"name": "n"}], "gates": list(gates), "axes": list(axes)}
    return msgspec.convert(document, Scenario)


def test_a_steady_difference_is_one_and_a_noisy_one_is_a_tie() -> None:
    steady, noisy = paired([1.0, 1.1, 0.9]), paired([1.0, -1.2, 0.5])
    assert steady is not None
    assert noisy is not None
    assert not steady.is_tie
    assert noisy.is_tie


def test_one_seed_proves_nothing() -> None:
    one = paired([5.0])
    assert one is not None
    assert one.is_tie
    assert paired([]) is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20), st.floats(-1e6, 1e6))
def test_a_shift_moves_the_mean_and_not_the_width(values: list[float], shift: float) -> None:
    one, other = paired(values), paired([value + shift for value in values])
    assert one is not None
    assert other is not None
    assert other.mean == pytest.approx(one.mean + shift, abs=1e-3)
    assert other.half_width == pytest.approx(one.half_width, rel=1e-3, abs=1e-3)


GATE = {"name": "g", "metric": "p99_ms", "at_most": 1.0, "of": "p2c"}


def test_a_ratio_gate() -> None:
    results = [result("dual", 1, p99_ms=90.0), result("p2c", 1, p99_ms=100.0)]
    [verdict] = judge(described(GATE), results)
    assert verdict.is_met
    assert verdict.measured == pytest.approx(0.9)


def test_a_difference_gate_and_an_absolute_one() -> None:
    results = [result("dual", 1, miss=0.03), result("p2c", 1, miss=0.01)]
    difference = {"name": "g", "metric": "miss", "at_most": 0.01, "of": "p2c", "minus": True}
    absolute = {"name": "g", "metric": "miss", "at_least": 0.02}
    one, other = judge(described(difference, absolute), results)
    assert (one.is_met, other.is_met) == (False, True)
    assert one.measured == pytest.approx(0.02)


def test_a_tie_passes_only_where_it_may() -> None:
    noise = [(101.0, 100.0), (95.0, 100.0), (110.0, 100.0)]
    results = [
        result(name, seed, p99_ms=pair[at]) for seed, pair in enumerate(noise) for at, name in ((0, "dual"), (1, "p2c"))
    ]
    [strict] = judge(described(GATE), results)
    [lenient] = judge(described({**GATE, "or_tie": True}), results)
    assert (strict.is_met, lenient.is_met) == (False, True)


def test_a_tie_for_want_of_seeds_passes_nothing() -> None:
    wide = [(400.0, 100.0), (100.0, 100.0)]
    results = [
        result(name, seed, p99_ms=pair[at]) for seed, pair in enumerate(wide) for at, name in ((0, "dual"), (1, "p2c"))
    ]
    [verdict] = judge(described({**GATE, "or_tie": True}), results)
    assert not verdict.is_met


def test_a_gate_beside_another_variant() -> None:
    gate = {"name": "g", "metric": "load_std", "at_most": 1.25, "beside": {"n": 1}}
    axis = {"name": "n", "sets": "consumers.count", "values": [1, 10]}
    results = [result("dual", 1, {"n": 1}, load_std=0.1), result("dual", 1, {"n": 10}, load_std=0.2)]
    verdicts = judge(described(gate, axes=(axis,)), results)
    assert [(verdict.measured, verdict.is_met) for verdict in verdicts] == [(1.0, True), (2.0, False)]


def test_what_was_not_run_is_not_met() -> None:
    [verdict] = judge(described(GATE), [result("dual", 1, p99_ms=1.0)])
    assert not verdict.is_met
    assert verdict.measured is None
    _, [row] = gate_rows(described(GATE), [verdict])
    assert row[2:] == ["not run", "", "NOT MET"]


def test_rows_mark_better_worse_and_ties() -> None:
    results = [
        result(policy, seed, p99_ms=value + seed, success=0.5)
        for seed in (1, 2, 3)
        for policy, value in (("dual", 10.0), ("p2c", 20.0), ("random", 5.0))
    ]
    headings, body = rows(Table(results), {})
    assert headings == ["policy", "success %", "p99 ms"]
    assert body == [
        ["dual", "50.000", "12"],
        ["p2c", "50.000 =", "22 -"],
        ["random", "50.000 =", "7 +"],
    ]
    assert plain(headings, body).splitlines()[1] == "dual       50.000      12"


def test_contenders_take_settings_and_refuse_what_nobody_takes() -> None:
    [one] = contenders(["dual:gain=0.5;warm_up_s=3"], described())
    assert one.settings == {"gain": 0.5, "warm_up_s": 3}
    with pytest.raises(ConfigError, match="no policy 'duall'"):
        contenders(["duall"], described())
    with pytest.raises(ConfigError, match="no setting 'gian'"):
        contenders(["dual:gian=1"], described())
    with pytest.raises(ConfigError, match="name=value"):
        contenders(["dual:gain"], described())


def test_all_is_everybody_or_whom_the_scenario_compares() -> None:
    assert {"dual", "random", "p2c"} <= {one.name for one in contenders(["all"], described())}
    few = msgspec.structs.replace(described(), policies=["p2c", "dual"])
    assert [one.name for one in contenders(["all", "p2c", "random"], few)] == ["p2c", "dual", "random"]
