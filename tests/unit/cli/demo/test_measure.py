from __future__ import annotations

import pytest

from steelyard.cli.demo.measure import Counters, consumer_window, load_spread, mean_spread, node_windows
from steelyard.cli.demo.node import Pulse
from steelyard.cli.demo.plan import NodePlan
from steelyard.cli.demo.traffic import Call

CPU = NodePlan(name="cpu", quota=0.1)
GPU = NodePlan(name="gpu", device_s=0.01)


def pulses(*, cpu_per_s: float = 0.0, device_per_s: float = 0.0, calls_per_s: float = 0.0, failed: float = 0.0) -> list:
    return [
        Pulse(
            at_s=100.0 + second,
            cpu_s=7.0 + cpu_per_s * second,
            device_s=device_per_s * second,
            calls=round(calls_per_s * second),
            failed=round(failed * calls_per_s * second),
        )
        for second in range(11)
    ]


def test_load_is_use_over_what_may_be_used() -> None:
    fleet = [
        Counters.of(CPU, pulses(cpu_per_s=0.05, device_per_s=1.0, calls_per_s=10)),
        Counters.of(GPU, pulses(cpu_per_s=1.0, device_per_s=0.3, calls_per_s=30)),
    ]
    cpu, gpu = node_windows(fleet, 102.0, 108.0)
    assert cpu.load == pytest.approx(0.5)
    assert gpu.load == pytest.approx(0.3)
    assert (cpu.share, gpu.share) == (pytest.approx(0.25), pytest.approx(0.75))


def test_counters_are_read_between_two_pulses() -> None:
    (node,) = node_windows([Counters.of(CPU, pulses(calls_per_s=10, failed=0.5))], 103.25, 103.75)
    assert node.calls == pytest.approx(5.0)
    assert node.failed == pytest.approx(2.5)


def test_a_node_that_was_never_heard_of_has_done_nothing() -> None:
    (node,) = node_windows([Counters.of(CPU, [])], 0.0, 1.0)
    assert (node.calls, node.share, node.load) == (0.0, 0.0, 0.0)


def test_the_spread_of_equal_loads_is_nothing() -> None:
    equal = [Counters.of(CPU, pulses(cpu_per_s=0.04)), Counters.of(GPU, pulses(device_per_s=0.4))]
    assert load_spread(node_windows(equal, 100.0, 110.0)) == pytest.approx(0.0, abs=1e-9)
    unequal = [Counters.of(CPU, pulses(cpu_per_s=0.04)), Counters.of(GPU, pulses(device_per_s=0.8))]
    assert load_spread(node_windows(unequal, 100.0, 110.0)) == pytest.approx(0.2)


def test_the_spread_of_a_window_is_the_mean_of_its_stretches_and_not_of_its_mean_loads() -> None:
    """Two nodes that take turns are equal over two seconds, unequal in each of them, and by a third in three."""
    at_s = [0.0, 1.0, 2.0, 3.0, 4.0]
    turns = [[0.0, 1.0, 1.0, 2.0, 2.0], [0.0, 0.0, 1.0, 1.0, 2.0]]
    fleet = [
        Counters.of(
            GPU,
            [Pulse(at_s=at, cpu_s=0, device_s=busy, calls=0, failed=0) for at, busy in zip(at_s, device, strict=True)],
        )
        for device in turns
    ]
    assert load_spread(node_windows(fleet, 0.0, 4.0)) == pytest.approx(0.0)
    assert mean_spread(fleet, 0.0, 4.0, over_s=1.0) == pytest.approx(0.5)
    assert mean_spread(fleet, 0.0, 4.0, over_s=2.0) == pytest.approx(0.0)
    assert mean_spread(fleet, 0.0, 4.0, over_s=3.0) == pytest.approx(1 / 6)
    assert mean_spread(fleet, 0.0, 0.5, over_s=1.0) == pytest.approx(0.5)  # a short window is one stretch


def test_a_call_belongs_to_the_window_in_which_it_was_due() -> None:
    calls = [
        Call(due_at=0.9, ended_at=5.0, error="", is_right=True),
        Call(due_at=1.0, ended_at=1.1, error="", is_right=True),
        Call(due_at=1.5, ended_at=9.0, error="DeadlineExceeded", is_right=False),
        Call(due_at=1.9, ended_at=2.2, error="", is_right=False),
        Call(due_at=2.0, ended_at=2.1, error="", is_right=True),
    ]
    window = consumer_window(calls, 1.0, 2.0)
    assert (window.calls, window.failed) == (3, 1)
    assert window.success == pytest.approx(2 / 3)
    assert window.accuracy == pytest.approx(1 / 2)
    assert window.p50_ms == pytest.approx(200.0)


def test_an_empty_window_says_nothing_instead_of_perfect() -> None:
    window = consumer_window([], 0.0, 1.0)
    assert (window.calls, window.success, window.p50_ms, window.accuracy) == (0, None, None, None)
