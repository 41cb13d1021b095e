"""A made-up outcome of the demonstration, to be shown, drawn and encoded."""

from __future__ import annotations

from typing import Any

from steelyard.cli.demo.measure import ConsumerWindow, NodeWindow
from steelyard.cli.demo.outcome import NodeResult, Outcome, Second, expectations
from steelyard.cli.demo.plan import Schedule

NODES = ("mid-1", "gpu-1")
HARDWARE: dict[str, dict[str, Any]] = {
    "mid-1": {"kind": "cpu", "quota": 0.13, "cores": 2},
    "gpu-1": {"kind": "gpu", "accelerators": ["emulated"]},
}


def outcome(*, load_std: tuple[float, float] = (0.3, 0.03), has_fault: bool = True) -> Outcome:
    schedule = Schedule(12.0, has_fault, "dual")
    told: dict[str, Any] = {
        "sick_node": "mid-1",
        "sick_node_fair_share": 0.5,
        "sick_node_share_during_fault": 0.01,
        "sick_node_share_after_recovery": 0.4,
        "consumer_success_during_fault": 1.0,
    }
    if not has_fault:
        told = dict.fromkeys(told)
    return Outcome(
        calls=1200,
        failed_calls=0,
        p50_ms=5.0,
        p99_ms=40.0,
        accuracy=0.98,
        nodes=[
            NodeResult(
                name=name,
                hardware=HARDWARE[name],
                share=0.5,
                availability=None,
                load=0.4,
                flow_ratio=1.0,
                list="neutral",
            )
            for name in NODES
        ],
        load_std_before=load_std[0],
        load_std_after=load_std[1],
        failed_attempts=7,
        expectations=expectations(
            load_std=load_std,
            sick_share=told["sick_node_share_during_fault"],
            success=told["consumer_success_during_fault"],
            share_after=told["sick_node_share_after_recovery"],
            fair_share=told["sick_node_fair_share"],
        ),
        settings={
            "policy": "dual",
            "seconds": 12.0,
            "before_s": (0.0, 2.0),
            "after_s": (10.0, 12.0),
            "load_std_over_s": 2.0,
            "cpu_shares_by": "<trust>",
            "data_set": "digits",
        },
        errors={},
        phases=[
            {"name": phase.name, "start_s": phase.start_s, "end_s": phase.end_s, "what": phase.what}
            for phase in schedule.phases
        ],
        series=[second(float(number), schedule) for number in range(1, 13)],
        **told,
    )


def second(at_s: float, schedule: Schedule) -> Second:
    return Second(
        at_s=at_s,
        phase=schedule.phase_at(at_s - 0.5).name,
        consumer=ConsumerWindow(calls=100, failed=0, success=1.0, p50_ms=5.0, p99_ms=40.0, accuracy=0.98),
        load_std=0.1,
        nodes={name: node_window(name) for name in NODES},
        balancer={name: {"flow_ratio": 1.0, "availability": None} for name in NODES},
    )


def node_window(name: str, *, share: float = 0.5, load: float = 0.4, failed: float = 0.0) -> NodeWindow:
    return NodeWindow(name=name, calls=50.0, failed=failed, share=share, load=load)
