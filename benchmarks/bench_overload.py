"""What does a provider do when three times its capacity is offered?

    python benchmarks/bench_overload.py --json out.json [--seconds 20] [--factor 3] [--threads 4] [--service-ms 40]

An open load on a blocking method through the real wire: 30 % of the capacity, then the overload (a tenth of it of
priority 0, the rest of priority 2), then 30 % again. The method sleeps: what is measured is the queue in front of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.overload import Result, play

from steelyard.guard import SLACK_S, ConcurrencySettings


def bars(result: Result, threads: int, service_s: float) -> list[tuple[str, float, str, float, bool]]:
    """(what, measured, comparison, bound, met)."""
    queue_s = max(SLACK_S, ConcurrencySettings().beta * service_s / threads)
    unloaded_p99_s = result.unloaded.quantile_s(0.99)
    overloaded = result.overloaded
    recovered_s = next(
        (number + 1 for number, second in enumerate(result.after) if second.lost(2) == 0.0), len(result.after) + 1
    )
    rows = [
        ("goodput / capacity", overloaded.goodput / result.capacity, ">=", 0.9),
        (
            "p99 of admitted / (2 x unloaded p99 + queue bound)",
            overloaded.quantile_s(0.99) / (2 * unloaded_p99_s + queue_s),
            "<=",
            1.0,
        ),
        ("growth of memory", result.memory_grew, "<=", 0.05),
        ("seconds until nothing is lost any more", float(recovered_s), "<=", 3.0),
        ("priority 0: lost", overloaded.lost(0), "<", 0.001),
        ("priority 2: shed", overloaded.lost(2), ">", 0.3),
        ("refusals without a hint", float(overloaded.without_hint), "<=", 0.0),
    ]
    met = {"<=": float.__le__, ">=": float.__ge__, "<": float.__lt__, ">": float.__gt__}
    return [(what, value, sign, bound, met[sign](float(value), bound)) for what, value, sign, bound in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--factor", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--service-ms", type=float, default=40.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    service_s = asked.service_ms / 1000
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(
            play(
                f"embedded://{folder}/registry.db",
                threads=asked.threads,
                service_s=service_s,
                factor=asked.factor,
                seconds=asked.seconds,
                important=0.1,
                after_s=4,
            )
        )
    rows = bars(result, asked.threads, service_s)
    overloaded, unloaded = result.overloaded, result.unloaded
    print(f"capacity {result.capacity:g} calls/s, offered {asked.factor:g} x for {asked.seconds:g} s; load {load()}")
    print(f"unloaded  p50 {unloaded.quantile_s(0.5) * 1e3:6.1f} ms  p99 {unloaded.quantile_s(0.99) * 1e3:6.1f} ms")
    for priority in sorted(overloaded.offered):
        print(
            f"priority {priority}: offered {overloaded.offered[priority]}, answered "
            f"{overloaded.answered.get(priority, 0)}, refused {overloaded.refused.get(priority, 0)}, "
            f"p50 {overloaded.quantile_s(0.5, priority) * 1e3:.1f} ms, "
            f"p99 {overloaded.quantile_s(0.99, priority) * 1e3:.1f} ms"
        )
    print(f"other failures: {overloaded.failed or 'none'}")
    for limit in result.statistics.limits.values():
        print(limit)
    for what, value, sign, bound, is_met in rows:
        print(f"{'met    ' if is_met else 'NOT met'}  {what:<52} {value:9.4f} {sign} {bound:g}")
    if asked.json:
        found = [
            {"what": what, "value": value, "sign": sign, "bound": bound, "is_met": is_met}
            for what, value, sign, bound, is_met in rows
        ]
        document = {"bars": found, "settings": vars(asked) | {"json": None}, "load": load()}
        asked.json.write_text(json.dumps(document, indent=1))
    return 0 if all(row[-1] for row in rows) else 1


def load() -> str:
    return " ".join(f"{each:.1f}" for each in os.getloadavg())


if __name__ == "__main__":
    sys.exit(main())
