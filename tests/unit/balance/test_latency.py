"""Latency as an objective beside utilization: which queues count, which do not, and that the record says so."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fleet import node

from steelyard.balance import Objective, ReportState, hash_key
from steelyard.balance.dual import Dual, DualSettings
from steelyard.balance.dual.latency import FULL, blended, counted, passing, seconds
from steelyard.model import LoadReport, Outcome


def told(policy: Dual, host: str, now_s: float, cpu: float, in_flight: int, calls_per_s: float | None) -> None:
    report = LoadReport(utilization={"cpu": cpu}, in_flight=in_flight, calls_per_s=calls_per_s)
    policy.report(f"{host}:1", report, now_s)


def periods(
    policy: Dual, count: int, state: Callable[[int], tuple[float, int, float | None]], key: int | None = None
) -> float:
    """Every node answers two calls a second and tells its *state* (utilization, calls in flight, calls a second)."""
    dice = random.Random(1)
    now_s = 0.0
    for _ in range(count):
        now_s += 1.0
        for at, member in enumerate(policy.eligible):
            policy.started(member, now_s)
            policy.ended(member, Outcome.OK, now_s, latency_s=0.01, in_flight=0)
            cpu, in_flight, rate = state(at)
            told(policy, f"n{at}", now_s, cpu * (1.0 + 0.02 * (dice.random() - 0.5)), in_flight, rate)
        if key is not None:
            policy.pick(now_s, dice.random, key)
        policy.tick(now_s)
    return now_s


def dual(**given: object) -> Dual:
    policy = Dual(DualSettings(**given))  # type: ignore[arg-type]
    policy.set_nodes([node(f"n{at}") for at in range(8)], 0.0)
    return policy


def share(policy: Dual, now_s: float, host: str = "n0") -> float:
    return next(one.share for one in policy.statistics(now_s).nodes if one.node.host == host)


def test_calls_that_take_sixteen_times_as_long_make_an_evenly_loaded_node_give_up_its_share() -> None:
    policy = dual()
    now_s = periods(policy, 20, lambda at: (0.6, 16, 10.0) if at == 0 else (0.6, 5, 50.0))
    assert share(policy, now_s) < 0.5 / 8
    reason = next(one.reason for one in policy.statistics(now_s).nodes if one.node.host == "n0")
    assert reason.objective is Objective.LATENCY
    assert reason.imbalance < 0
    assert "calls take 1.6 s" in reason.text


def test_three_times_as_long_is_hardware_and_no_fault() -> None:
    policy = dual()
    now_s = periods(policy, 20, lambda at: (0.6, 15, 50.0) if at == 0 else (0.6, 5, 50.0))
    assert share(policy, now_s) == pytest.approx(1 / 8, rel=0.05)


def test_of_full_nodes_the_one_with_the_longer_queue_gives_way_and_using_spare_capacity_is_no_overload() -> None:
    policy = dual()
    state = {0: (1.0, 40, 50.0), 1: (1.5, 5, 50.0)}
    now_s = periods(policy, 15, lambda at: state.get(at, (1.0, 8, 50.0)))
    assert share(policy, now_s, "n0") < 0.6 / 8
    assert share(policy, now_s, "n1") > 1 / 8


@pytest.mark.parametrize("way", ["no rates", "keys", "ratio"])
def test_latency_is_left_out_without_rates_with_keys_and_in_the_published_law(way: str) -> None:
    policy = dual(law="ratio") if way == "ratio" else dual()
    rate = None if way == "no rates" else 1.0
    key = hash_key("a") if way == "keys" else None
    policy.pick(0.0, random.Random(1).random, key)
    now_s = periods(policy, 20, lambda at: (0.6, 4, rate) if at == 0 else (0.6, 4, None if rate is None else 50.0), key)
    assert share(policy, now_s) == pytest.approx(share_of_base(policy, now_s), rel=0.05)


def share_of_base(policy: Dual, now_s: float) -> float:
    return next(one.base_share for one in policy.statistics(now_s).nodes if one.node.host == "n0")


def test_a_report_that_is_not_believed_says_nothing_of_calls_either() -> None:
    policy = dual()
    told(policy, "n0", 1.0, float("nan"), 30, 50.0)
    assert policy.eligible[0].told_in_flight == 0.0
    for at in range(2, 12):
        told(policy, "n0", float(at), 0.5, 3, 50.0)
    told(policy, "n0", 12.0, 0.5, 30, 50.0)
    assert policy.eligible[0].told_in_flight == 3.0


def test_failures_are_no_answers() -> None:
    """A node that fails 49 of 50 calls a second has answered one of them, and is not quick."""
    policy = dual()
    report = LoadReport(utilization={"cpu": 1.0}, in_flight=2, calls_per_s=50.0, errors_per_s=49.0)
    policy.report("n0:1", report, 1.0)
    assert policy.eligible[0].answered_per_s == pytest.approx(1.0)


def test_a_full_node_beside_nodes_with_room_is_too_full_however_quick_it_is() -> None:
    """A machine with a neighbour: its calls are quicker than the devices' and it would have been given ever more."""
    assert counted(1.0, 0.3, 4.0, mean=0.6) == 1.0
    assert counted(1.0, 0.3, 4.0, mean=0.95) == 0.5
    policy = dual()
    now_s = periods(policy, 30, lambda at: (0.95, 2, 100.0) if at == 0 else (0.6, 10, 50.0))
    assert share(policy, now_s) < 1 / 8


