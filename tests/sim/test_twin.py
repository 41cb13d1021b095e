"""The simulator and the real thing, on the same seeded trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from support.pace import chi_square, chi_square_quantile, expected_counts, timed_counts
from support.twin import Heard, dice_of, replayed, simulated
from unit.sim.worlds import scenario

from steelyard.balance import Policy, make_policy
from steelyard.sim import Scenario, draw_arrivals

SEED = 3
POLICIES = [
    ("dual", 200),
    ("dual", 0),
    ("consistent_hash", 200),
    ("round_robin", 0),
    *(
        pytest.param(name, keys, marks=pytest.mark.slow)
        for name, keys in (("p2c", 0), ("weighted_round_robin", 0), ("peak_ewma", 0), ("bounded_hash", 200))
    ),
]


def unlike(keys: int, seconds: float = 8.0) -> Scenario:
    """Six machines of three speeds, of which one fails half its calls for a while and another leaves and returns."""
    nodes = [("slow", 2, 0.5), ("plain", 2, 1.0), ("fast", 2, 2.0)]
    return scenario(
        seconds=seconds,
        nodes=[{"name": name, "count": count, "speed": speed} for name, count, speed in nodes],
        traffic={"load": 0.5, "keys": keys},
        work={"mean_s": 0.06},
        consumers={"count": 1, "timeout_s": 60.0},
        faults=[
            {"kind": "fail", "nodes": "plain:0", "at_s": 2, "until_s": 4, "rate": 0.5},
            {"kind": "leave", "nodes": "fast:0", "at_s": 5, "until_s": 7},
        ],
    )


def scripted(name: str, keys: int, make: Callable[[], Policy]) -> list[Heard]:
    described = unlike(keys)
    return simulated(described, draw_arrivals(described, SEED), make, SEED)


def picks(log: Sequence[Heard]) -> list[Heard]:
    return [heard for heard in log if heard.kind == "pick"]


@pytest.mark.parametrize(("name", "keys"), POLICIES)
async def test_the_real_cluster_picks_what_the_simulator_picks(name: str, keys: int) -> None:
    make = partial(make_policy, name)
    script = scripted(name, keys, make)
    kinds = {heard.kind for heard in script}
    assert kinds == {"nodes", "pick", "end", "report", "tick"}
    assert len(picks(script)) > 350
    assert any(heard.what[1] for heard in picks(script)), "some calls were tried again elsewhere"
    log = await replayed(script, make, dice_of(SEED))
    assert log == script


def less_weight(heard: Heard) -> Heard:
    """One node of six has half its weight."""
    if heard.kind != "nodes":
        return heard
    first, *rest = heard.what
    return replace(heard, what=(replace(first, weight=50), *rest))


def higher_load(heard: Heard) -> Heard:
    """Load reports are a fifth too high for one node."""
    if heard.kind != "report" or not heard.what[0].startswith("fast-1"):
        return heard
    address, report = heard.what
    raised = {name: level * 1.2 for name, level in report.utilization.items()}
    return replace(heard, what=(address, msgspec.structs.replace(report, utilization=raised)))


async def test_a_difference_in_one_weight_is_found() -> None:
    script = scripted("dual", 200, partial(make_policy, "dual"))
    log = await replayed([less_weight(heard) for heard in script], partial(make_policy, "dual"), dice_of(SEED))
    assert picks(log) != picks(script)[: len(picks(log))]


async def test_a_difference_in_the_reports_is_found() -> None:
    script = scripted("dual", 200, partial(make_policy, "dual"))
    log = await replayed([higher_load(heard) for heard in script], partial(make_policy, "dual"), dice_of(SEED))
    assert picks(log) != picks(script)[: len(picks(log))]


async def test_a_difference_in_the_dice_is_found() -> None:
    script = scripted("p2c", 0, partial(make_policy, "p2c"))
    log = await replayed(script, partial(make_policy, "p2c"), dice_of(SEED + 1))
    assert picks(log) != picks(script)[: len(picks(log))]


# --- where time is real -----------------------------------------------------------------------------------------------


async def test_shares_agree_with_the_simulator_within_sampling_error() -> None:
    """Real time, real queues, unequal speeds. Shares are compared by chi-square with those that the simulator gives for
    the same arrivals. At the same time the trace runs under another law, whose shares must be told apart."""
    described = scenario(
        seconds=9,
        nodes=[
            {"name": "slow", "speed": 0.5},
            {"name": "plain", "count": 2, "speed": 1.0},
            {"name": "fast", "speed": 2.0},
        ],
        traffic={"load": 0.6},
        work={"mean_s": 0.06, "distribution": "constant"},
        consumers={"count": 1, "timeout_s": 60.0},
    )
    arrivals = draw_arrivals(described, SEED)
    dual, other = partial(make_policy, "dual"), partial(make_policy, "random")
    expected, bound = expected_counts(described, arrivals, dual)
    counts, others = await asyncio.gather(
        timed_counts(described, arrivals, dual), timed_counts(described, arrivals, other)
    )
    assert sum(counts) == sum(others) == len(arrivals.at_s)
    said = f"dual {counts}, random {others}, expected {expected}, bound {bound}"
    assert chi_square(counts, expected) <= bound, said
    assert chi_square(others, expected) > bound, said


def test_the_quantile_of_chi_square() -> None:
    # Abramowitz and Stegun, table 26.8.
    assert chi_square_quantile(3, 0.99) == pytest.approx(11.345, rel=0.02)
    assert chi_square_quantile(5, 0.999) == pytest.approx(20.515, rel=0.02)
