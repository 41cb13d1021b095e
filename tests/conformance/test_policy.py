"""What every policy must do, whatever its law. Parameterised by name: a new policy is tested by being registered.

What a weight promises differs (docs/policies.md), so the suite has tables of that: IN_ORDER, OPEN_BY_WEIGHT.
"""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleet import node

from steelyard.balance import Candidate, Policy, ProbingPolicy, hash_key, make_policy, policy_names
from steelyard.model import LoadReport, Outcome
from steelyard_registry.node import Node, NodeState

every_policy = pytest.mark.parametrize("name", policy_names())
by_key = pytest.mark.parametrize("name", ["bounded_hash", "consistent_hash", "dual", "ratio"])

# By order and not by weight, on purpose.
IN_ORDER = {"available"}
# Open calls come out in proportion to weights when they pile up.
OPEN_BY_WEIGHT = ("dual", "least_active", "p2c", "zone_aware")
keys = st.none() | st.integers(0, 2**64 - 1)
numbers = st.sampled_from([0.0, 0.5, 1.0, 1.6, -1.0, 1e300, math.inf, math.nan])
counts = st.sampled_from([None, 0, 3, -1, 10**12])
small = settings(max_examples=25, deadline=None)


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
@settings(max_examples=15, deadline=None)
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
        report = LoadReport(
            utilization={data.draw(st.sampled_from(["cpu", "gpu", "memory"])): data.draw(numbers)},
            in_flight=data.draw(counts),
            age_s=data.draw(numbers),
            calls_per_s=data.draw(st.none() | numbers),
            errors_per_s=data.draw(st.none() | numbers),
        )
        policy.report(data.draw(st.sampled_from(pool)).address, report, now_s)
        if isinstance(policy, ProbingPolicy):
            for asked in policy.probes(now_s, roll):
                policy.probed(asked, now_s, in_flight=data.draw(counts) or 0, latency_s=data.draw(numbers))
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
def test_one_node_takes_all_and_is_excluded_like_any_other(name: str) -> None:
    policy = policy_of(name, node("a"))
    roll = dice().random
    for at in range(50):
        now_s = at * 0.1
        candidate = policy.pick(now_s, roll, at if at % 2 else None)
        assert candidate is not None
        policy.started(candidate, now_s)
        policy.ended(candidate, Outcome.FAILED, now_s, latency_s=0.01, is_transport=True)
        policy.tick(now_s)
        assert policy.pick(now_s, roll, at if at % 2 else None, [candidate.node.identity]) is None


@every_policy
def test_the_same_dice_give_the_same_picks(name: str) -> None:
    def picks() -> list[str]:
        policy = policy_of(name, *(node(f"n{at}", 50 + at) for at in range(7)))
        roll = dice(3).random
        picked = []
        for at in range(200):
            now_s = at * 0.05
            candidate = policy.pick(now_s, roll, hash_key(at) if at % 3 else None)
            assert candidate is not None
            picked.append(candidate.node.host)
            policy.started(candidate, now_s)
            if at % 4:
                outcome = Outcome.FAILED if at % 11 == 0 else Outcome.OK
                policy.ended(candidate, outcome, now_s, latency_s=at % 5 * 0.01, in_flight=at % 3)
            policy.report(f"n{at % 7}:1", LoadReport(utilization={"cpu": at % 10 / 10}), now_s)
            if at % 20 == 0:
                policy.tick(now_s)
        return picked

    assert picks() == picks()


@every_policy
def test_ten_thousand_nodes(name: str) -> None:
    nodes = [node(f"n{at}") for at in range(10_000)]
    policy = policy_of(name, *nodes)
    roll = dice().random
    policy.tick(1.0)
    picked = []
    for at in range(20):
        policy.set_nodes([*nodes[at + 1 :], *nodes[: at + 1]], 1.0)  # another order changes nothing
        picked.append(policy.pick(1.0, roll, hash_key(at) if at % 2 else None))
    assert all(candidate is not None for candidate in picked)
    assert name in IN_ORDER or len({candidate.node.host for candidate in picked if candidate}) > 10


