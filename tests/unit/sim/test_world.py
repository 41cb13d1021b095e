"""Whole runs: conservation, determinism, deadlines, retries, faults, views."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from unit.sim.worlds import run, scenario

from steelyard.balance import policy_names
from steelyard.sim.arrivals import draw_arrivals
from steelyard.sim.call import Ending
from steelyard.sim.measure import METRICS, measure
from steelyard.sim.world import World

FAILING = [{"kind": "fail", "nodes": "node:0", "rate": 1.0, "cost": 0.1, "at_s": 2}]
TROUBLES = [
    {"kind": "crash", "nodes": "node:0", "at_s": 4, "until_s": 8},
    {"kind": "pause", "nodes": "node:1", "at_s": 5, "until_s": 7},
    {"kind": "slow", "nodes": "node:2", "at_s": 3, "until_s": 9, "every_s": 8},
    {"kind": "leave", "nodes": "node:3", "at_s": 6, "until_s": 10},
    {"kind": "nan", "nodes": "node:2", "at_s": 3},
]


def ending_count(world: World, ending: Ending) -> int:
    return sum(code & 15 == ending for code in world.recorder.code)


@pytest.mark.parametrize("policy", policy_names())
def test_every_call_ends_once_whatever_happens(policy: str) -> None:
    """And when all is over, nobody believes that anything is still under way."""
    parts: dict[str, Any] = {
        "faults": TROUBLES,
        "consumers": {"delay_s": 0.001, "timeout_s": 0.5, "retries": 2},
        "traffic": {"load": [[0, 0.7], [15, 0.7], [15, 0]], "keys": 100},
        "seconds": 60,  # what its callers have given up a server still works off
    }
    world = run(policy, **parts)
    assert world.calls == len(draw_arrivals(scenario(**parts), 1).at_s)
    assert [client.policy.statistics(60.0).open_calls for client in world.clients] == [0] * 4
    assert [server.in_flight for server in world.servers] == [0] * 4


@pytest.mark.parametrize("policy", ["dual", "p2c", "prequal"])
def test_the_same_seed_is_the_same_run(policy: str) -> None:
    parts: dict[str, Any] = {"faults": TROUBLES, "traffic": {"load": 0.7, "keys": 50}}
    one, other = run(policy, **parts), run(policy, **parts)
    assert one.recorder.latency_s == other.recorder.latency_s
    assert measure(one) == measure(other)
    assert measure(run(policy, seed=2, **parts)) != measure(one)


def test_a_run_does_not_depend_on_the_process() -> None:
    """Hashes of texts differ from process to process; no number may."""
    script = (
        "import sys; sys.path.insert(0, {tests!r})\n"
        "from unit.sim.worlds import run\nfrom steelyard.sim.measure import measure\n"
        "print(sorted(measure(run('dual', traffic={{'load': 0.7, 'keys': 50}})).items()))"
    ).format(tests=str(__import__("pathlib").Path(__file__).parents[2]))
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


def test_policies_see_the_same_calls() -> None:
    one, other = run("random"), run("p2c")
    assert one.calls == other.calls
    assert one._arrivals == other._arrivals


def test_every_metric_is_documented() -> None:
    world = run(
        "dual",
        faults=[*TROUBLES, *FAILING],
        traffic={"load": 0.9, "keys": 50, "priorities": [0.5]},
        consumers={"protection": True},
        nodes=[{"name": "node", "count": 4, "cache_keys": 10}],
        measure={"from_s": 5, "disturbed_at_s": 8, "disturbed_until_s": 15},
    )
    assert set(measure(world)) <= set(METRICS)


def test_a_deadline_ends_a_call_on_time() -> None:
    world = run(traffic={"load": 3.0}, consumers={"timeout_s": 0.25})
    assert max(world.recorder.latency_s) == pytest.approx(0.25)
    assert ending_count(world, Ending.DEADLINE) > 0


def test_a_retry_goes_elsewhere_and_is_counted() -> None:
    none, one = (run(faults=FAILING, consumers={"retries": retries}) for retries in (0, 1))
    assert ending_count(none, Ending.ERROR) > 100
    assert ending_count(one, Ending.ERROR) == 0
    assert one.recorder.retries > 100


def test_retries_stay_within_their_budget() -> None:
    everywhere = [{"kind": "fail", "nodes": "node", "rate": 1.0, "cost": 0.1}]
    world = run(faults=everywhere, consumers={"count": 1, "retries": 5, "retry_ratio": 0.1, "retry_per_s": 0.0})
    # The budget starts with ten calls' worth of its ratio.
    assert world.recorder.retries <= 0.1 * world.calls + 2


def test_a_crash_is_a_transport_failure_and_ejects() -> None:
    world = run("dual", faults=[{"kind": "crash", "nodes": "node:0", "at_s": 5}])
    late = sum(second[0] for second in world.recorder.sent[10:])
    assert late < 0.02 * sum(sum(second) for second in world.recorder.sent[10:])


def test_a_node_that_left_gets_nothing_and_one_that_joins_gets_some() -> None:
    world = run(faults=[{"kind": "leave", "nodes": "node:0", "at_s": 5, "until_s": 10}])
    sent = [second[0] for second in world.recorder.sent]
    assert sum(sent[6:10]) == 0
    assert min(sum(sent[:5]), sum(sent[11:])) > 50


def test_a_subset_is_all_that_a_consumer_sees() -> None:
    world = run(consumers={"count": 2, "subset": 2})
    views = [len(client.policy.statistics(0.0).nodes) for client in world.clients]
    assert views == [2, 2]


def test_a_closed_loop_has_as_many_calls_as_callers_allow() -> None:
    world = run(traffic={"closed": 8, "think_s": 0.5}, work={"mean_s": 0.01})
    # Little's law: callers = rate x (think + answer).
    assert world.calls / 20 == pytest.approx(8 / 0.51, rel=0.15)


def test_network_delay_is_paid_both_ways() -> None:
    near, far = (run(traffic={"load": 0.1}, consumers={"delay_s": delay_s, "count": 1}) for delay_s in (0.0, 0.05))
    gained = min(far.recorder.latency_s) - min(near.recorder.latency_s)
    assert 0.05 <= gained <= 0.15


def test_neighbours_take_what_they_take() -> None:
    world = run(antagonists=[{"nodes": "node:0", "every_s": 1.0, "low": 0.6, "high": 0.6}], traffic={"load": 0.3})
    busy = [sum(second[at] for second in world.recorder.busy) for at in range(4)]
    assert busy[0] == pytest.approx(2.5 * busy[1], rel=0.25)


def test_a_burst_may_use_what_is_idle() -> None:
    world = run(
        "p2c",
        antagonists=[{"nodes": "node", "every_s": 1.0, "low": 0.5, "high": 0.5, "machine_cores": 4}],
        traffic={"load": 1.5},
    )
    found = measure(world)
    assert found["success"] > 0.99
    assert found["load_mean"] == pytest.approx(1.5, rel=0.1)


def test_protection_degrades_the_lowest_first() -> None:
    parts: dict[str, Any] = {"traffic": {"load": 2.0, "priorities": [0.3, 0.6]}, "seconds": 30}
    bare, protected = (run("p2c", consumers={"protection": is_on}, **parts) for is_on in (False, True))
    assert ending_count(bare, Ending.DEGRADED) == 0
    found = measure(protected)
    assert found["degraded"] > 0.2
    assert found["degraded_first"] > 0.4
    assert found["admitted_success"] > measure(bare)["success"] + 0.2