@given(st.floats(0.0, 1.5), st.floats(0.0, 1e6), st.floats(1.0, 100.0), st.floats(0.0, 2.0))
def test_below_full_a_load_only_ever_counts_as_more_and_never_without_bound(
    load: float, relative: float, slow: float, mean: float
) -> None:
    what = counted(load, relative, slow, mean)
    assert 0.0 <= what <= 4.0 * max(load, 0.5)
    if load < FULL:
        assert what >= load


@given(st.integers(0, 10_000), st.floats(0.0, 1e5))
def test_seconds_are_finite(in_flight: int, rate: float) -> None:
    assert 0.0 <= seconds(in_flight, rate) <= 20_000.0


def test_a_report_leaves_a_known_queue_alone() -> None:
    policy = dual()
    member = policy.eligible[0]
    policy.started(member, 1.0)
    policy.ended(member, Outcome.OK, 1.0, latency_s=0.01, in_flight=5)
    for at, in_flight in enumerate((0, 60, 2)):
        told(policy, "n0", 2.0 + at, 0.5 + at / 100, in_flight, 50.0)
        assert member.queue == 5.0


# --- a moment's count, and a queue that is to drain -------------------------------------------------------------------


def test_a_count_that_happens_to_be_three_is_no_slow_node_and_one_of_sixty_is() -> None:
    known = (0.8, 47.0)
    in_flight, rate = blended(known, (3.0, 47.0))
    assert 0.8 < in_flight < 1.3
    assert rate == pytest.approx(47.0)
    assert blended(known, (60.0, 20.0)) == (60.0, 20.0)
    assert blended((0.0, 0.0), (2.0, 30.0)) == (2.0, 30.0)  # the first word there is


@given(st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.floats(0.0, 1e4), st.floats(0.0, 1e4))
def test_what_is_blended_lies_between(known: float, rate: float, in_flight: float, answered: float) -> None:
    found, found_rate = blended((known, rate), (in_flight, answered))
    assert min(known, in_flight) <= found <= max(known, in_flight) * (1 + 1e-9)
    assert min(rate, answered) <= found_rate <= max(rate, answered) * (1 + 1e-9)


def test_a_node_takes_fewer_draws_the_more_it_has_to_do_beyond_its_part() -> None:
    counts = [0, 1, 5, 20, 40, 80, 10_000]
    parts = [passing(count, 50.0, 0.1) for count in counts]
    assert parts == sorted(parts, reverse=True)
    assert parts[:3] == [1.0] * 3  # five are its part
    assert 0.0 < parts[-1] <= 0.1
    assert passing(1, 0.0, 0.05) == 1.0  # one call to a node that has hardly any