@every_policy
def test_a_thousand_nodes_of_which_one_changes_at_every_pick(name: str) -> None:
    nodes = [node(f"n{at}") for at in range(1_000)]
    policy = policy_of(name, *nodes)
    roll = dice().random
    open_calls = []
    for at in range(30):
        there = [*nodes[: at * 7], *nodes[at * 7 + 1 :], node(f"new{at}")]
        policy.set_nodes(there, at * 0.1)
        candidate = policy.pick(at * 0.1, roll, hash_key(at) if at % 2 else None)
        assert candidate is not None
        assert candidate.node in there
        policy.started(candidate, at * 0.1)
        open_calls.append(candidate)
        policy.tick(at * 0.1)
    assert policy.statistics(3.0).open_calls == sum(candidate.is_member for candidate in open_calls)


@every_policy
@settings(max_examples=8, deadline=None)
@given(
    phases=st.lists(
        st.tuples(st.lists(st.integers(10, 300), min_size=3, max_size=3), st.integers(50, 400)), min_size=1, max_size=4
    )
)
def test_weights_are_respected_over_any_window_even_while_they_change(
    name: str, phases: list[tuple[list[int], int]]
) -> None:
    """Nothing else distinguishes the nodes: calls are answered at once, in no time, by whom they were sent to."""
    if name in IN_ORDER:
        return
    policy = make_policy(name)
    roll = dice(len(phases)).random
    got: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    variance: Counter[str] = Counter()
    for weights, picks in phases:
        policy.set_nodes([node(f"n{at}", weight) for at, weight in enumerate(weights)], 0.0)
        for at, weight in enumerate(weights):
            share = weight / sum(weights)
            expected[f"n{at}"] += picks * share  # type: ignore[assignment]
            variance[f"n{at}"] += picks * share * (1 - share)  # type: ignore[assignment]
        for _ in range(picks):
            candidate = policy.pick(0.0, roll)
            assert candidate is not None
            got[candidate.node.host] += 1
        for host, calls in expected.items():
            # Five standard deviations of independent draws, and one turn per change for those that take turns.
            assert abs(got[host] - calls) <= 5 * variance[host] ** 0.5 + 1 + len(phases), (host, got, expected)


@pytest.mark.parametrize("name", OPEN_BY_WEIGHT)
@small
@given(weights=st.lists(st.integers(20, 200), min_size=2, max_size=4), seed=st.integers(0, 99))
def test_calls_that_stay_open_pile_up_in_proportion_to_weights(name: str, weights: list[int], seed: int) -> None:
    policy = policy_of(name, *(node(f"n{at}", weight) for at, weight in enumerate(weights)))
    roll = dice(seed).random
    calls = 400
    for _ in range(calls):
        candidate = policy.pick(0.0, roll)
        assert candidate is not None
        policy.started(candidate, 0.0)
    for record, weight in zip(policy.statistics(0.0).nodes, weights, strict=True):
        # Much nearer than independent draws would come (5 deviations of those are up to 50).
        assert abs(record.in_flight - calls * weight / sum(weights)) <= 20


@by_key
def test_a_key_stays_where_it_is_while_nothing_happens(name: str) -> None:
    policy = policy_of(name, *(node(f"n{at}") for at in range(20)))
    roll = dice().random
    homes: dict[int, str] = {}
    for at in range(2000):
        key = hash_key(at % 100)
        candidate = policy.pick(at * 0.01, roll, key)
        assert candidate is not None
        assert homes.setdefault(key, candidate.node.host) == candidate.node.host
        policy.started(candidate, at * 0.01)
        policy.ended(candidate, Outcome.OK, at * 0.01, latency_s=0.001)
        if at % 100 == 0:
            policy.tick(at * 0.01)


@by_key
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
