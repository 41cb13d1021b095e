from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.cli.demo import DemoOptions
from steelyard.cli.demo.plan import FLEET, LONGEST_S, SHORTEST_S, SICK_NODE, TWIN, Schedule
from steelyard.errors import ConfigError

SECONDS = st.floats(SHORTEST_S, LONGEST_S)


def test_the_play_of_thirty_seconds() -> None:
    schedule = Schedule(30.0, True, "dual")
    assert [(phase.name, phase.start_s, phase.end_s) for phase in schedule.phases] == [
        ("plain hashing", 0.0, 5.0),
        ("balancing", 5.0, 10.0),
        ("fault", 10.0, 20.0),
        ("healed", 20.0, 30.0),
    ]
    assert schedule.settled_s == 12.0
    assert schedule.after == (25.0, 30.0)


@given(SECONDS, st.booleans())
def test_phases_cover_the_play_without_a_gap(seconds: float, has_fault: bool) -> None:
    phases = Schedule(seconds, has_fault, "random").phases
    assert phases[0].start_s == 0.0
    assert phases[-1].end_s == seconds
    assert all(before.end_s == after.start_s for before, after in pairwise(phases))
    assert all(phase.start_s < phase.end_s for phase in phases)


@given(SECONDS)
def test_a_sick_node_is_given_time_and_then_watched(seconds: float) -> None:
    schedule = Schedule(seconds, True, "dual")
    assert schedule.fault_s < schedule.settled_s < schedule.heal_s
    assert schedule.settled_s <= schedule.fault_s + 2.0


def test_every_moment_has_a_phase() -> None:
    schedule = Schedule(12.0, True, "dual")
    assert schedule.phase_at(0.0).name == "plain hashing"
    assert schedule.phase_at(4.0).name == "fault"
    assert schedule.phase_at(99.0).name == "healed"


def test_the_sick_node_has_a_healthy_twin() -> None:
    plans = {plan.name: plan for plan in FLEET}
    assert len(plans) == len(FLEET) >= 6
    assert sum(plan.is_gpu for plan in FLEET) == 2
    assert plans[TWIN] == replace(plans[SICK_NODE], name=TWIN)


def test_the_fleet_leaves_a_core_for_the_consumer() -> None:
    assert sum(plan.quota or 0.0 for plan in FLEET) < 1.0


@pytest.mark.parametrize("seconds", [0.0, 7.9, 3601.0, float("nan")])
def test_seconds_out_of_range_are_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match="--seconds: 8 to 3600"):
        DemoOptions(seconds=seconds)


def test_a_picture_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.html, not out\.gif"):
        DemoOptions(plot=Path("out.gif"))
