"""What happened, from what was counted: windows over the nodes' own pulses and the consumer's own calls.

Nothing here is the balancer's word: a node's load is the CPU time that its process has used over what it may use, or
its device's busy time, and its share is the calls that its handlers have counted, retries included. So the bars of the
demonstration would show a balancer that believes itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .node import Pulse
from .plan import NodePlan
from .traffic import Call

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWindow:
    """One node in one window. ``load`` in [0, 1] (a little above when a quota's refill falls well); ``share`` of all
    the calls that reached a node; ``failed_share`` of its own calls."""

    name: str
    calls: float
    failed: float
    share: float
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerWindow:
    """The consumer's side of one window, by the moment a call was due. None: there were no calls to say it of."""

    calls: int
    failed: int
    success: float | None
    p50_ms: float | None
    p99_ms: float | None
    accuracy: float | None


@dataclass(slots=True)
class Counters:
    """A node's pulses as columns, so that a counter can be read between two pulses."""

    plan: NodePlan
    at_s: Doubles = field(default_factory=lambda: np.zeros(0))
    busy_s: Doubles = field(default_factory=lambda: np.zeros(0))
    calls: Doubles = field(default_factory=lambda: np.zeros(0))
    failed: Doubles = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, plan: NodePlan, pulses: Sequence[Pulse]) -> Counters:
        """A CPU node is busy by its CPU time over its quota, a GPU node by its device."""
        busy = [pulse.device_s if plan.is_gpu else pulse.cpu_s / (plan.quota or 1.0) for pulse in pulses]
        return cls(
            plan,
            np.array([pulse.at_s for pulse in pulses]),
            np.array(busy),
            np.array([pulse.calls for pulse in pulses], float),
            np.array([pulse.failed for pulse in pulses], float),
        )

    def between(self, column: Doubles, start_s: float, end_s: float) -> float:
        """By how much a counter grew; 0 outside of what was heard."""
        if len(self.at_s) < 2:
            return 0.0
        return float(np.interp(end_s, self.at_s, column) - np.interp(start_s, self.at_s, column))


def node_windows(fleet: Sequence[Counters], start_s: float, end_s: float) -> list[NodeWindow]:
    """Every node between two moments of the monotonic clock."""
    calls = [node.between(node.calls, start_s, end_s) for node in fleet]
    total = sum(calls)
    return [
        NodeWindow(
            name=node.plan.name,
            calls=count,
            failed=node.between(node.failed, start_s, end_s),
            share=count / total if total else 0.0,
            load=node.between(node.busy_s, start_s, end_s) / (end_s - start_s),
        )
        for node, count in zip(fleet, calls, strict=True)
    ]


def load_spread(windows: Sequence[NodeWindow]) -> float:
    """The standard deviation of the loads over the nodes."""
    return float(np.std([window.load for window in windows]))


def mean_spread(fleet: Sequence[Counters], start_s: float, end_s: float, over_s: float) -> float:
    """How unequal the loads are: the mean of ``load_spread`` over all stretches of *over_s* seconds that lie in a
    window and end a whole number of seconds before its end.

    Not the spread of the window's mean loads, which is smaller: what is too much now and too little later would cancel
    out, and a queue does not see it so. A window that is shorter than *over_s* is one stretch."""
    over_s = min(over_s, end_s - start_s)
    ends = [end_s - number for number in range(int(end_s - start_s - over_s + 1e-9) + 1)]
    return float(np.mean([load_spread(node_windows(fleet, end - over_s, end)) for end in ends]))


def consumer_window(calls: Sequence[Call], start_s: float, end_s: float) -> ConsumerWindow:
    """The calls that were due in [start, end). Percentiles are of those that succeeded."""
    due = [call for call in calls if start_s <= call.due_at < end_s]
    good = [call for call in due if call.is_ok]
    latencies_ms = [call.latency_s * 1000 for call in good]
    return ConsumerWindow(
        calls=len(due),
        failed=len(due) - len(good),
        success=len(good) / len(due) if due else None,
        p50_ms=float(np.percentile(latencies_ms, 50)) if good else None,
        p99_ms=float(np.percentile(latencies_ms, 99)) if good else None,
        accuracy=sum(call.is_right for call in good) / len(good) if good else None,
    )
