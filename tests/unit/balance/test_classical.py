"""What each textbook policy measures, and that it is measured as its source says."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from support.fleet import node

from steelyard.balance import Candidate, NodeList, Policy, hash_key, make_policy
from steelyard.errors import ConfigError
from steelyard.model import LoadReport, Outcome


def policy_of(name: str, count: int = 2, **settings: Any) -> Policy:
    policy = make_policy(name, **settings)
    policy.set_nodes([node(f"n{at}") for at in range(count)], 0.0)
    return policy


def candidate(policy: Policy, host: str) -> Candidate:
    return policy.candidates[f"test.Fleet@{host}:1"]  # type: ignore[attr-defined,no-any-return]


def call(
    policy: Policy, host: str, now_s: float, latency_s: float, outcome: Outcome = Outcome.OK, **facts: Any
) -> None:
    one = candidate(policy, host)
    policy.started(one, now_s)
    policy.ended(one, outcome, now_s + latency_s, latency_s=latency_s, **facts)


def picks(policy: Policy, now_s: float, count: int = 400, seed: int = 1, key: int | None = None) -> Counter[str]:
    roll = random.Random(seed).random
    return Counter(one.node.host for _ in range(count) if (one := policy.pick(now_s, roll, key)) is not None)


# --- weighers ---------------------------------------------------------------------------------------------------------


def rated(policy: Policy, at_s: float, *, calls: float, cpu: float, errors: float = 0.0, host: str = "n0") -> None:
    policy.report(f"{host}:1", LoadReport(utilization={"cpu": cpu}, calls_per_s=calls, errors_per_s=errors), at_s)


def shares(policy: Policy, now_s: float) -> list[float]:
    return [record.share for record in policy.statistics(now_s).nodes]


def test_a58_weighs_by_calls_over_utilization_after_the_blackout_and_until_expiry() -> None:
    policy = policy_of("weighted_round_robin", 3)
    for second in range(12):
        rated(policy, second, calls=100, cpu=0.5)
        rated(policy, second, calls=100, cpu=0.25, host="n1")
        policy.tick(second)
        if second < 10:
            assert shares(policy, second) == [pytest.approx(1 / 3)] * 3
    # 200 and 400, and the mean of these for the one that does not report.
    assert shares(policy, 12.0) == pytest.approx([200 / 900, 400 / 900, 300 / 900])
    policy.tick(11.0 + 180.0)
    assert shares(policy, 191.0) == [pytest.approx(1 / 3)] * 3
    rated(policy, 192.0, calls=100, cpu=0.5)
    rated(policy, 192.0, calls=100, cpu=0.25, host="n1")
    policy.tick(193.0)
    assert shares(policy, 193.0) == [pytest.approx(1 / 3)] * 3  # expiry begins the blackout anew


def test_a58_charges_errors_as_utilization() -> None:
    policy = policy_of("weighted_round_robin", 2, blackout_s=0.0)
    rated(policy, 1.0, calls=100, cpu=0.5, errors=50)
    rated(policy, 1.0, calls=100, cpu=0.5, host="n1")
    policy.tick(1.0)
    assert shares(policy, 1.0) == pytest.approx([1 / 3, 2 / 3])


def test_a58_uses_own_rates_where_the_report_has_none() -> None:
    policy = policy_of("weighted_round_robin", 2, blackout_s=0.0)
    for host, calls in (("n0", 10), ("n1", 30)):
        for _ in range(calls):
            call(policy, host, 0.5, 0.01)
        policy.report(f"{host}:1", LoadReport(utilization={"cpu": 0.5}), 1.0)
    policy.tick(1.0)
    assert shares(policy, 1.0) == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("weights", [[1, 1, 1], [1, 2, 4], [10, 1, 1, 1, 1], [5, 7, 3, 100]])
def test_the_stride_gives_each_its_share_evenly_spaced(weights: list[int]) -> None:
    policy = policy_of("weighted_round_robin", len(weights), blackout_s=0.0)
    for at, weight in enumerate(weights):
        rated(policy, 1.0, calls=weight, cpu=0.5, host=f"n{at}")
    policy.tick(1.0)
    mean = sum(weights) / len(weights)
    held = [min(10 * mean, max(mean / 10, weight)) for weight in weights]  # gRPC's bounds
    roll = random.Random(1).random
    order = [policy.pick(1.0, roll).node.host for _ in range(2000)]  # type: ignore[union-attr]
    for at, weight in enumerate(held):
        expected = 2000 * weight / sum(held)
        # Evenly: right to within a few turns over any stretch, where draws would be off by their deviation.
        assert abs(order.count(f"n{at}") - expected) <= 4
        assert abs(order[:500].count(f"n{at}") - expected / 4) <= 4


def test_outlier_ejection_takes_out_the_bad_one_and_lets_it_back() -> None:
    policy = policy_of("weighted_round_robin", 10, outlier_ejection=True)
    policy.tick(0.0)
    for host in range(10):
        for at in range(100):
            call(policy, f"n{host}", 5.0, 0.01, Outcome.FAILED if host == 3 and at % 2 else Outcome.OK)
    policy.tick(10.0)
    assert "n3" not in picks(policy, 10.0)
    assert policy.statistics(10.0).nodes[3].list is NodeList.EJECTED
    assert policy.statistics(10.0).nodes[3].share == 0.0
    for second in range(20, 50, 10):
        policy.tick(float(second))
    assert picks(policy, 50.0)["n3"] > 20


def test_outlier_ejection_takes_out_at_most_a_tenth_and_never_all() -> None:
    policy = policy_of("weighted_round_robin", 10, outlier_ejection=True)
    policy.tick(0.0)
    for host in range(10):
        for _ in range(100):
            call(policy, f"n{host}", 5.0, 0.01, Outcome.FAILED if host < 4 else Outcome.OK)
    policy.tick(10.0)
    out = [record.node.host for record in policy.statistics(10.0).nodes if record.list is NodeList.EJECTED]
    assert len(out) == 1
    rest = [record.identity for record in policy.statistics(10.0).nodes if record.node.host not in out]
    left = policy.pick(10.0, random.Random(1).random, None, rest)
    assert left is not None
    assert left.node.host == out[0]


def test_idle_cpu_has_no_fixed_point() -> None:
    policy = policy_of("ralb", 2)
    policy.report("n0:1", LoadReport(utilization={"cpu": 0.9}), 1.0)
    policy.report("n1:1", LoadReport(utilization={"cpu": 0.5}), 1.0)
    policy.tick(1.0)
    assert shares(policy, 1.0) == pytest.approx([1 / 6, 5 / 6])


# --- meters -----------------------------------------------------------------------------------------------------------


def test_shortest_response_multiplies_latency_by_open_calls_and_tries_the_untried() -> None:
    policy = policy_of("shortest_response", 3)
    call(policy, "n0", 0.0, 0.010)
    call(policy, "n1", 0.0, 0.025)
    assert picks(policy, 1.0) == {"n2": 400}
    call(policy, "n2", 0.0, 0.5)
    assert picks(policy, 1.0) == {"n0": 400}
    policy.started(candidate(policy, "n0"), 1.0)
    policy.started(candidate(policy, "n0"), 1.0)
    assert picks(policy, 1.0) == {"n1": 400}  # 3 x 10 ms against 25
    assert picks(policy, 40.0).keys() == {"n1", "n2"}  # all averages are too old; n0 has yet to answer two calls


@pytest.mark.parametrize("bad_part", [1.0, 0.5, 0.1])
def test_shortest_response_is_not_drawn_to_a_node_that_fails_fast(bad_part: float) -> None:
    policy = policy_of("shortest_response", 3)
    chance = random.Random(1).random
    for at in range(100):
        for host in ("n1", "n2"):
            call(policy, host, at * 0.1, 0.050)
        call(policy, "n0", at * 0.1, 0.001, Outcome.FAILED if chance() < bad_part else Outcome.OK)
    assert "n0" not in picks(policy, 10.1)


def test_shortest_response_sends_one_call_and_not_all_to_a_node_that_has_yet_to_answer() -> None:
    policy = policy_of("shortest_response", 3)
    for host in ("n0", "n1"):
        call(policy, host, 0.0, 0.050)
    placed = []
    for _ in range(20):
        one = policy.pick(0.1, random.Random(1).random)
        assert one is not None
        policy.started(one, 0.1)
        placed.append(one.node.host)
    assert placed.count("n2") == 1


def test_shortest_response_hears_nothing_from_a_call_that_says_nothing() -> None:
    policy = policy_of("shortest_response", 2)
    for host, latency_s in (("n0", 0.010), ("n1", 0.020)):
        call(policy, host, 0.0, latency_s)
    call(policy, "n0", 0.1, 5.0, Outcome.IGNORED)  # the caller gave up
    assert picks(policy, 6.0) == {"n0": 400}


def test_peak_ewma_jumps_up_and_comes_down_slowly() -> None:
    policy = policy_of("peak_ewma", 2)
    for host in ("n0", "n1"):
        call(policy, host, 0.0, 0.010)
    call(policy, "n0", 0.1, 0.200)
    assert picks(policy, 0.3) == {"n1": 400}
    for at in range(20):
        call(policy, "n0", 0.3 + at * 0.1, 0.010)
        call(policy, "n1", 0.3 + at * 0.1, 0.010)
    assert picks(policy, 2.5) == {"n1": 400}  # two seconds of good behaviour are not enough at 10 s of decay
    for at in range(600):
        call(policy, "n0", 3.0 + at * 0.1, 0.010)
        call(policy, "n1", 3.0 + at * 0.1, 0.011)
    assert picks(policy, 63.1) == {"n0": 400}


def test_adaptive_reads_silence_as_full_and_not_as_idle() -> None:
    policy = policy_of("adaptive", 2)
    for at in range(20):
        for host in ("n0", "n1"):
            call(policy, host, at * 0.05, 0.01)
    policy.report("n0:1", LoadReport(utilization={"cpu": 0.3}), 1.0)
    assert picks(policy, 1.1) == {"n0": 400}
    policy.report("n1:1", LoadReport(utilization={"cpu": 0.1}), 1.0)
    assert picks(policy, 1.1) == {"n1": 400}
    call(policy, "n1", 2.5, 0.01)
    assert picks(policy, 3.2) == {"n0": 400}  # not picked for two timeouts: its turn


def test_available_takes_the_first_that_is_reached() -> None:
    policy = policy_of("available", 3)
    assert picks(policy, 0.0) == {"n0": 400}
    call(policy, "n0", 0.0, 0.0, Outcome.FAILED, is_transport=True)
    assert picks(policy, 0.1) == {"n1": 400}
    call(policy, "n1", 1.0, 0.0, Outcome.FAILED, is_transport=True)
    call(policy, "n2", 2.0, 0.0, Outcome.FAILED, is_transport=True)
    assert picks(policy, 2.1) == {"n0": 400}  # all are out of reach: the longest ago
    assert picks(policy, 9.0) == {"n0": 400}


@pytest.mark.parametrize("latency_s", [0.001, 1.0])  # it fails fast, or answers nothing at all
def test_available_leaves_a_node_that_is_reached_and_only_fails(latency_s: float) -> None:
    policy = policy_of("available", 2)
    for at in range(4):
        call(policy, "n0", float(at), latency_s, Outcome.FAILED)
    assert picks(policy, 5.0) == {"n0": 400}
    call(policy, "n0", 5.0, latency_s, Outcome.FAILED)
    assert picks(policy, 7.0) == {"n1": 400}


def test_available_tries_a_node_with_one_call_and_then_less_and_less_often() -> None:
    policy = policy_of("available", 2, retry_after_s=4.0)
    call(policy, "n0", 0.0, 0.0, Outcome.FAILED, is_transport=True)
    tried_at, now_s = [], 0.0
    while now_s < 200.0:
        now_s += 0.5
        chosen = []
        for _ in range(5):  # five callers at once, and the first node answers half a second later
            one = policy.pick(now_s, random.Random(1).random)
            assert one is not None
            policy.started(one, now_s)
            chosen.append(one)
        assert sum(one.node.host == "n0" for one in chosen) <= 1
        for one in chosen:
            outcome = Outcome.FAILED if one.node.host == "n0" else Outcome.OK
            policy.ended(one, outcome, now_s + 0.1, latency_s=0.1)
        tried_at += [now_s for one in chosen if one.node.host == "n0"]
    waits = [late - early for early, late in pairwise(tried_at)]
    assert waits[:4] == pytest.approx([8.0, 16.0, 24.0, 24.0], abs=0.7)  # doubling, to six times the first wait
    assert policy.pick(now_s, random.Random(1).random).node.host == "n1"  # type: ignore[union-attr]
    call(policy, "n0", now_s + 24.0, 0.01)  # a trial succeeds: the first is the first again
    assert picks(policy, now_s + 25.0) == {"n0": 400}


def test_available_does_not_lengthen_the_wait_for_calls_that_were_under_way() -> None:
    policy = policy_of("available", 2, retry_after_s=4.0)
    one = candidate(policy, "n0")
    for _ in range(50):
        policy.started(one, 0.0)
    for at in range(50):
        policy.ended(one, Outcome.FAILED, 1.0 + at * 0.1, latency_s=1.0 + at * 0.1)
    assert picks(policy, 5.3) == {"n1": 400}  # out since the fifth failure at 1.4
    assert picks(policy, 5.5) == {"n0": 400}


def test_zone_aware_stays_at_home_and_spills_over() -> None:
    policy = make_policy("zone_aware", zone="a", spill_over=3.0)
    policy.set_nodes([node("near", zone="a"), node("far", zone="b")], 0.0)
    assert picks(policy, 0.0) == {"near": 400}
    placed = []
    roll = random.Random(1).random
    for _ in range(40):
        one = policy.pick(0.0, roll)
        assert one is not None
        policy.started(one, 0.0)
        placed.append(one.node.host)
    assert placed[:2] == ["near", "near"]
    assert placed.count("near") == pytest.approx(30, abs=2)
    policy.set_nodes([node("near", zone="b"), node("far", zone="b")], 1.0)
    assert picks(policy, 1.0) == {"far": 400}  # nobody is at home: the less loaded of all


def test_bounded_hash_bounds_every_node_and_keeps_keys_otherwise() -> None:
    policy = policy_of("bounded_hash", 10)
    roll = random.Random(1).random
    hot = hash_key("hot")
    for at in range(1, 201):
        one = policy.pick(0.0, roll, hot)
        assert one is not None
        policy.started(one, 0.0)
        assert one.in_flight <= max(1, -(-125 * at // 1000))
    spread = [record.in_flight for record in policy.statistics(0.0).nodes]
    assert max(spread) <= 25
    assert min(spread) > 0


# --- prequal ----------------------------------------------------------------------------------------------------------


def probed(policy: Policy, host: str, in_flight: int, latency_s: float, now_s: float = 0.0) -> None:
    policy.probed(candidate(policy, host), now_s, in_flight=in_flight, latency_s=latency_s)  # type: ignore[attr-defined]


def test_prequal_takes_the_fastest_cold_and_among_hot_ones_the_least_loaded() -> None:
    policy = policy_of("prequal", 4)
    for host, in_flight, latency_s in (("n0", 1, 0.09), ("n1", 2, 0.04), ("n2", 3, 0.08), ("n3", 10, 0.01)):
        probed(policy, host, in_flight, latency_s)
    assert picks(policy, 0.1) == {"n1": 400}
    hot = policy_of("prequal", 2, hot_quantile=0.0)
    probed(hot, "n0", 3, 0.001)
    probed(hot, "n1", 2, 1.0)
    assert picks(hot, 0.1) == {"n1": 400}
    latency = policy_of("prequal", 2, hot_quantile=1.0)
    probed(latency, "n0", 30, 0.001)
    probed(latency, "n1", 2, 1.0)
    assert picks(latency, 0.1) == {"n0": 400}


def test_prequal_without_fresh_probes_is_random() -> None:
    policy = policy_of("prequal", 2)
    probed(policy, "n0", 0, 0.001)
    assert set(picks(policy, 0.1)) == {"n0", "n1"}  # one probe is no choice
    probed(policy, "n1", 0, 0.01)
    assert set(picks(policy, 0.5)) == {"n0"}
    assert set(picks(policy, 1.5)) == {"n0", "n1"}  # too old


def test_prequal_counts_its_own_calls_and_uses_probes_up() -> None:
    policy = policy_of("prequal", 3, remove_rate=0.0, hot_quantile=0.0)
    for host in ("n0", "n1", "n2"):
        probed(policy, host, 5, 0.01)
    for _ in range(2):
        one = policy.pick(0.1, random.Random(1).random)
        assert one is not None
        policy.started(one, 0.1)
    # With three nodes for a pool of 16 a probe is used once: the two that were taken are gone.
    assert len(policy._pool) == 1  # type: ignore[attr-defined]


def test_prequal_asks_three_nodes_a_call_and_one_a_second_when_idle() -> None:
    policy = policy_of("prequal", 50)
    roll = random.Random(1).random
    assert len(policy.probes(0.0, roll)) == 1  # type: ignore[attr-defined]
    assert not policy.probes(0.5, roll)  # type: ignore[attr-defined]
    policy.started(candidate(policy, "n0"), 0.5)
    asked = policy.probes(0.5, roll)  # type: ignore[attr-defined]
    assert len({one.identity for one in asked}) == 3
    assert not policy.probes(0.6, roll)  # type: ignore[attr-defined]
    assert len(policy.probes(2.0, roll)) == 1  # type: ignore[attr-defined]


def test_latency_is_told_for_a_similar_number_of_calls() -> None:
    from steelyard.balance import LatencyByLoad

    latencies = LatencyByLoad()
    assert latencies.estimate(5) == 0.0
    for at in range(20):
        latencies.observe(1, 0.010 + at % 3 * 0.001)
        latencies.observe(20, 0.200)
    assert latencies.estimate(1) == pytest.approx(0.011)
    assert latencies.estimate(21) == latencies.estimate(19) == 0.2
    assert latencies.estimate(100) == 0.2


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("weighted_round_robin", {"error_penalty": -1.0}),
        ("bounded_hash", {"bound": 0.9}),
        ("prequal", {"pool_size": 1}),
        ("prequal", {"hot_quantile": 1.1}),
        ("zone_aware", {"spill_over": 0.5}),
        ("adaptive", {"timeout_s": 0.0}),
        ("peak_ewma", {"decay_s": "long"}),
        ("shortest_response", {"slide_s": 0}),
        ("shortest_response", {"failure_s": -0.1}),
        ("available", {"retry_after_s": -1}),
        ("available", {"failures": 0}),
        ("dual", {"law": "ratios"}),
        ("dual", {"resources": ""}),
    ],
)
def test_settings_out_of_range_are_named(name: str, settings: dict[str, Any]) -> None:
    (field,) = settings
    with pytest.raises(ConfigError, match=f"{field} must be"):
        make_policy(name, **settings)
