"""What the peers of bench_rpc share."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import Any

HOST = "127.0.0.1"
WARM_UP_S = 0.3
# Servers, channels and connections of this process: nothing else holds them.
KEPT: list[Any] = []

Echo = Callable[[bytes], Awaitable[Any]]


def free_port() -> int:
    """One that was free a moment ago, with its neighbour: above the range that the system gives out by itself."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000, 2):
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind((HOST, port))
                two.bind((HOST, port + 1))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port")


def summary(took: list[float], made: int, elapsed_s: float, cpu_s: float) -> dict[str, float]:
    """*took*: the measured calls; *made*: all of them, the warm-up's too, which *cpu_s* is for."""
    took.sort()
    count = len(took)
    return {
        "calls_per_s": count / elapsed_s,
        "p50_us": took[count // 2] * 1e6,
        "p99_us": took[min(count - 1, int(count * 0.99))] * 1e6,
        "client_cpu_us": cpu_s / made * 1e6,
        "client_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "made": made,
    }