def test_a_node_that_is_to_drain_gets_part_of_its_draws_until_it_has_or_is_heard_of_no_more() -> None:
    policy = dual()
    now_s = periods(policy, 3, lambda at: (0.5, 5, 50.0))
    dice = random.Random(2).random

    def drawn(host: str) -> float:
        picks = [policy.pick(now_s, dice) for _ in range(4000)]
        return sum(pick is not None and pick.node.host == host for pick in picks) / 500

    assert drawn("n0") == pytest.approx(1.0, abs=0.15)
    told(policy, "n0", now_s + 0.5, 0.5, 40, 50.0)
    assert 0.05 < drawn("n0") < 0.9
    told(policy, "n0", now_s + 1.5, 0.51, 5, 50.0)
    assert drawn("n0") == pytest.approx(1.0, abs=0.15)
    told(policy, "n0", now_s + 2.5, 0.5, 400, 50.0)
    assert drawn("n0") < 0.2
    now_s += 10.0
    policy.tick(now_s)
    assert drawn("n0") == pytest.approx(1.0, abs=0.15)


def test_statistics_say_who_drains_why_and_since_when() -> None:
    policy = dual()
    now_s = periods(policy, 3, lambda at: (0.5, 5, 50.0))
    for later_s, count in ((0.5, 30), (1.5, 40)):
        told(policy, "n0", now_s + later_s, 0.5 + later_s / 100, count, 50.0)
    first, *rest = policy.statistics(now_s + 1.5).nodes
    assert 0.0 < first.passes < 1.0
    assert first.passes == policy.eligible[0].passes
    assert (first.long_queue.objective, first.long_queue.since_s) == (Objective.QUEUE, now_s + 0.5)
    assert first.long_queue.text == f"told of 40 calls, 5 being its part: takes {first.passes:.0%} of its draws"
    assert first.because.endswith(first.long_queue.text)
    assert {(one.passes, one.long_queue.text, one.because) for one in rest} == {(1.0, "", "")}
    told(policy, "n0", now_s + 2.5, 0.5, 5, 50.0)
    first = policy.statistics(now_s + 2.5).nodes[0]
    assert (first.passes, first.long_queue.text) == (1.0, "")


# --- what was told once, and then never again ---------------------------------------------------------------------

_TOLD = st.fixed_dictionaries(
    {"utilization": st.dictionaries(st.sampled_from(["cpu", "gpu", "limit"]), st.floats(0.0, 1.0), min_size=1)},
    optional={
        "in_flight": st.integers(0, 500),
        "calls_per_s": st.floats(0.0, 500.0),
        "errors_per_s": st.floats(0.0, 5.0),
    },
)


