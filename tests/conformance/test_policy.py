"""What every policy must do, whatever its law. Parameterised by name: a new policy is tested by being registered."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleet import node

from steelyard.balance import Candidate, Policy, hash_key, make_policy, policy_names
from steelyard.model import LoadReport, Outcome
from steelyard_registry.node import Node, NodeState

every_policy = pytest.mark.parametrize("name", policy_names())
keys = st.none() | st.integers(0, 2**64 - 1)
numbers = st.sampled_from([0.0, 0.5, 1.0, 1.6, -1.0, 1e300, math.inf, math.nan])
small = settings(max_examples=60, deadline=None)


def dice(seed: int = 1) -> random.Random:
    return random.Random(seed)


def policy_of(name: str, *nodes: Node) -> Policy:
    policy = make_policy(name)
    policy.set_nodes(nodes, 0.0)
    return policy


@every_policy
@small
@given(weights=st.lists(st.integers(0, 1000), max_size=12), excluded=st.sets(st.integers(0, 11)), key=keys)
def test_never_an_excluded_or_weightless_node_and_none_only_when_nothing_is_left(
    name: str, weights: list[int], excluded: set[int], key: int | None
) -> None:
    nodes = [node(f"n{at}", weight) for at, weight in enumerate(weights)]
    policy = policy_of(name, *nodes)
    tried = [one.identity for at, one in enumerate(nodes) if at in excluded]
    allowed = {one.identity for at, one in enumerate(nodes) if at not in excluded and weights[at] > 0}
    roll = dice().random
    for _ in range(5):
        candidate = policy.pick(0.0, roll, key, tried)
        if allowed:
            assert candidate is not None
            assert candidate.node.identity in allowed
        else:
            assert candidate is None


@every_policy
def test_only_ready_nodes_are_picked(name: str) -> None:
    nodes = [node(state.value, state=state) for state in NodeState]
    policy = policy_of(name, *nodes)
    roll = dice().random
    picked = {policy.pick(0.0, roll, key).node.host for key in (None, *map(hash_key, range(50)))}  # type: ignore[union-attr]
    assert picked == {NodeState.READY.value}


@every_policy
@small
@given(data=st.data())
def test_in_flight_adds_up_through_churn_endings_and_bad_reports(name: str, data: st.DataObject) -> None:
    policy = make_policy(name)
    roll = dice(data.draw(st.integers(0, 9))).random
    pool = [node(f"n{at}") for at in range(5)]
    seen: dict[int, Candidate] = {}
    open_calls: list[Candidate] = []
    now_s = 0.0
    for _ in range(data.draw(st.integers(1, 30))):
        now_s += data.draw(st.sampled_from([0.0, 0.3, 1.0, 20.0]))
        policy.set_nodes(data.draw(st.lists(st.sampled_from(pool), max_size=6)), now_s)
        candidate = policy.pick(now_s, roll, data.draw(keys))
        if candidate is not None:
            policy.started(candidate, now_s)
            seen[id(candidate)] = candidate
            open_calls.append(candidate)
        if open_calls and data.draw(st.booleans()):
            policy.ended(
                open_calls.pop(data.draw(st.integers(0, len(open_calls) - 1))),
                data.draw(st.sampled_from(Outcome)),
                now_s,
                latency_s=0.01,
                in_flight=data.draw(st.none() | st.integers(-1, 10**9)),
                is_transport=data.draw(st.booleans()),
            )
        report = LoadReport(utilization={"cpu": data.draw(numbers)}, age_s=data.draw(numbers))
        policy.report(data.draw(st.sampled_from(pool)).address, report, now_s)
        if data.draw(st.booleans()):
            policy.tick(now_s)
        statistics = policy.statistics(now_s)
        assert sum(one.in_flight for one in seen.values()) == len(open_calls)
        assert all(math.isfinite(record.share) and record.share >= 0 for record in statistics.nodes)
    while open_calls:
        policy.ended(open_calls.pop(), Outcome.OK, now_s, latency_s=0.01)
    assert all(one.in_flight == 0 for one in seen.values())
    assert policy.statistics(now_s).open_calls == 0


@every_policy
def test_a_candidate_lasts_while_its_node_does(name: str) -> None:
    policy = policy_of(name, node("a"))
    first = policy.pick(0.0, dice().random)
    assert first is not None
    policy.started(first, 0.0)
    policy.set_nodes([node("a", 50, tags={"pool": "x"})], 1.0)
    same = policy.pick(1.0, dice().random)
    assert same is first
    assert (first.node.weight, first.in_flight) == (50, 1)
    policy.set_nodes([], 2.0)
    assert policy.pick(2.0, dice().random) is None
    policy.set_nodes([node("a")], 3.0)
    back = policy.pick(3.0, dice().random)
    assert back is not None
    assert back is not first
    policy.ended(first, Outcome.OK, 4.0, latency_s=1.0)
    assert (first.in_flight, back.in_flight) == (0, 0)


@every_policy
def test_a_call_cannot_end_twice(name: str) -> None:
    policy = policy_of(name, node("a"))
    candidate = policy.pick(0.0, dice().random)
    assert candidate is not None
    with pytest.raises(ValueError, match="never started"):
        policy.ended(candidate, Outcome.OK, 0.0, latency_s=0.0)


@every_policy
def test_bad_reports_are_counted_and_change_nothing(name: str) -> None:
    policy = policy_of(name, node("a"), node("b"))
    policy.report("a:1", LoadReport(utilization={"cpu": 0.5}), 1.0)
    for value in (math.nan, -0.1, 1.6, math.inf):
        policy.report("a:1", LoadReport(utilization={"cpu": value}), 2.0)
    policy.report("a:1", LoadReport(utilization={"cpu": 0.1}, age_s=math.nan), 2.0)
    policy.report("elsewhere:1", LoadReport(utilization={"cpu": 0.1}), 2.0)
    statistics = policy.statistics(2.0)
    assert statistics.rejected_reports == 5
    assert [record.load for record in statistics.nodes] == [0.5, None]


@every_policy
def test_ten_thousand_nodes(name: str) -> None:
    policy = policy_of(name, *(node(f"n{at}") for at in range(10_000)))
    roll = dice().random
    policy.tick(1.0)
    picked = [policy.pick(1.0, roll, hash_key(at) if at % 2 else None) for at in range(20)]
    assert all(candidate is not None for candidate in picked)
    assert name == "available" or len({candidate.node.host for candidate in picked if candidate}) > 10


@pytest.mark.parametrize("name", ["random", "round_robin", "consistent_hash"])
def test_weights_are_respected_also_while_they_change(name: str) -> None:
    policy = policy_of(name, node("a", 100), node("b", 300))
    roll = dice().random
    counts: Counter[str] = Counter()
    for at in range(8000):
        if at == 4000:
            policy.set_nodes([node("a", 300), node("b", 100)], 1.0)
        candidate = policy.pick(0.0, roll)
        assert candidate is not None
        counts[candidate.node.host, at < 4000] += 1  # type: ignore[index]
    # 5 standard deviations of 4,000 draws at 1/4 are 137.
    assert abs(counts["a", True] - 1000) < 137  # type: ignore[index]
    assert abs(counts["b", False] - 1000) < 137  # type: ignore[index]


@pytest.mark.parametrize("name", ["consistent_hash", "dual"])
def test_a_join_or_leave_moves_few_keys(name: str) -> None:
    hashed = [hash_key(at) for at in range(4000)]
    many = [node(f"n{at}") for at in range(20)]

    def homes(*nodes: Node) -> list[str]:
        policy = policy_of(name, *nodes)
        return [policy.pick(0.0, dice().random, key).node.host for key in hashed]  # type: ignore[union-attr]

    before, after = homes(*many), homes(*many[1:])
    moved = [old for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"n0"}  # nothing but the keys of the one that left
    assert len(moved) / len(hashed) <= 1.5 / 20
