"""What does dynamic batching bring, and what does it cost a single caller?

    python benchmarks/bench_batching.py --json out.json [--seconds 2] [--rounds 3] [--callers 64] [--size 4096]

One matrix-multiply model, served twice by one provider process: call by call, and in batches of up to 32. The model is
``x @ weights``, --size squared: for one row it reads all weights to use each number once, for 32 rows it reads
them once for all. Consumer and provider are two processes; the two ways take turns; medians of the rounds. On a crowded
machine the long computation of a batch is interrupted more than the short one of a call, so calls per CPU second of the
provider stand beside calls a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
import psutil  # noqa: E402

from steelyard import Consumer, Provider, method, service  # noqa: E402
from steelyard.model import Batch  # noqa: E402

MAX_WAIT_S = 0.002


@service("bench.Single")
class Single(Protocol):
    @method(timeout_s=30)
    async def score(self, x: np.ndarray) -> np.ndarray: ...


@service("bench.Batched")
class Batched(Protocol):
    @method(timeout_s=30, batch=Batch(max_size=32, max_wait_s=MAX_WAIT_S))
    async def score(self, x: np.ndarray) -> np.ndarray: ...


class Model:
    """The same code for one row and for many; blocking, as models are."""

    def __init__(self, size: int) -> None:
        dice = np.random.default_rng(0)
        self._layers = [dice.normal(0, 0.05, (size, size)).astype(np.float32) for _ in range(LAYERS)]

    def score(self, x: np.ndarray) -> np.ndarray:
        for layer in self._layers:
            x = np.maximum(x @ layer, 0.0)
        return x[..., :16]


LAYERS = 1


async def serve(registry: str, size: int) -> None:
    async with Provider(registry, host="127.0.0.1", threads=1, limit=False) as provider:
        model = Model(size)
        await provider.export(model, contract=Single)
        await provider.export(model, contract=Batched)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.readline)
        found = provider.statistics().batches["bench.Batched.score"]
        sys.stderr.write(f"{found.calls / max(1, found.batches):.1f} calls in a batch, {found.full} full\n")


async def drive(call: Any, callers: int, seconds: float, x: np.ndarray) -> tuple[float, float]:
    """Calls a second, and the median latency."""
    took: list[float] = []
    end_at = time.perf_counter() + seconds

    async def caller() -> None:
        while (sent_at := time.perf_counter()) < end_at:
            await call(x)
            took.append(time.perf_counter() - sent_at)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return len(took) / seconds, statistics.median(took)


async def measure(asked: argparse.Namespace, registry: str, pid: int) -> dict[str, Any]:
    server = psutil.Process(pid)
    found: dict[str, list[float]] = {}
    async with Consumer(registry) as consumer:
        ways = {"single": consumer.refer(Single), "batched": consumer.refer(Batched)}  # type: ignore[type-abstract]
        for proxy in ways.values():
            await consumer.ready(proxy)
        x = np.ones(asked.size, np.float32)
        for proxy in ways.values():
            await drive(proxy.score, 8, 0.3, x)
        for _ in range(asked.rounds):
            for name, proxy in ways.items():
                before_s = sum(server.cpu_times()[:2])
                rate, _ = await drive(proxy.score, asked.callers, asked.seconds, x)
                cpu_s = sum(server.cpu_times()[:2]) - before_s
                found.setdefault(f"{name}: calls/s", []).append(rate)
                found.setdefault(f"{name}: calls per CPU second", []).append(rate * asked.seconds / cpu_s)
                _, p50 = await drive(proxy.score, 1, asked.seconds / 2, x)
                found.setdefault(f"{name}: p50 of one caller, ms", []).append(p50 * 1e3)
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        asyncio.run(serve(asked.serve, asked.size))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        registry = f"embedded://{folder}/registry.db"
        command = [sys.executable, __file__, "--serve", registry, "--size", str(asked.size)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdin is not None
            server.stdout.readline()
            try:
                found = asyncio.run(measure(asked, registry, server.pid))
            finally:
                server.stdin.close()
    speed = found["batched: calls/s"] / found["single: calls/s"]
    by_cpu = found["batched: calls per CPU second"] / found["single: calls per CPU second"]
    extra_ms = found["batched: p50 of one caller, ms"] - found["single: p50 of one caller, ms"]
    allowed_ms = (found["single: p50 of one caller, ms"] + MAX_WAIT_S * 1e3) * 1.1
    for name, value in found.items():
        print(f"{name:<36} {value:10.2f}")
    rows = [
        (f"calls/s batched / single, {asked.callers} callers", speed, ">= 4", speed >= 4),
        (
            "p50 of one caller / (single + max_wait) x 1.1",
            found["batched: p50 of one caller, ms"] / allowed_ms,
            "<= 1",
            found["batched: p50 of one caller, ms"] <= allowed_ms,
        ),
    ]
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"a lone caller pays {extra_ms:.2f} ms more; {asked.size} x {asked.size}, {LAYERS} layers; load {load}")
    print(f"per CPU second of the provider, batched / single: {by_cpu:.2f} (what a core of its own would show)")
    for what, value, bound, is_met in rows:
        print(f"{'met    ' if is_met else 'NOT met'}  {what:<48} {value:7.2f} {bound}")
    if asked.json:
        bars = [{"what": what, "value": value, "bound": bound, "is_met": met} for what, value, bound, met in rows]
        asked.json.write_text(json.dumps({"bars": bars, "medians": found, "load": load}, indent=1))
    return 0 if all(row[-1] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
