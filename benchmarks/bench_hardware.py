"""Are the signals of a provider honest, and what do they cost?

    python benchmarks/bench_hardware.py --json out.json [--seconds 20]

Real cgroups (root): a process that spins under 20 % of a core, then two of them; how long it takes until throttling is
seen; and a provider's sampler with all its sources, whose CPU time is taken over --seconds of its real pace of one
sample a second. Without the right to make groups that part says so and counts as not met.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from steelyard.hardware import Sampler, detect_facts, gpu_source, load_nvml
from steelyard.testing import Quotas, QuotasRefused

QUOTA = 0.2
Row = tuple[str, float, str, bool]


def spinner() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "while True: pass"])


def in_a_group(quotas: Quotas, seconds: float) -> list[Row]:
    """Shares that are reported of processes which spin in one group, averaged over seconds of samples."""
    processes = [spinner() for _ in range(2)]
    rows: list[Row] = []
    try:
        quotas.apply("first", processes[0].pid, QUOTA)
        rows.append(_share("one spins in 20 % of a core: cpu", [processes[0].pid], seconds))
        for process in processes:
            quotas.apply("shared", process.pid, QUOTA)
        rows.append(_share("two share 20 % of a core: each one's cpu, the worse", [p.pid for p in processes], seconds))
        rows.append(_throttled(quotas))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return rows


def _share(what: str, pids: list[int], seconds: float) -> Row:
    samplers = [Sampler(pid=pid) for pid in pids]
    for sampler in samplers:
        sampler.sample()
    found: list[list[float]] = [[] for _ in samplers]
    for _ in range(round(seconds)):
        time.sleep(1.0)
        for sampler, shares in zip(samplers, found, strict=True):
            shares.append(sampler.sample().get("cpu", 0.0))
    means = [sum(shares) / len(shares) for shares in found]
    worst = max(means, key=lambda mean: abs(mean - 1.0))
    return what, worst, "1 +- 0.05", abs(worst - 1.0) <= 0.05


def _throttled(quotas: Quotas) -> Row:
    """From the moment at which a spinning process is put under a limit until a sampler at its usual pace says so. The
    share is a difference: the first sample under the limit begins it, and the next one has it."""
    process = spinner()
    sampler = Sampler(pid=process.pid)
    sampler.start()
    try:
        time.sleep(1.5)
        began_s = time.monotonic()
        quotas.apply("late", process.pid, QUOTA / 4)  # so little that it is used up on a crowded machine too
        while sampler.utilization.get("throttled", 0.0) < 0.5 and time.monotonic() < began_s + 10.0:
            time.sleep(0.01)
        took_s = time.monotonic() - began_s
    finally:
        sampler.stop()
        process.kill()
        process.wait()
    return "seconds until throttling is seen", took_s, "<= 2", took_s <= 2.0


def cost(seconds: float) -> Row:
    """CPU time of the sampler's threads at their own pace, as a part of one core."""
    sampler = Sampler()
    sampler.add_source("executor", lambda: 0.5)
    nvml = load_nvml()
    if nvml is not None:
        sampler.add_source("gpu", gpu_source(nvml))
    sampler.start()
    time.sleep(1.5)
    before_s, began_s = time.process_time(), time.monotonic()
    time.sleep(seconds)
    share = (time.process_time() - before_s) / (time.monotonic() - began_s)
    sampler.stop()
    return "the sampler's part of a core, %", share * 100, "<= 0.2", share <= 0.002


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = [cost(asked.seconds)]
    try:
        with Quotas.open() as quotas:
            rows += in_a_group(quotas, max(3.0, asked.seconds / 4))
    except QuotasRefused as refused:
        print(f"no CPU quotas can be had here, so use under a limit is not measured: {refused}", file=sys.stderr)
        rows.append(("one spins in 20 % of a core: cpu", float("nan"), "1 +- 0.05", False))
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{detect_facts().get('hw.container', 'bare')}, load of the machine {load}")
    for what, value, bound, is_met in rows:
        print(f"{'met    ' if is_met else 'NOT met'}  {what:<54} {value:8.4f} {bound}")
    if asked.json:
        bars = [{"what": what, "value": value, "bound": bound, "is_met": met} for what, value, bound, met in rows]
        asked.json.write_text(json.dumps({"bars": bars, "load": load}, indent=1))
    return 0 if all(row[-1] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