@given(
    st.lists(_TOLD, min_size=1, max_size=5),
    st.sampled_from([(), ("in_flight",), ("calls_per_s",), ("calls_per_s", "errors_per_s"), ("gpu", "limit", "cpu")]),
)
def test_whatever_a_node_told_once_it_is_as_any_other_when_it_tells_it_no_more(
    said: list[dict[str, object]], kept_back: tuple[str, ...]
) -> None:
    """All fields that a report may lack; () stands for reports that stop altogether."""
    policy = dual()
    now_s = periods(policy, 3, lambda at: (0.5, 5, 50.0))
    node, other = policy.eligible[:2]

    def second(report: LoadReport | None) -> None:
        nonlocal now_s
        now_s += 1.0
        if report is not None:
            policy.report("n0:1", report, now_s)
        for at in range(1, 8):
            told(policy, f"n{at}", now_s, 0.5 + now_s / 1e4, 5, 50.0)
        policy.tick(now_s)

    for facts in said:
        second(LoadReport(**facts))  # type: ignore[arg-type]
    for _ in range(5):
        full = {"utilization": {"cpu": 0.5 + now_s / 1e4}, "in_flight": 5, "calls_per_s": 50.0, "errors_per_s": 0.0}
        less = {name: value for name, value in full.items() if name not in kept_back and "cpu" not in kept_back}
        second(LoadReport(**less) if less and kept_back else None)  # type: ignore[arg-type]
    assert node.passes == 1.0
    assert node not in policy._told.long_queues
    if {"in_flight", "calls_per_s"} & {*kept_back} or not kept_back or "cpu" in kept_back:
        assert (node.told_in_flight, node.answered_per_s) == (0.0, 0.0)
        assert policy._told.mean_s == pytest.approx(other.told_in_flight / other.answered_per_s)
    if "cpu" not in kept_back and kept_back:
        assert node.pressure == node.load.raw
        assert set(node.load.levels) == {"cpu"}
        assert node.load.load == pytest.approx(0.5, abs=0.5)
    else:
        for _ in range(8):
            second(None)
        assert node.load.state(now_s) is ReportState.UNKNOWN


def test_calls_go_on_when_every_node_is_to_drain() -> None:
    policy = dual()
    periods(policy, 3, lambda at: (0.5, 5, 50.0))
    for member in policy.eligible:
        member.passes = 0.05
    dice = random.Random(2).random
    assert len({policy.pick(3.5, dice) for _ in range(400)}) == 8


def test_a_slow_node_that_falls_silent_can_still_be_explained() -> None:
    policy = Dual(DualSettings())
    policy.set_nodes([node(f"n{at}") for at in range(12)], 0.0)
    now_s = periods(policy, 30, lambda at: (0.5, 80 if at == 11 else 2, 20.0))
    slow = policy.candidates[node("n11").identity]
    assert slow.pressure > slow.load.raw
    for second in range(12):
        now_s += 1.0
        for at in range(11):
            told(policy, f"n{at}", now_s, 0.5 + second / 1000, 2, 20.0)
        policy.tick(now_s)
        assert policy.statistics(now_s).nodes[11].reason is not None
    assert slow.told_in_flight == 0.0


@pytest.mark.parametrize(
    "bad", [{"calls_per_s": math.nan}, {"calls_per_s": 1e308}, {"in_flight": -1}, {"in_flight": 2**62}]
)
def test_a_report_that_is_not_believed_right_after_one_that_is_says_nothing_of_calls(bad: dict[str, float]) -> None:
    """Reports ride on replies and come pushed, so two may be of one moment."""
    policy = Dual(DualSettings())
    policy.set_nodes([node(f"n{at}") for at in range(4)], 0.0)
    now_s = periods(policy, 2, lambda at: (0.5, 2, 20.0))
    wrong = {"in_flight": 2, "calls_per_s": 20.0, **bad}
    policy.report("n0:1", LoadReport(utilization={"cpu": 0.5}, **wrong), now_s + 0.02)  # type: ignore[arg-type]
    assert policy.rejected_reports == 1
    policy.tick(now_s + 1.0)
    assert policy._told.mean_s == pytest.approx(0.1)


def test_a_key_finds_a_node_whatever_queue_a_reply_tells_of() -> None:
    """Of a sum with 2**62 calls in it, a few more or less are lost."""
    policy = Dual(DualSettings())
    policy.set_nodes([node(f"n{at}") for at in range(4)], 0.0)
    liar, *others = policy.eligible
    for told_in_flight in (2**62, 0):
        policy.started(liar, 0.1)
        policy.ended(liar, Outcome.OK, 0.1, latency_s=0.01, in_flight=told_in_flight)
        if told_in_flight:
            for member in others * 5:
                policy.started(member, 0.1)
    for member in others:
        policy.ended(member, Outcome.OK, 0.1, latency_s=0.01)
    dice = random.Random(1).random
    for key in range(40):
        assert policy.pick(0.1, dice, hash_key(str(key))) is not None
