"""Windows, load reports, classical policies and settings."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleet import node

from steelyard.balance import DualSettings, ReportState, make_policy
from steelyard.balance.load import LoadSignal
from steelyard.balance.window import OutcomeWindow
from steelyard.errors import ConfigError
from steelyard.model import LoadReport


@given(st.lists(st.tuples(st.floats(0, 15), st.booleans(), st.booleans()), max_size=80))
def test_the_window_counts_like_a_list_of_calls(steps: list[tuple[float, bool, bool]]) -> None:
    window = OutcomeWindow()
    calls: deque[tuple[int, bool, bool]] = deque()
    now_s = 0.0
    for pause_s, is_ok, spends in steps:
        now_s += pause_s
        (window.count_ok if is_ok else window.count_failed)(now_s)
        calls.append((int(now_s), is_ok, False))
        if spends:
            window.spend()
            calls = deque((at, ok, True) for at, ok, _ in calls)
        inside = [call for call in calls if call[0] > int(now_s) - 10]
        assert (window.ok, window.failed) == (sum(c[1] for c in inside), sum(not c[1] for c in inside))
        fresh = [call for call in inside if not call[2]]
        assert window.evidence() == (sum(c[1] for c in fresh), sum(not c[1] for c in fresh))
        newest = [call for call in fresh if call[0] > int(now_s) - 2]
        assert window.evidence(2) == (sum(c[1] for c in newest), sum(not c[1] for c in newest))


def take(signal: LoadSignal, now_s: float, resources: frozenset[str] | None = None, **levels: float) -> None:
    signal.take(LoadReport(utilization=levels), now_s, tau_s=2.0, resources=resources)


def test_a_report_is_fresh_then_stale_then_unknown() -> None:
    signal = LoadSignal()
    assert signal.state(0.0) is ReportState.UNKNOWN
    assert signal.age_s(0.0) is None
    take(signal, 0.0, cpu=0.0)
    assert (signal.load, signal.state(3.0), signal.state(3.1)) == (0.0, ReportState.FRESH, ReportState.STALE)
    assert signal.state(10.1) is ReportState.UNKNOWN


def test_smoothing_follows_the_time_constant_and_forgets_after_a_silence() -> None:
    signal = LoadSignal()
    take(signal, 0.0, cpu=0.0)
    take(signal, 2.0, cpu=1.0)
    assert signal.load == pytest.approx(1 - math.exp(-1))
    take(signal, 20.0, cpu=0.3)
    assert signal.load == 0.3


def test_load_is_the_dominant_resource_and_memory_does_not_steer_unless_named() -> None:
    signal = LoadSignal()
    take(signal, 0.0, cpu=0.2, gpu=0.6, memory=0.9)
    assert signal.load == 0.6
    take(signal := LoadSignal(), 0.0, frozenset({"memory"}), cpu=0.2, memory=0.9)
    assert signal.load == 0.9
    take(signal := LoadSignal(), 0.0, memory=0.9)
    assert signal.state(0.0) is ReportState.UNKNOWN


def test_an_old_sample_does_not_replace_a_new_one() -> None:
    signal = LoadSignal()
    take(signal, 5.0, cpu=0.5)
    signal.take(LoadReport(utilization={"cpu": 0.9}, age_s=3.0), 6.0, tau_s=2.0, resources=None)
    assert signal.load == 0.5


def test_round_robin_is_smooth() -> None:
    policy = make_policy("round_robin")
    policy.set_nodes([node("a", 500), node("b", 100), node("c", 100)], 0.0)
    turns = [policy.pick(0.0, lambda: 0.0) for _ in range(14)]
    names = "".join(turn.node.host for turn in turns if turn)
    # b and c are due together with one of the a's, so ties decide their exact places; never five a's in a row.
    assert sorted(names[:7]) == sorted(names[7:]) == list("aaaaabc")
    assert "aaaaa" not in names


def test_least_active_counts_over_weight_and_p2c_follows_the_smaller() -> None:
    for name in ("least_active", "p2c"):
        policy = make_policy(name)
        policy.set_nodes([node("small", 100), node("big", 300)], 0.0)
        for _ in range(40):
            candidate = policy.pick(0.0, lambda: 0.3)
            assert candidate is not None
            policy.started(candidate, 0.0)
        counts = {record.node.host: record.in_flight for record in policy.statistics(0.0).nodes}
        assert counts == {"small": 10, "big": 30}, name


def test_unknown_names_and_settings_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no policy 'duel'; there are: adaptive, available, bounded_hash"):
        make_policy("duel")
    with pytest.raises(ConfigError, match="no setting 'gian'; its settings: availability_gain"):
        make_policy("dual", gian=0.3)
    with pytest.raises(ConfigError, match="its settings: none"):
        make_policy("random", seed=1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("gain", 3.0), ("gain", math.nan), ("eject_after", 0), ("gain", "fast"), ("gain", True), ("virtual_nodes", 0)],
)
def test_bad_values_name_the_field_the_range_and_the_value(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{field} must be a number in \[.*\], not {value!r}"):
        make_policy("dual", **{field: value})


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="domain_settle"):
        DualSettings(domain=0.01)
    with pytest.raises(ConfigError, match="resources"):
        DualSettings(resources=frozenset())


@pytest.mark.parametrize("rate", [1e9, 5e-324])
def test_weights_stay_numbers_whatever_a_node_reports(rate: float) -> None:
    policy = make_policy("weighted_round_robin")
    policy.set_nodes([node(f"n{at}") for at in range(3)], 0.0)
    for second in range(1, 20):
        for at, (cpu, calls_per_s) in enumerate(
            [(5e-324, 1e9), (0.5, 1e308), (0.5, 100.0)] if rate > 1.0 else [(0.5, rate)] * 3
        ):
            report = LoadReport(utilization={"cpu": cpu}, in_flight=1, calls_per_s=calls_per_s)
            policy.report(f"n{at}:1", report, float(second))
        policy.tick(float(second))
        assert policy.pick(float(second), lambda: 0.5) is not None
