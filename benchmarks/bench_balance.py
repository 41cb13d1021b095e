"""What does a pick cost, and a control tick, and a node? Every policy, from 10 to 10,000 nodes, in one run.

    python benchmarks/bench_balance.py --json out.json [--policies all] [--nodes 10,100,1000,10000] [--rounds 7]

The unit is ``random.choice`` over a list of the same length, measured in the same rounds: policies take turns round by
round, so what disturbs the machine disturbs them all, and the table shows medians and their ratio to it. Time is the
thread's CPU time: a pick computes and never waits, and other processes on the machine are not its cost.

The fleet is unequal (speeds 1:2:4) and the policies have seen it for half a minute, so the dual law has a plan with
refuse and accept lists; a third of the calls have answered with an in-flight count and a few are open.

Bars (``dual``): at 1,000 nodes a pick takes at most 2 us without a key and 5 us with one; a tick at 10,000 nodes 20 ms;
a node 2 KB. The absolute numbers are this machine's; the ratios travel.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from steelyard.balance import Policy, hash_key, make_policy, policy_names
from steelyard.model import LoadReport, Outcome
from steelyard_registry.node import Node

SPEEDS = (1.0, 2.0, 4.0)
PICKS = 2_000
SLOW_PICKS = 40  # for policies that look at every node, at many nodes
WARM_S = 30
TICKS = 9
PICK_COSTS = ("free_us", "keyed_us")
# Those with tables or a control loop; the others keep what all keep.
LARGE = "dual,ratio,weighted_round_robin,round_robin,consistent_hash,prequal"
BARS = {"free_us": 2.0, "keyed_us": 5.0, "tick_ms": 20.0, "node_bytes": 2048.0}


def nodes_of(count: int) -> list[Node]:
    return [Node(interface="bench.Balance", host=f"node-{at}", port=20880) for at in range(count)]


def live(
    policy: Policy, nodes: Sequence[Node], roll: random.Random, seconds: range, *, keyed: bool, free: bool
) -> None:
    """Seconds in the life of a consumer: calls, replies, reports whose load follows from the shares, ticks."""
    calls = max(60, len(nodes) // 4)
    for second in seconds:
        picked: dict[str, int] = {}
        for at in range(calls):
            key = hash_key((second, at)) if keyed and (at % 2 or not free) else None
            candidate = policy.pick(second + 0.2, roll.random, key)
            if candidate is None:
                continue
            picked[candidate.node.host] = picked.get(candidate.node.host, 0) + 1
            policy.started(candidate, second + 0.2)
            if at % 50:
                policy.ended(candidate, Outcome.OK, second + 0.3, latency_s=0.01 + roll.random() / 50, in_flight=at % 3)
        shares = {record.identity: record.share for record in policy.statistics(second + 0.4).nodes}
        for at, node in enumerate(nodes):
            level = 0.6 * shares[node.identity] * len(nodes) * 7 / 3 / SPEEDS[at % 3] / 1.75
            report = LoadReport(utilization={"cpu": min(1.0, max(0.0, level * (1 + roll.gauss(0, 0.03))))})
            policy.report(node.address, report, second + 0.5)
        policy.tick(second + 1.0)


def timed(action: Callable[[], object], times: int) -> float:
    """Microseconds a time."""
    start = time.thread_time()
    for _ in range(times):
        action()
    return (time.thread_time() - start) / times * 1e6


class Contestant:
    """One policy at one size, warmed up; measures a round of picks."""

    def __init__(self, name: str, count: int) -> None:
        self.name, self.count = name, count
        self.policy = make_policy(name)
        self.nodes = nodes_of(count)
        self.roll = random.Random(count)
        self.policy.set_nodes(self.nodes, 0.0)
        live(self.policy, self.nodes, self.roll, range(WARM_S if count <= 1000 else 6), keyed=True, free=True)
        self.keys = [hash_key(("bench", at)) for at in range(PICKS)]
        self.now_s = WARM_S + 0.1
        self.free_us: list[float] = []
        self.keyed_us: list[float] = []
        self.times = PICKS if timed(self._pick, 3) < 200 else SLOW_PICKS

    def _pick(self) -> object:
        return self.policy.pick(self.now_s, self.roll.random)

    def measure(self) -> None:
        pick, dice, now_s = self.policy.pick, self.roll.random, self.now_s
        self.free_us.append(timed(lambda: pick(now_s, dice), self.times))
        keys = iter(self.keys)
        self.keyed_us.append(timed(lambda: pick(now_s, dice, next(keys)), self.times))


def bench_picks(names: Sequence[str], sizes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    found = []
    for count in sizes:
        contestants = [Contestant(name, count) for name in names]
        items = list(range(count))
        choose: list[float] = []
        empty: list[float] = []
        for _ in range(rounds):
            choose.append(timed(partial(random.choice, items), PICKS))
            empty.append(timed(lambda: None, PICKS))
            for contestant in contestants:
                contestant.measure()
        overhead = statistics.median(empty)  # of the loop and the lambda, in all of them
        unit = statistics.median(choose) - overhead
        found.append({"policy": "random.choice", "nodes": count, "free_us": unit, "free_ratio": 1.0})
        for contestant in contestants:
            free = statistics.median(contestant.free_us) - overhead
            keyed = statistics.median(contestant.keyed_us) - overhead
            row = {"policy": contestant.name, "nodes": count, "free_us": free, "free_ratio": free / unit}
            found.append({**row, "keyed_us": keyed, "keyed_ratio": keyed / unit})
        print_picks([row for row in found if row["nodes"] == count])
    return found


def print_picks(rows: Sequence[dict[str, Any]]) -> None:
    print(f"\n{rows[0]['nodes']:,} nodes{'':16} pick us    x choice   with key us    x choice")
    for row in rows:
        keyed = f"{row['keyed_us']:13.2f} {row['keyed_ratio']:11.1f}" if "keyed_us" in row else ""
        print(f"  {row['policy']:24} {row['free_us']:7.2f} {row['free_ratio']:11.1f} {keyed}")


def bench_tick(name: str, count: int, *, keyed: bool) -> dict[str, Any]:
    """Control ticks of a fleet in which everybody reports, with noise, and calls are made."""
    policy, nodes, roll = make_policy(name), nodes_of(count), random.Random(1)
    policy.set_nodes(nodes, 0.0)
    ticks = []
    for second in range(TICKS + 4):
        live(policy, nodes, roll, range(second, second + 1), keyed=keyed, free=not keyed)
        for node in nodes:
            policy.report(node.address, LoadReport(utilization={"cpu": roll.uniform(0.3, 0.7)}), second + 1.5)
        start = time.thread_time()
        policy.tick(second + 1.75)
        ticks.append((time.thread_time() - start) * 1e3)
    return {
        "policy": name,
        "nodes": count,
        "keyed": keyed,
        "tick_ms": statistics.median(ticks[4:]),
        "worst_ms": max(ticks),
    }


def bench_memory(name: str, count: int, *, keyed: bool) -> dict[str, Any]:
    """Bytes a node, beside its record in the registry's snapshot, after calls and reports."""
    nodes = nodes_of(count)
    roll = random.Random(1)
    gc.collect()
    tracemalloc.start()
    policy = make_policy(name)
    policy.set_nodes(nodes, 0.0)
    live(policy, nodes, roll, range(4), keyed=keyed, free=not keyed)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"policy": name, "nodes": count, "keyed": keyed, "node_bytes": held / count}


