"""How fast is the simulator? Simulated calls a second of processor time, for each policy.

    python benchmarks/bench_sim.py [--policies random,p2c,...] [--rounds 5] [--json out.json]
    python benchmarks/bench_sim.py --instructions      thousands of instructions a call, whatever else the machine does

One fleet for all: forty machines of one, two and four times the speed, four consumers, 20 ms of work a call, reports
and ticks once a second as everywhere, at a load that no policy drowns a machine with. Calls outnumber reports 25 to 1.

Policies take turns round by round, and each round also times the *unit*: bare round trips through forty queues with
nothing but a heap, merged arrivals and a function call each way. The unit tells how fast the machine is at that moment:
the ratio to it travels, the calls a second are this machine's. Processor time, and the best of the rounds: nothing
makes a run faster than it is, and whatever else the machine does makes it slower.

Bar: 200,000 calls a second for the classical policies, on a core of its own.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import sys
from collections.abc import Sequence
from heapq import heappop, heappush
from pathlib import Path
from time import process_time
from typing import Any

import msgspec
from callgrind import MISSING, Counter, under_valgrind

from steelyard.balance import policy_names
from steelyard.sim import Job, Scenario, World, contenders, draw_arrivals, run

POLICIES = policy_names()
BAR = 200_000.0
UNITS = 50_000
QUEUES = 40
SCENARIO: dict[str, Any] = {
    "name": "bench",
    "text": "A fleet to time the simulator with.",
    "seconds": 12,
    "nodes": [
        {"name": "old", "count": 14, "speed": 1.0, "cores": 2, "discipline": "sharing"},
        {"name": "mid", "count": 13, "speed": 2.0, "cores": 2, "discipline": "sharing"},
        {"name": "new", "count": 13, "speed": 4.0, "cores": 2, "discipline": "sharing"},
    ],
    "traffic": {"load": 0.4, "keys": 10_000, "zipf": 0.5},
    "work": {"mean_s": 0.02},
    "measure": {"from_s": 5, "moved_s": 1},
}


def bare_round_trips(count: int) -> float:
    """Round trips a second through bare queues."""
    dice = random.Random(1).random
    arrivals = [at / count for at in range(count)]
    events: list[tuple[float, int, Any, int]] = []
    open_calls = [0] * QUEUES
    number = 0

    def arrive(now_s: float) -> None:
        nonlocal number
        queue = int(dice() * QUEUES)
        open_calls[queue] += 1
        number += 1
        heappush(events, (now_s + QUEUES / count, number, end, queue))

    def end(queue: int) -> None:
        open_calls[queue] -= 1

    started_s = process_time()
    for at_s in arrivals:
        while events and events[0][0] <= at_s:
            _, _, action, argument = heappop(events)
            action(argument)
        arrive(at_s)
    return count / (process_time() - started_s)


def bench(names: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    scenario = msgspec.convert(SCENARIO, Scenario)
    jobs = [Job(scenario, {}, one, 1) for one in contenders(names, scenario)]
    speeds: dict[str, list[float]] = {job.contender.name: [] for job in jobs}
    units: list[float] = []
    for _ in range(rounds):
        for job in jobs:
            units.append(bare_round_trips(UNITS))
            speeds[job.contender.name].append(run(job).calls_per_s)
    unit = max(units)
    return [{"policy": "bare round trips", "calls_per_s": unit, "ratio": 1.0}] + [
        {"policy": name, "calls_per_s": max(found), "ratio": unit / max(found)} for name, found in speeds.items()
    ]


def instructions(name: str) -> dict[str, float]:
    """Of one run, a call, in the process that is measured."""
    scenario = msgspec.convert({**SCENARIO, "seconds": 6, "measure": {"from_s": 2, "moved_s": 1}}, Scenario)
    world = World(scenario, draw_arrivals(scenario, 1), contenders([name], scenario)[0].make, 1)
    counter = Counter(Path.cwd())
    world.run()
    return {name: counter.taken() / world.calls}


def main() -> None:
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(instructions(sys.argv[2])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default=",".join(POLICIES), help="names, comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--instructions", action="store_true", help="count them, under valgrind, instead of timing")
    options = parser.parse_args()
    if options.instructions:
        if shutil.which("callgrind_control") is None:
            sys.exit(MISSING)
        for name in options.policies.split(","):
            print(f"  {name:22} {under_valgrind(__file__, name)[name] / 1000:9.1f}", flush=True)
        return
    rows = bench(options.policies.split(","), options.rounds)
    print(f"{'':24} calls/s   bare round trips in one call")
    for row in rows:
        print(f"  {row['policy']:22} {row['calls_per_s']:9,.0f} {row['ratio']:9.1f}")
    if options.json:
        facts = {"python": platform.python_version(), "machine": platform.machine(), "bar_calls_per_s": BAR}
        options.json.write_text(json.dumps({**facts, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
