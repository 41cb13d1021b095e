"""What do callers notice of a sick node, and of a spike on a sick fleet? Eight provider processes, one consumer.

    python benchmarks/bench_chaos.py --json out.json [--rate 500] [--seconds 15] [--only frozen,spike/fails-fast]

Each fault befalls one of eight nodes under an open load of idempotent calls and then of others; each spike is four
times the usual load while two of the eight are sick, with priorities 0, 1, 1, 2, 2. After the runs each bar is printed
with what was measured and a verdict, and the exit code is 1 when one is missed. All shares are counted over the whole
run, the moment of the fault included, and of all calls: under a fault a degraded call is no success. Executions are
counted on the providers, where a killed process has written down what it did; a count that does not even hold the calls
that were answered is no proof, and misses its bar.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import itertools
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.sickbay import SickFleet, SickNode, Tally, Ward, drive

from steelyard import Consumer, with_options
from steelyard.guard import Level, ProtectionSettings

FAULTS: dict[str, Callable[[SickNode], None]] = {
    "healthy": lambda node: None,
    "killed": lambda node: node.kill(),
    "frozen": lambda node: node.freeze(),
    "slow-x10": lambda node: node.set(slow=10),
    "fails-half": lambda node: node.set(fail=0.5),
    "fails-fast": lambda node: node.set(fail=1.0, fail_fast=True),
    "flaps": lambda node: node.set(flap=True, fail_fast=True),
}
SPIKES = ("fails-fast", "fails-half", "slow-x10", "frozen")
FAILING = ("fails-fast", "fails-half")  # what the bar speaks of; the others are there to be seen
PRIORITIES = (0, 1, 1, 2, 2)
SPIKE_TIMEOUT_S = 1.0
_blocks = itertools.count(1)


async def fault(fleet: SickFleet, name: str, rate: float, seconds: float) -> dict[str, Any]:
    """One node falls sick a fifth into the run; idempotent calls first, then others."""
    row: dict[str, Any] = {"rate_per_s": rate, "seconds": seconds}
    for kind in ("read", "write"):
        await asyncio.to_thread(fleet.heal)
        async with Consumer(fleet.registry) as consumer:
            ward = consumer.refer(Ward)
            await consumer.ready(ward, nodes=len(fleet.nodes), wait_s=30)
            method = getattr(ward, kind)

            def call(number: int, _: int, method: Callable[[int], Awaitable[str]] = method) -> Awaitable[str]:
                return method(number)

            await drive(call, rate, 1.0)
            before, first = consumer.statistics(ward).failover, next(_blocks) * 10_000_000

            async def befall() -> None:
                await asyncio.sleep(seconds / 5)
                FAULTS[name](fleet.nodes[0])

            befalling = asyncio.create_task(befall())
            tally = await drive(call, rate, seconds, first=first)
            await befalling
            after = consumer.statistics(ward).failover
        assert before is not None
        assert after is not None
        await asyncio.to_thread(fleet.heal)
        await asyncio.sleep(0.3)
        executed = {number: times for number, times in fleet.executed(kind).items() if number >= first}
        calls = after.calls - before.calls
        row[kind] = {
            **shown(tally),
            "per_s": tally.calls / seconds,
            "answered": tally.ok.total() / tally.calls,
            "executed": len(executed),
            "extra_attempts": (after.attempts - before.attempts) / calls - 1,
            "extra_executions": sum(executed.values()) / tally.calls - 1,
            "executed_twice": sum(times > 1 for times in executed.values()),
            "retries": after.retries - before.retries,
            "hedges": after.hedges - before.hedges,
            "hedges_won": after.hedges_won - before.hedges_won,
            "denied": after.denied - before.denied,
        }
    return row


async def spike(fleet: SickFleet, name: str, usual: float, seconds: float, *, is_on: bool) -> dict[str, Any]:
    await asyncio.to_thread(fleet.heal)
    async with Consumer(fleet.registry) as consumer:
        ward = consumer.refer(Ward, protection=ProtectionSettings() if is_on else None)
        await consumer.ready(ward, nodes=len(fleet.nodes), wait_s=30)
        proxies = {
            priority: with_options(ward, timeout_s=SPIKE_TIMEOUT_S, priority=priority) for priority in PRIORITIES
        }

        def call(number: int, priority: int) -> Awaitable[str]:
            return proxies[priority].read(number)

        await drive(call, usual, 5.0, priorities=PRIORITIES)
        before = consumer.statistics(ward).failover
        for node in fleet.nodes[: len(fleet.nodes) // 4]:
            FAULTS[name](node)
        tally = await drive(call, 4 * usual, seconds, priorities=PRIORITIES)
        await asyncio.to_thread(fleet.heal)
        after = consumer.statistics(ward).failover
        ended_s, full_after_s = time.monotonic(), None
        for _ in range(31 if is_on else 5):
            began_s = time.monotonic()
            second = await drive(call, usual, 1.0, priorities=PRIORITIES)
            if second.ok.total() < second.calls:
                full_after_s = None
            elif full_after_s is None:
                full_after_s = began_s - ended_s
        protection = consumer.statistics(ward).protection
    assert before is not None
    assert after is not None
    events = protection.events if protection is not None else ()
    return {
        **shown(tally),
        "usual_per_s": usual,
        "seconds": seconds,
        "well_per_s": len(fleet.nodes) * 3 / 4 * fleet.beds / fleet.work_s,
        "degraded_by_priority": {priority: tally.degraded_part(priority) for priority in sorted(set(PRIORITIES))},
        "extra_attempts": (after.attempts - before.attempts) / max(1, after.calls - before.calls) - 1,
        "full_service_after_s": full_after_s,
        "levels_up": sum(event.level > event.before for event in events),
        "levels_down": sum(event.level < event.before for event in events),
        "level_at_end": (protection.level if protection is not None else Level.NONE).name,
        "events": [f"{event.before.name} -> {event.level.name}: {event.reason}" for event in events],
    }


def shown(tally: Tally) -> dict[str, Any]:
    return {
        "calls": tally.calls,
        "admitted": tally.admitted,
        "success": tally.success,
        "failed": tally.failed.total(),
        "errors": dict(tally.errors),
        "p50_ms": tally.quantile_s(0.5) * 1e3,
        "p99_ms": tally.quantile_s(0.99) * 1e3,
        "p999_ms": tally.quantile_s(0.999) * 1e3,
    }


def bars(faults: dict[str, Any], spikes: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """(what, bar, measured, met) for everything that was run."""
    found = []
    for name, row in faults.items():
        read, write = row["read"], row["write"]
        offered = min(kind["per_s"] for kind in (read, write)) / row["rate_per_s"]
        extra = max(kind[what] for kind in (read, write) for what in ("extra_attempts", "extra_executions"))
        is_counted = write["executed"] >= write["answered"] * write["calls"]
        twice = f"{write['executed_twice']} of {write['executed']} executed"
        found += [
            (f"{name}: load offered", ">= 95 %", f"{offered:.1%} of {row['rate_per_s']:g}/s", offered >= 0.95),
            (f"{name}: idempotent success", ">= 99.95 %", f"{read['answered']:.3%}", read["answered"] >= 0.9995),
            (f"{name}: extra load", "<= 25 %", f"{extra:.1%}", extra <= 0.25),
            (f"{name}: executed twice", "0", twice, is_counted and write["executed_twice"] == 0),
        ]
    for name, row in spikes.items():
        _, sickness, kind = name.split("/")
        if kind != "protected" or sickness not in FAILING:
            continue
        parts = list(row["degraded_by_priority"].values())
        full_s = row["full_service_after_s"]
        changes = max(row["levels_up"], row["levels_down"])
        # The well ones cannot serve it all, so that nothing degraded, or everything, is no success either.
        is_first = parts == sorted(parts) and parts[-1] > 2 * parts[0] and parts[-1] > 0
        offered, served = row["calls"] / row["seconds"], row["success"] * row["admitted"] / row["seconds"]
        asked, well = 4 * row["usual_per_s"], row["well_per_s"]
        found += [
            (f"{name}: load offered", ">= 95 %", f"{offered:.0f}/s of {asked:g}", offered >= 0.95 * asked),
            (f"{name}: admitted succeed", ">= 99.9 %", f"{row['success']:.3%}", row["success"] >= 0.999),
            (f"{name}: well nodes are used", ">= 75 %", f"{served:.0f}/s of {well:g}", served >= 0.75 * well),
            (f"{name}: lowest first", "rising", " ".join(f"{part:.0%}" for part in parts), is_first),
            (f"{name}: full service", "<= 30 s", seconds_of(full_s), full_s is not None and full_s <= 30),
            (f"{name}: level changes", "<= 2 each", f"{row['levels_up']} up, {row['levels_down']} down", changes <= 2),
        ]
    return found


async def measure(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    only = set(filter(None, (options.only or "").split(",")))
    faults: dict[str, Any] = {}
    spikes: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="steelyard-chaos-") as folder:
        wanted = [name for name in FAULTS if not only or name in only]
        if wanted:
            Path(folder, "faults").mkdir()
            fleet = await asyncio.to_thread(SickFleet, Path(folder, "faults"))
            try:
                for name in wanted:
                    faults[name] = await fault(fleet, name, options.rate, options.seconds)
                    show_fault(name, faults[name])
            finally:
                await asyncio.to_thread(fleet.end)
        wanted = [name for name in SPIKES if not only or f"spike/{name}" in only]
        if wanted:
            Path(folder, "spikes").mkdir()
            fleet = await asyncio.to_thread(SickFleet, Path(folder, "spikes"), 8, 2, 0.025)
            try:
                for name, is_on in itertools.product(wanted, (True, False)):
                    key = f"spike/{name}/{'protected' if is_on else 'bare'}"
                    spikes[key] = await spike(fleet, name, options.usual, options.seconds, is_on=is_on)
                    show_spike(key, spikes[key])
            finally:
                await asyncio.to_thread(fleet.end)
    return faults, spikes


def seconds_of(value_s: float | None) -> str:
    return "never" if value_s is None else f"{value_s:.1f} s"


def show_fault(name: str, row: dict[str, Any]) -> None:
    read, write = row["read"], row["write"]
    print(
        f"{name:<12} idempotent {read['answered']:8.3%}  p50 {read['p50_ms']:5.1f}  p99 {read['p99_ms']:6.1f} ms  "
        f"extra {read['extra_attempts']:5.1%} ({read['retries']} retries, {read['hedges']} hedges, "
        f"{read['hedges_won']} won)  others {write['success']:8.3%}, executed twice: {write['executed_twice']}",
        flush=True,
    )


def show_spike(name: str, row: dict[str, Any]) -> None:
    parts = " ".join(f"{part:.0%}" for part in row["degraded_by_priority"].values())
    print(
        f"{name:<28} admitted {row['admitted']} of {row['calls']}, succeed {row['success']:8.3%}  degraded by priority "
        f"{parts}  p99 {row['p99_ms']:.0f} ms  full service after {seconds_of(row['full_service_after_s'])}  "
        f"levels {row['levels_up']} up {row['levels_down']} down",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--rate", type=float, default=500.0, help="calls a second under a fault [500]")
    parser.add_argument("--usual", type=float, default=150.0, help="calls a second before the spike [150]")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run [15]")
    parser.add_argument("--only", help="faults, and spikes as spike/FAULT, by comma")
    options = parser.parse_args()
    unknown = set(filter(None, (options.only or "").split(","))) - {*FAULTS, *(f"spike/{name}" for name in SPIKES)}
    if unknown:
        parser.error(f"--only: there is no {', '.join(sorted(unknown))}")
    load_before = os.getloadavg()[0]
    faults, spikes = asyncio.run(measure(options))
    print()
    checks = bars(faults, spikes)
    for what, bar, measured, is_met in checks:
        print(f"{'met' if is_met else 'MISSED':<6} {what:<48} {bar:<12} {measured}")
    if options.json:
        versions = {name: importlib.metadata.version(name) for name in ("steelyard", "grpcio", "msgspec")}
        document = {
            "question": "chaos",
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load_average_before": load_before,
            "versions": versions,
            "faults": faults,
            "spikes": spikes,
            "bars": [dict(zip(("what", "bar", "measured", "met"), check, strict=True)) for check in checks],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    missed = sum(not is_met for *_, is_met in checks)
    print(f"\n{len(checks) - missed} of {len(checks)} bars met; load average before {load_before:.1f}")
    if missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