def judge(report: dict[str, Any]) -> list[str]:
    """The bars, with what was measured."""
    lines = []
    for row in report["picks"]:
        if row["policy"] == "dual" and row["nodes"] == 1000:
            lines += [_verdict(f"dual, pick at 1,000 nodes, {name}", row[name], BARS[name]) for name in PICK_COSTS]
    for row in report["ticks"]:
        if row["policy"] == "dual":
            kind = "with keys" if row["keyed"] else "without keys"
            lines.append(_verdict(f"dual, tick at {row['nodes']:,} nodes {kind}, ms", row["tick_ms"], BARS["tick_ms"]))
    for row in report["memory"]:
        if row["policy"] == "dual":
            kind = "with keys" if row["keyed"] else "without keys"
            lines.append(_verdict(f"dual, bytes a node {kind}", row["node_bytes"], BARS["node_bytes"]))
    return lines


def _verdict(what: str, measured: float, bar: float) -> str:
    return f"  {what:48} {measured:9.2f} of {bar:g}: {'met' if measured <= bar else 'NOT MET'}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--policies", default="all", help="names separated by commas [all]")
    parser.add_argument("--nodes", default="10,100,1000,10000", help="fleet sizes for picks")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--large-policies", default=LARGE, help="names for ticks and memory")
    parser.add_argument("--large", type=int, default=10_000, help="fleet size for ticks and memory")
    given = parser.parse_args(arguments)
    names = policy_names() if given.policies == "all" else tuple(given.policies.split(","))
    sizes = [int(size) for size in given.nodes.split(",")]
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "picks": bench_picks(names, sizes, given.rounds),
        "ticks": [],
        "memory": [],
    }
    print(f"\n{given.large:,} nodes{'':24} tick ms     worst    bytes a node")
    for name in given.large_policies.split(","):
        for keyed in (False, True):
            tick = bench_tick(name, given.large, keyed=keyed)
            memory = bench_memory(name, given.large, keyed=keyed)
            report["ticks"].append(tick)
            report["memory"].append(memory)
            label = f"{name}{' with keys' if keyed else ''}"
            print(f"  {label:34} {tick['tick_ms']:7.2f} {tick['worst_ms']:9.2f} {memory['node_bytes']:15.0f}")
    print()
    print("\n".join(judge(report)))
    if given.json is not None:
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
