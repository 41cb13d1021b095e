"""From a recording to numbers: one flat mapping of metric names to floats.

Names, units and meaning stand in METRICS, which the tables and the documentation read. A number that a run does not
have (no keys, no watched nodes, no staircase) is absent, and absent is not 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import TYPE_CHECKING, Any

from .arrivals import step_starts
from .call import Ending
from .recorder import WATCHED
from .scenario import parallel
from .targets import node_places

if TYPE_CHECKING:
    import numpy as np

    from .world import World

METRICS: Mapping[str, str] = {
    "success": "share of the calls over in the window that got their answer in time",
    "admitted_success": "the same without the calls that were degraded",
    "degraded": "share of calls answered by degradation",
    "p50_ms": "median latency as the caller sees it, retries and expired deadlines included",
    "p99_ms": "99 % of calls took at most so long",
    "p999_ms": "99.9 % of calls took at most so long",
    "load_mean": "mean utilization over nodes and the window",
    "load_std": "standard deviation over nodes of their mean utilization",
    "load_variance": "its square",
    "load_max": "the busiest node's mean utilization",
    "load_max_over_mean": "load_max / load_mean",
    "load_excess": "the same, less what sampling noise alone would make of equal loads",
    "load_wobble": "mean over nodes of the standard deviation of their utilization from second to second",
    "growth": "load_wobble of the window's last third over that of its first: above 1, oscillation grows",
    "miss": "share of look-ups in the nodes' caches that missed",
    "moved": "share of keys that go elsewhere after the disturbance than before",
    "moved_times_n": "moved x number of nodes: 1 is what the join or leave of one node must move",
    "bad_share": "share of all attempts that went to the watched nodes",
    "bad_share_over_fair": "the same over their part of the fleet",
    "bad_peak_over_fair": "its largest value in 3 s after the disturbance, less three sigmas of counting",
    "bad_most_over_fair": "the watched node that got most, over its fair share",
    "others_success": "success of the calls whose last attempt did not go to a watched node",
    "bad_p99_ratio": "p99 of the calls that watched nodes answered over everybody's",
    "bad_peak_load": "most work a watched node took in 3 s after the disturbance, over its capacity (less 3 sigmas)",
    "degraded_first": "share of the degraded calls that had the lowest priority",
    "restored_s": "seconds from the end of the spike until nothing is degraded and success is at its target",
    "extra_load": "retries per call",
    "converge_s": "seconds from the disturbance until the spread of loads is what it stays at (within a quarter)",
    "recover_s": "seconds from the last fault's first end until success is at its target for three seconds in a row",
    "panics": "how often a consumer's policy stopped believing in availability, per consumer",
    "sustainable": "the highest load of the staircase up to which success stays at its target",
    "saturation_load": "mean utilization at the first step at which the busiest 1 % of the nodes are saturated",
}


def measure(world: World) -> dict[str, float]:
    """Every metric that this run has."""
    import numpy as np

    scenario, recorder = world.scenario, world.recorder
    first, last = int(scenario.measure.from_s), int(scenario.until_s)
    over = np.frombuffer(recorder.over_at_s, dtype=np.float64)
    code = np.frombuffer(recorder.code, dtype=np.int16)
    calls = _Calls(
        latency=np.frombuffer(recorder.latency_s, dtype=np.float64),
        ending=code & 15,
        within=(over >= first) & (over < last),
        watched=(code & WATCHED) > 0 if any(server.watched for server in world.servers) else None,
        priority=code >> 4 & 255,
    )
    busy = np.array(recorder.busy)
    sent = np.array(recorder.sent)
    found = calls.metrics()
    found.update(_loads(busy[first:last]))
    found.update(_traffic(world, first, last))
    if calls.watched is not None:
        found.update(_watched(world, sent, first, last))
    found["converge_s"] = _convergence(busy, scenario.measure.disturbed_at_s, last)
    ok_by_second = _success_by_second(over, calls.ending, last)
    if scenario.faults:
        found.update(_recovery(world, ok_by_second))
    if scenario.measure.disturbed_until_s is not None:
        full = _success_by_second(over, calls.ending, last, of_all=True)
        found["restored_s"] = _first_good(
            full, int(scenario.measure.disturbed_until_s), scenario.measure.success_target
        )
    if scenario.steps is not None:
        found.update(_staircase(world, over, calls.ending, busy))
    panics = [client.policy.statistics(world.kernel.now_s).panics for client in world.clients]
    found["panics"] = sum(panics) / len(panics)
    return {name: float(value) for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class _Calls:
    """Columns by call, and what they come to."""

    latency: Any
    ending: Any
    within: Any
    watched: Any
    priority: Any

    def metrics(self) -> dict[str, float]:
        import numpy as np

        ending = self.ending[self.within]
        if not len(ending):
            return {}
        # 0 is the highest priority.
        is_ok, is_degraded = ending == Ending.OK, ending == Ending.DEGRADED
        # An error that comes fast must not make the latency look good.
        waited = self.latency[self.within][is_ok | (ending == Ending.DEADLINE)]
        found = {"success": is_ok.mean(), "degraded": is_degraded.mean()}
        if is_degraded.any():
            priority = self.priority[self.within]
            found["degraded_first"] = (priority[is_degraded] == priority.max()).mean()
        found["admitted_success"] = is_ok.sum() / max(1, (~is_degraded).sum())
        if len(waited):
            levels = np.percentile(waited, [50, 99, 99.9]) * 1000.0
            found |= dict(zip(("p50_ms", "p99_ms", "p999_ms"), levels, strict=True))
        if self.watched is not None:
            watched = self.watched[self.within]
            found["others_success"] = is_ok[~watched].mean() if (~watched).any() else 1.0
            theirs = self.latency[self.within][watched & is_ok]
            if len(theirs) >= 20:
                found["bad_p99_ratio"] = np.percentile(theirs, 99) * 1000.0 / found["p99_ms"]
        return found


def _loads(busy: np.ndarray) -> dict[str, float]:
    """*busy* is seconds x nodes."""
    import numpy as np

    means = busy.mean(axis=0)
    mean, most = float(means.mean()), float(means.max())
    # Batch means of 5 s: neighbouring seconds share their queues and are not independent.
    blocks = busy[: len(busy) // 5 * 5].reshape(-1, 5, busy.shape[1]).mean(axis=1)
    noise = 0.0
    if len(blocks) > 1 and busy.shape[1] > 1:
        error = blocks.std(axis=0, ddof=1).mean() / sqrt(len(blocks))
        noise = error * sqrt(2.0 * log(busy.shape[1]))
    third = max(1, len(busy) // 3)
    wobble = busy.std(axis=0).mean()
    early = busy[:third].std(axis=0).mean()
    return {
        "load_mean": mean,
        "load_std": means.std(),
        "load_variance": means.var(),
        "load_max": most,
        "load_max_over_mean": most / mean if mean else 1.0,
        "load_excess": max(1.0, (most - noise) / mean) if mean else 1.0,
        "load_wobble": wobble,
        "growth": float(np.divide(busy[-third:].std(axis=0).mean(), early)) if early else 1.0,
    }


def _traffic(world: World, first: int, last: int) -> dict[str, float]:
    recorder = world.recorder
    hits = sum(hit for hit, _ in recorder.lookups[first:last])
    misses = sum(miss for _, miss in recorder.lookups[first:last])
    found: dict[str, float] = {}
    if hits + misses:
        found["miss"] = misses / (hits + misses)
    moved, seen = recorder.moved()
    if seen:
        found["moved"] = moved / seen
        found["moved_times_n"] = moved / seen * len(world.servers)
    found["extra_load"] = recorder.retries / max(1, len(recorder.over_at_s))
    return found


def _watched(world: World, sent: np.ndarray, first: int, last: int) -> dict[str, float]:
    import numpy as np

    scenario, recorder = world.scenario, world.recorder
    places = [place for place, server in enumerate(world.servers) if server.watched]
    fair = len(places) / len(world.servers)
    window = sent[first:last]
    share = window[:, places].sum() / max(1, window.sum())
    most = window[:, places].sum(axis=0).max() / max(1, window.sum()) * len(world.servers)
    start = int(scenario.measure.disturbed_at_s)
    blocks = sent[start : start + (last - start) // 3 * 3].reshape(-1, 3, sent.shape[1]).sum(axis=1)
    bad = blocks[:, places]
    certain = bad.sum(axis=1) - 3.0 * np.sqrt(bad.sum(axis=1))
    capacity = np.array([parallel(world.servers[at].group) * world.servers[at].group.speed for at in places])
    # Only what a running process took: a refused connection costs a node nothing.
    taken = np.array(recorder.taken)[start : start + len(blocks) * 3][:, places].reshape(len(blocks), 3, -1).sum(axis=1)
    work = (taken - 3.0 * np.sqrt(taken)) / 3.0 * scenario.work.mean_s
    return {
        "bad_share": share,
        "bad_share_over_fair": share / fair,
        "bad_most_over_fair": most,
        "bad_peak_over_fair": (certain / np.maximum(1, blocks.sum(axis=1))).max(initial=0.0) / fair,
        "bad_peak_load": (work / capacity).max(initial=0.0),
    }


def _convergence(busy: np.ndarray, from_s: float, last: int) -> float:
    """The spread of 5 s means, against its mean in the last quarter of what follows the disturbance."""
    import numpy as np

    after = busy[int(from_s) : last]
    if len(after) < 20:
        return float(len(after))
    width = 5
    sums = np.cumsum(np.vstack([np.zeros(after.shape[1]), after]), axis=0)
    spread = ((sums[width:] - sums[:-width]) / width).std(axis=1)
    settled = spread[-max(3, len(spread) // 4) :].mean()
    bound = max(1.25 * settled, 0.05 * after.mean())
    inside = spread <= bound
    for at in range(len(inside) - 5):
        if inside[at : at + 5].all():
            return float(at + width) if at else 0.0
    return float(len(after))


def _success_by_second(over: np.ndarray, ending: np.ndarray, last: int, *, of_all: bool = False) -> np.ndarray:
    """Of the admitted calls, or with *of_all* of those that were degraded as well."""
    import numpy as np

    second = np.minimum(over.astype(int), last)
    admitted = (ending != Ending.DEGRADED) | of_all
    total = np.bincount(second[admitted], minlength=last + 1)[:last]
    ok = np.bincount(second[ending == Ending.OK], minlength=last + 1)[:last]
    return np.asarray(ok / np.maximum(1, total))


def _recovery(world: World, success: np.ndarray) -> dict[str, float]:
    scenario = world.scenario
    ends = [
        fault.until_s + fault.stagger_s * (len(node_places(scenario.nodes, fault.nodes)) - 1)
        for fault in scenario.faults
        if fault.until_s < scenario.seconds
    ]
    if not ends:
        return {}
    return {"recover_s": _first_good(success, int(max(ends)), scenario.measure.success_target)}


def _first_good(success: np.ndarray, start: int, target: float) -> float:
    """Seconds after *start* until three good seconds in a row begin; all there are, if none do."""
    for at in range(start, len(success) - 2):
        if (success[at : at + 3] >= target).all():
            return float(at - start)
    return float(len(success) - start)


def _staircase(world: World, over: np.ndarray, ending: np.ndarray, busy: np.ndarray) -> dict[str, float]:
    scenario = world.scenario
    import numpy as np

    steps = scenario.steps
    assert steps is not None
    sustainable, saturated = 0.0, None
    is_held = True
    for at_s, load in step_starts(scenario):
        first, last = at_s + steps.settle_s, at_s + steps.seconds
        window = ending[(over >= first) & (over < last)]
        ok = (window == Ending.OK).mean() if len(window) else 0.0
        is_held = is_held and bool(ok >= scenario.measure.success_target)
        if is_held:
            sustainable = load
        means = busy[int(first) : int(last)].mean(axis=0)
        # The busiest percent, not the busiest one: of 2,000 nodes some are always lucky enough to be full.
        if saturated is None and np.percentile(means, 99) >= scenario.measure.saturation:
            saturated = float(means.mean())
    last_mean = float(busy[int(steps.settle_s) - int(steps.seconds) :].mean())
    return {"sustainable": sustainable, "saturation_load": last_mean if saturated is None else saturated}
