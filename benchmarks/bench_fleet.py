"""Does a fleet of unlike machines come to carry like loads?

    python benchmarks/bench_fleet.py --json out.json [--scale 1] [--seconds 30] [--window 60] [--work-ms 2] [--load 0.6]

Real processes: four nodes with CPU quotas of 10, 20, 40 and 60 % of a core (cgroups; root), two with an emulated device
that takes one call after another. First random picks, then the dual policy; in both an antagonist process sits in the
60 % node's own group and takes half of its quota, as a neighbour in the same pod does. For the dual policy it starts in
mid-run, and the loads are measured from --seconds later on, over --window seconds; random's likewise.

Why a minute: the smallest node has some 20 calls a second at most. Over ten seconds its load is wrong by a tenth of it
by chance alone, and the widest of six such differences is 0.08 when every weight is perfect (in virtual time: .07 to
.10 over 10 s, .05 over a minute). The output says what chance alone would make of the window: each node's own scatter
over stretches of five seconds, and the spread that six nodes of equal load would show with it.

A node's load is measured by its own counters, not by its load reports: CPU used over the quota of its group (the
antagonist's too), or the busy share of its one handler thread, whichever is larger; of a device its busy share. On a
machine whose cores are taken by others a quota cannot be had in full; --scale makes all quotas smaller.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from steelyard import Consumer, Provider, RpcError, method, service
from steelyard.testing import DutyCycle, EmulatedDevice, Quotas, QuotasRefused

QUOTAS = {"cpu-10": 0.10, "cpu-20": 0.20, "cpu-40": 0.40, "cpu-60": 0.60}
DEVICES = {"dev-1": 0.012, "dev-2": 0.012}
SLOWED = "cpu-60"
STEERING = ("cpu", "executor", "gpu")
STRETCH_S = 5.0
PULSE_S = 0.5
TICK_S = 0.005
FRAMEWORK_S = 0.0008  # CPU time of a call beside its work, for the reckoning of the capacity


@service("bench.Unlike")
class Unlike(Protocol):
    @method(timeout_s=2.0, idempotent=True)
    async def work(self) -> int: ...


class CpuNode:
    """Blocking: ``work_s`` of CPU time in the one handler thread."""

    def __init__(self, work_s: float) -> None:
        self._work_s = work_s
        self.calls = 0
        self.busy_s = 0.0

    def work(self) -> int:
        began_s, until_s = time.monotonic(), time.thread_time() + self._work_s
        while time.thread_time() < until_s:
            sum(range(200))
        self.calls += 1
        self.busy_s += time.monotonic() - began_s
        return self.calls


class DeviceNode:
    def __init__(self, device_s: float) -> None:
        self.device = EmulatedDevice(device_s)
        self.calls = 0

    async def work(self) -> int:
        await self.device.run()
        self.calls += 1
        return self.calls

    @property
    def busy_s(self) -> float:
        return self.device.busy_s


async def node_main(name: str, registry: str, seconds: float) -> None:
    """*seconds*: of work, or of the device. Ends when its standard input does."""
    node = DeviceNode(seconds) if name in DEVICES else CpuNode(seconds)
    sources: dict[str, Any] = {"gpu": node.device.busy_share} if isinstance(node, DeviceNode) else {}
    settings: dict[str, Any] = {"hardware": {"kind": "gpu", "accelerators": "emulated"}} if sources else {}
    async with Provider(
        registry, host="127.0.0.1", threads=1, tags={"name": name}, utilization=sources, drain_s=1.0, **settings
    ) as provider:
        await provider.export(node, contract=Unlike)
        ending = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
        while not ending.done():
            pulse = {"at_s": time.monotonic(), "busy_s": node.busy_s, "cpu_s": time.process_time(), "calls": node.calls}
            sys.stdout.write(json.dumps(pulse | {"said": dict(provider.statistics().utilization)}) + "\n")
            sys.stdout.flush()
            await asyncio.wait({ending}, timeout=PULSE_S)


def antagonist_main(cores: float) -> None:
    """Uses *cores* for as long as its standard input is open."""
    duty, parent = DutyCycle(cores), os.getppid()
    while os.getppid() == parent:
        until_s = time.thread_time() + 0.002
        while time.thread_time() < until_s:
            sum(range(200))
        duty.rest()


@dataclass
class Node:
    name: str
    quota: float | None
    process: asyncio.subprocess.Process
    pulses: list[dict[str, Any]] = field(default_factory=list)
    antagonist: subprocess.Popen[bytes] | None = None
    antagonised: list[tuple[float, float]] = field(default_factory=list)

    async def follow(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.pulses.append(json.loads(line) | {"other_s": self.other_s()})

    def other_s(self) -> float:
        """CPU time of the antagonist so far."""
        if self.antagonist is None:
            return 0.0
        try:
            fields = Path(f"/proc/{self.antagonist.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def load(self, start_s: float, end_s: float) -> dict[str, float]:
        inside = [pulse for pulse in self.pulses if start_s <= pulse["at_s"] <= end_s]
        if len(inside) < 2:
            return {"load": 1.0, "cpu": 1.0, "busy": 1.0, "calls": 0.0, "said": 1.0}
        first, last = inside[0], inside[-1]
        elapsed_s = last["at_s"] - first["at_s"]
        busy = (last["busy_s"] - first["busy_s"]) / elapsed_s
        used_s = last["cpu_s"] - first["cpu_s"] + last["other_s"] - first["other_s"]
        cpu = 0.0 if self.quota is None else used_s / elapsed_s / self.quota
        calls = (last["calls"] - first["calls"]) / elapsed_s
        told = [max((pulse["said"].get(name, 0.0) for name in STEERING), default=0.0) for pulse in inside]
        said = sum(told) / len(told)
        return {"load": min(1.0, max(busy, cpu)), "cpu": cpu, "busy": busy, "calls": calls, "said": said}

    def scatter(self, start_s: float, end_s: float) -> float:
        """The standard error of the load over a window, from that of its stretches."""
        count = int((end_s - start_s) / STRETCH_S)
        begins = [start_s + STRETCH_S * at for at in range(count)]
        parts = [self.load(begin_s, begin_s + STRETCH_S)["load"] for begin_s in begins]
        return statistics.stdev(parts) / count**0.5 if count > 1 else 0.0


def _by_chance(errors: list[float]) -> float:
    """The mean spread of as many equal loads, each measured with its own error."""
    dice = random.Random(1)
    spreads = []
    for _ in range(2000):
        drawn = [dice.gauss(0.0, error) for error in errors]
        spreads.append(max(drawn) - min(drawn))
    return statistics.fmean(spreads)


async def start(name: str, registry: str, seconds: float, quota: float | None, quotas: Quotas | None) -> Node:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "--node",
        f"{name},{registry},{seconds}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        await process.stdout.readline()  # it serves; only now is its quota in force, or six starts take a minute
    if quota is not None and quotas is not None:
        quotas.apply(name, process.pid, quota)
    return Node(name, quota, process)


async def offer(proxy: Any, rate: float, seconds: float, endings: Counter[str]) -> None:
    """An open load; what becomes of each call is counted by kind."""
    open_calls: set[asyncio.Task[None]] = set()

    async def one() -> None:
        try:
            await proxy.work()
            endings["ok"] += 1
        except RpcError as error:
            endings[type(error).__name__] += 1

    began_s, sent = time.perf_counter(), 0
    while (elapsed_s := time.perf_counter() - began_s) < seconds:
        while sent < elapsed_s * rate:
            sent += 1
            task = asyncio.ensure_future(one())
            open_calls.add(task)
            task.add_done_callback(open_calls.discard)
        await asyncio.sleep(TICK_S)
    await asyncio.gather(*open_calls)


def set_antagonist(node: Node, quotas: Quotas, *, is_on: bool) -> None:
    if node.antagonist is not None:
        node.antagonist.kill()
        node.antagonist.wait()
        node.antagonist = None
    if is_on:
        assert node.quota is not None
        node.antagonist = subprocess.Popen([sys.executable, __file__, "--antagonist", str(node.quota / 2)])
        quotas.apply(node.name, node.antagonist.pid, node.quota)


async def play(asked: argparse.Namespace, registry: str, quotas: Quotas) -> dict[str, Any]:
    work_s = asked.work_ms / 1000
    nodes: list[Node] = []
    following: list[asyncio.Task[None]] = []
    try:
        for name, quota in QUOTAS.items():
            nodes.append(await start(name, registry, work_s, quota * asked.scale, quotas))
        for name, device_s in DEVICES.items():
            nodes.append(await start(name, registry, device_s / asked.scale, None, None))
        following = [asyncio.ensure_future(node.follow()) for node in nodes]
        slowed = next(node for node in nodes if node.name == SLOWED)
        cores = asked.scale * (sum(QUOTAS.values()) - QUOTAS[SLOWED] / 2)
        capacity = cores / (work_s + FRAMEWORK_S) + sum(asked.scale / device_s for device_s in DEVICES.values())
        rate = asked.load * capacity
        print(f"about {capacity:.0f} calls/s can be served with the antagonist; {rate:.0f} are offered", flush=True)
        async with Consumer(registry) as consumer:
            found: dict[str, Any] = {"rate": rate}
            proxy = consumer.refer(Unlike, policy="random")
            await consumer.ready(proxy, nodes=len(nodes))
            set_antagonist(slowed, quotas, is_on=True)
            found["random"] = await _measured(proxy, nodes, rate, settle_s=5.0, window_s=asked.window)
            set_antagonist(slowed, quotas, is_on=False)
            proxy = consumer.refer(Unlike, policy="dual")
            await consumer.ready(proxy, nodes=len(nodes))
            endings: Counter[str] = Counter()
            await offer(proxy, rate, 10.0, endings)
            set_antagonist(slowed, quotas, is_on=True)
            found["dual"] = await _measured(
                proxy, nodes, rate, settle_s=asked.seconds, window_s=asked.window, before=endings
            )
        return found
    finally:
        quotas.lift()
        for node in nodes:
            if node.antagonist is not None:
                node.antagonist.kill()
                node.antagonist.wait()
            assert node.process.stdin is not None
            node.process.stdin.close()
        for node in nodes:
            try:
                async with asyncio.timeout(5):
                    await node.process.wait()
            except TimeoutError:
                node.process.kill()
                await node.process.wait()
        await asyncio.gather(*following, return_exceptions=True)


async def _measured(
    proxy: Any,
    nodes: list[Node],
    rate: float,
    *,
    settle_s: float,
    window_s: float,
    before: Counter[str] | None = None,
) -> dict[str, Any]:
    endings = Counter(before or {})
    await offer(proxy, rate, settle_s, endings)
    start_s = time.monotonic()
    await offer(proxy, rate, window_s, endings)
    end_s = time.monotonic()
    loads = {node.name: node.load(start_s, end_s) for node in nodes}
    values = [each["load"] for each in loads.values()]
    return {
        "loads": loads,
        "spread": max(values) - min(values),
        "spread by chance": _by_chance([node.scatter(start_s, end_s) for node in nodes]),
        "std": statistics.pstdev(values),
        "success": endings["ok"] / max(1, sum(endings.values())),
        "endings": dict(endings),
        "said": {node.name: node.pulses[-1]["said"] for node in nodes},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--window", type=float, default=60.0)
    parser.add_argument("--work-ms", type=float, default=2.0)
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--node", help=argparse.SUPPRESS)
    parser.add_argument("--antagonist", type=float, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.node:
        name, registry, seconds = asked.node.split(",")
        asyncio.run(node_main(name, registry, float(seconds)))
        return 0
    if asked.antagonist:
        antagonist_main(asked.antagonist)
        return 0
    try:
        quotas = Quotas.open()
    except QuotasRefused as refused:
        print(f"this needs CPU quotas, and they cannot be had here: {refused}", file=sys.stderr)
        return 2
    with quotas, tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(play(asked, f"embedded://{folder}/registry.db", quotas))
    chance, dual = found["random"], found["dual"]
    print(
        f"{'node':<8} {'random: load':>13} {'calls/s':>8}   {'dual: load':>11} {'calls/s':>8}  {'cpu':>5} {'busy':>5}"
    )
    for name in dual["loads"]:
        one, other = chance["loads"][name], dual["loads"][name]
        print(
            f"{name:<8} {one['load']:>13.2f} {one['calls']:>8.0f}   {other['load']:>11.2f} {other['calls']:>8.0f}  "
            f"{other['cpu']:>5.2f} {other['busy']:>5.2f} {other['said']:>5.2f}"
        )
    rows = [
        ("spread of load, dual", dual["spread"], "<= 0.08", dual["spread"] <= 0.08),
        ("spread of load, dual / random", dual["spread"] / chance["spread"], "< 1", dual["spread"] < chance["spread"]),
        ("success, dual", dual["success"], ">= 0.999", dual["success"] >= 0.999),
    ]
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"random: spread {chance['spread']:.2f}, success {chance['success']:.4f}; load of the machine {load}")
    for name, each in (("random", chance), ("dual", dual)):
        print(f"{name}: of the spread of {each['spread']:.3f}, {each['spread by chance']:.3f} would be there by chance")
    print(f"dual: {dual['endings']}")
    for what, value, bound, is_met in rows:
        print(f"{'met    ' if is_met else 'NOT met'}  {what:<32} {value:8.4f} {bound}")
    if asked.json:
        bars = [{"what": what, "value": value, "bound": bound, "is_met": met} for what, value, bound, met in rows]
        asked.json.write_text(json.dumps({"bars": bars, **found, "load": load}, indent=1))
    return 0 if all(row[-1] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
