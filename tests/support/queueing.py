"""A station with servers and a line, in virtual time, in front of which a concurrency limit stands."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass

from steelyard.guard import ConcurrencyLimit, Ending

SERVICE_S = 0.005
SHAPES: dict[str, Callable[[random.Random], float]] = {
    "fixed": lambda _: SERVICE_S,
    "exponential": lambda dice: dice.expovariate(1 / SERVICE_S),
    "two kinds": lambda dice: SERVICE_S * (0.2 if dice.random() < 0.8 else 4.2),
}


@dataclass
class Outcome:
    """``goodput`` as a part of the capacity, ``refused`` of what was offered; latencies in mean services, of the second
    half; ``lost`` by priority."""

    goodput: float
    refused: float
    p50: float
    p99: float
    limits: tuple[int, int]
    lost: dict[int, float]


def run(
    limit: ConcurrencyLimit,
    *,
    servers: int,
    load: Callable[[float], float],
    shape: str = "exponential",
    seconds: float = 20.0,
    is_run_known: bool = False,
    important: float = 0.0,
    seed: int = 0,
) -> Outcome:
    """Poisson arrivals at ``load(time)`` times the capacity; the part *important* has priority 0, the rest then 2."""
    dice = random.Random(seed)
    events: list[tuple[float, int, int, tuple[float, int, float]]] = [(0.0, 0, 0, (0.0, 0, 0.0))]
    line: list[tuple[int, int, float, int]] = []
    busy, number, now = 0, 0, 0.0
    offered, lost = {0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}
    latencies: list[float] = []
    limits: list[int] = []
    worked_s = 0.0
    while events:
        now, _, kind, (arrived_s, mark, ran_s) = heapq.heappop(events)
        if now > seconds:
            break
        number += 1
        if kind == 0:
            rate = max(1e-6, load(now)) * servers / SERVICE_S
            heapq.heappush(events, (now + dice.expovariate(rate), number, 0, (0.0, 0, 0.0)))
            priority = (0 if dice.random() < important else 2) if important else 1
            offered[priority] += 1
            if limit.admits(priority):
                heapq.heappush(line, (priority, number, now, limit.began(priority)))
            else:
                lost[priority] += 1
        else:
            busy -= 1
            if now > seconds / 2:
                latencies.append((now - arrived_s) / SERVICE_S)
            limit.ended(mark, Ending.SUCCESS, now - arrived_s, now, ran_s=ran_s if is_run_known else None)
        while line and busy < servers:
            _, place, arrived_s, mark = heapq.heappop(line)
            busy += 1
            ran_s = SHAPES[shape](dice)
            worked_s += ran_s
            heapq.heappush(events, (now + ran_s, place, 1, (arrived_s, mark, ran_s)))
        if now > seconds / 2:
            limits.append(limit.limit)
    latencies.sort()
    return Outcome(
        goodput=worked_s / seconds / servers,
        refused=limit.refused / max(1, limit.refused + limit.admitted),
        p50=latencies[len(latencies) // 2],
        p99=latencies[int(len(latencies) * 0.99)],
        limits=(min(limits), max(limits)),
        lost={priority: lost[priority] / offered[priority] for priority in offered if offered[priority]},
    )
