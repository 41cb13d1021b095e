"""The dual-objective law acting on a fleet in virtual time: what an operator would see.

Bounds are those of the design or of the demo, not what was measured; the measured values stand beside the defaults.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from support.fleet import Fleet, Machine, node, unequal_fleet

from steelyard.balance import Candidate, NodeList, Objective, PolicyStatistics, hash_key, make_policy
from steelyard.balance.dual import Dual, DualSettings
from steelyard.model import LoadReport, Outcome

seeds = pytest.mark.parametrize("seed", [1, 2, 3])
SICK = "cpu-4"


def record(statistics: PolicyStatistics, name: str):  # type: ignore[no-untyped-def]
    return next(one for one in statistics.nodes if one.node.host == name)


def kept(policy: Dual, name: str) -> float:
    return next(one.kept for one in policy.eligible if one.node.host == name)


def equal_fleet(count: int = 8, fail: float = 0.0) -> list[Machine]:
    return [Machine(f"n{at}", fail=fail) for at in range(count)]


@seeds
@pytest.mark.parametrize("keys", [2000, None])
def test_a_node_that_fails_half_is_emptied_and_comes_back(seed: int, keys: int | None) -> None:
    fleet = Fleet(make_policy("dual"), unequal_fleet(), seed=seed, keys=keys)
    fleet.run(10)
    fleet.machines[SICK].fail = 0.5
    fleet.run(20)
    statistics = fleet.policy.statistics(20.0)
    fleet.machines[SICK].fail = 0.0
    fleet.run(30)
    assert fleet.share(SICK, 12, 20) <= 0.05
    calls = sum(second.calls for second in fleet.seconds[10:20])
    assert 1 - sum(second.failed for second in fleet.seconds[10:20]) / calls >= 0.995
    assert fleet.share(SICK, 27, 30) >= 0.5 / 8
    # Not flooded on its way back either: its load looked low only because it was empty.
    assert fleet.share(SICK, 27, 30) <= 2.5 * max(1 / 8, fleet.share(SICK, 5, 10))
    sick = record(statistics, SICK)
    assert sick.list is NodeList.PROBING
    assert sick.reason.objective is Objective.AVAILABILITY
    assert 10.0 <= sick.reason.since_s <= 13.0
    assert sick.refuse_ratio > 0.8


@seeds
@pytest.mark.parametrize("explore_per_s", [1.0, 2.0, 4.0])
def test_the_return_is_not_wound_up_from_any_floor(seed: int, explore_per_s: float) -> None:
    # The doublings from a floor of 0.1 or 0.05 end their last step at 0.8: that, too, is a return from the bottom.
    policy = Dual(DualSettings(explore_per_s=explore_per_s))
    fleet = Fleet(policy, equal_fleet(), seed=seed)
    fleet.run(10)
    fleet.machines["n3"].fail = 0.5
    fleet.run(20)
    fleet.machines["n3"].fail = 0.0
    before = next(one.log_w for one in policy.eligible if one.node.host == "n3")
    for second in range(20, 40):
        fleet.run(second + 1)
        if kept(policy, "n3") == 1.0:
            break
    member = next(one for one in policy.eligible if one.node.host == "n3")
    assert member.held_until_s > fleet.now_s
    # Frozen but for the common drift.
    assert abs(member.log_w - before) < 0.2


@seeds
def test_failing_fast_does_not_attract(seed: int) -> None:
    fleet = Fleet(make_policy("dual"), equal_fleet(), seed=seed, keys=None)
    fleet.run(10)
    fleet.machines["n0"].fail, fleet.machines["n0"].fail_cost = 1.0, 0.01
    fleet.run(20)
    assert fleet.share("n0", 10, 11) <= 1 / 8
    assert fleet.share("n0", 13, 20) <= 0.02


@seeds
def test_a_slightly_sicker_node_slides_and_is_not_emptied(seed: int) -> None:
    machines = equal_fleet(fail=0.005)
    machines[0].fail = 0.025
    fleet = Fleet(make_policy("dual"), machines, seed=seed)
    lowest = []
    for second in range(1, 61):
        fleet.run(second)
        lowest.append(kept(fleet.policy, "n0"))  # type: ignore[arg-type]
    assert min(lowest) < 1.0
    assert min(lowest) > 0.3
    steps = [after / before for before, after in pairwise(lowest)]
    assert min(steps) > 0.7


def test_noise_condemns_nobody() -> None:
    shed = total = 0
    for seed in (1, 2, 3):
        fleet = Fleet(make_policy("dual"), equal_fleet(fail=0.005), seed=seed)
        for second in range(1, 61):
            fleet.run(second)
            shares = [member.kept for member in fleet.policy.eligible]  # type: ignore[attr-defined]
            assert min(shares) > 0.5
            shed += sum(share < 1.0 for share in shares)
            total += len(shares)
    # The false-positive rate: node-seconds under the full share.
    assert shed / total <= 0.03


def test_when_all_fail_all_are_used() -> None:
    fleet = Fleet(make_policy("dual"), equal_fleet(), retries=0)
    fleet.run(10)
    for machine in fleet.machines.values():
        machine.fail = 0.6
    fleet.run(25)
    statistics = fleet.policy.statistics(25.0)
    assert statistics.is_panic
    assert statistics.panics >= 1
    assert all(fleet.share(name, 20, 25) >= 0.5 / 8 for name in fleet.machines)
    for machine in fleet.machines.values():
        machine.fail = 0.0
    fleet.run(60)
    assert not fleet.policy.statistics(60.0).is_panic


def test_most_nodes_dead_is_panic_and_few_is_not() -> None:
    for dead, is_panic in ((3, False), (5, True)):
        fleet = Fleet(make_policy("dual"), equal_fleet())
        fleet.run(5)
        for at in range(dead):
            fleet.machines[f"n{at}"].fail = 1.0
        fleet.run(20)
        statistics = fleet.policy.statistics(20.0)
        assert statistics.is_panic is is_panic, dead
        if not is_panic:
            assert sum(fleet.share(f"n{at}", 15, 20) for at in range(dead)) <= 0.05


@pytest.mark.parametrize("is_down", [True, False])
def test_the_last_node_is_never_emptied(is_down: bool) -> None:
    fleet = Fleet(make_policy("dual"), equal_fleet(1))
    fleet.machines["n0"].is_down, fleet.machines["n0"].fail = is_down, 1.0
    fleet.run(20)
    assert sum(fleet.seconds[-1].sent.values()) > 100


@seeds
def test_a_dead_connection_is_left_at_once_and_tried_singly(seed: int) -> None:
    fleet = Fleet(make_policy("dual"), equal_fleet(), seed=seed)
    fleet.run(10)
    fleet.machines["n0"].is_down = True
    fleet.run(30)
    # Five failures and those already on their way, within the second; then probes at 1, 2, 4, 8 s with jitter.
    assert fleet.seconds[10].sent["n0"] <= 12
    assert 2 <= sum(second.sent["n0"] for second in fleet.seconds[11:30]) <= 8
    dead = record(fleet.policy.statistics(30.0), "n0")
    assert dead.list is NodeList.EJECTED
    assert dead.reason.objective is Objective.TRANSPORT
    fleet.machines["n0"].is_down = False
    # The next probe may be 17 s away by now (back-off of 16 s, with jitter), and readmission follows it.
    fleet.run(75)
    assert fleet.share("n0", 72, 75) >= 0.5 / 8


def test_overload_sheds_and_never_ejects() -> None:
    policy = Dual()
    policy.set_nodes([node("a"), node("b"), node("c")], 0.0)
    for at in range(60):
        member = policy.eligible[at % 3]
        policy.started(member, at * 0.1)
        outcome = Outcome.FAILED if member is policy.eligible[0] else Outcome.OK
        policy.ended(member, outcome, at * 0.1, latency_s=0.01)
    policy.tick(6.0)
    assert not policy.eligible[0].is_ejected
    assert policy.eligible[0].kept < 0.5


@seeds
@pytest.mark.parametrize("lag_s", [1.0, 2.0])
def test_loads_even_out(seed: int, lag_s: float) -> None:
    spread = {}
    for name in ("consistent_hash", "dual"):
        fleet = Fleet(make_policy(name), unequal_fleet(), seed=seed, lag_s=lag_s, noise=0.05)
        fleet.run(50)
        spread[name] = fleet.load_std(30, 50)
    assert spread["dual"] <= 0.3 * spread["consistent_hash"]


def test_a_quiet_cluster_keeps_its_plan() -> None:
    policy = Dual()
    policy.set_nodes([node("a"), node("b")], 0.0)
    policy.pick(0.0, lambda: 0.5, hash_key(1))
    plan = policy._plan
    for second in range(1, 30):
        for name in ("a:1", "b:1"):
            policy.report(name, LoadReport(utilization={"cpu": 0.5}), float(second))
        policy.tick(float(second))
    assert policy._plan is plan


def test_a_silent_node_is_neutral_and_a_lost_reporter_goes_home() -> None:
    machines = equal_fleet()
    machines[0].is_silent = True
    machines[1].speed = 0.5
    fleet = Fleet(make_policy("dual", decay_half_life_s=5.0), machines)
    fleet.run(30)
    assert record(fleet.policy.statistics(30.0), "n1").weight_ratio < 0.8
    assert fleet.share("n0", 20, 30) == pytest.approx(record(fleet.policy.statistics(30.0), "n0").base_share, rel=0.35)
    fleet.machines["n1"].is_silent = True
    fleet.run(80)
    assert record(fleet.policy.statistics(80.0), "n1").weight_ratio == pytest.approx(1.0, abs=0.1)


def test_a_joining_node_warms_up() -> None:
    policy = Dual()
    nodes = [node(f"n{at}") for at in range(4)]
    policy.set_nodes(nodes[:3], 0.0)
    policy.tick(100.0)
    policy.set_nodes(nodes, 100.0)
    shares = []
    for second in (100, 110, 120, 131):
        policy.tick(float(second))
        shares.append(record(policy.statistics(float(second)), "n3").share)
    assert record(policy.statistics(105.0), "n0").list is not NodeList.WARMING
    assert shares[0] <= 0.25 * 0.1 + 1e-9
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(0.25)


def ended(policy: Dual, candidate: Candidate, outcome: Outcome, in_flight: int | None) -> None:
    policy.started(candidate, 0.0)
    policy.ended(candidate, outcome, 0.0, latency_s=0.01, in_flight=in_flight)


def test_replies_tell_the_queue_and_pushed_reports_do_not() -> None:
    policy = Dual()
    policy.set_nodes([node("a"), node("b")], 0.0)
    first, second = policy.eligible
    ended(policy, first, Outcome.OK, 9)
    assert first.queue == 9.0
    policy.started(first, 0.0)
    assert first.queue == 10.0
    policy.report("a:1", LoadReport(utilization={"cpu": 0.1}, in_flight=0), 0.5)
    assert first.queue == 10.0
    policy.tick(1.0)
    ended(policy, second, Outcome.FAILED, 0)
    # At least the fleet's mean (10 and 0, decayed over a second) and one.
    assert second.queue >= (10.0 * 2 ** (-1 / 15)) / 2 + 1.0 - 1e-9


@seeds
def test_a_paused_node_does_not_hold_its_keys_calls(seed: int) -> None:
    fleet = Fleet(make_policy("dual"), equal_fleet(11), seed=seed)
    fleet.run(10)
    fleet.machines["n0"].free_at_s = 40.0
    fleet.run(12)
    # Bounded load: its queue stops growing long before a timeout would tell.
    assert fleet.seconds[11].sent["n0"] <= 0.5 * 200 / 11
