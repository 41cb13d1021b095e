"""Who calls when, with which key and how much work: drawn before the run and the same for every policy.

Paired comparison (common random numbers) is what makes a few seeds enough: two policies that see the same calls differ
by their own doing only. So nothing here may depend on what a policy does, and a call's work belongs to the call and
not to the moment it is served.
"""

from __future__ import annotations

import csv
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from math import inf, log
from pathlib import Path

from steelyard.balance import hash_key
from steelyard.errors import ConfigError

from .sampling import TABLE, quantiles, stream, zipf_sums
from .scenario import Scenario


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Columns by call. ``key`` is a key's number (None: calls have none) and ``hashes`` maps it to 64 bits;
    ``consumer`` is who calls; ``priority`` 0 is degraded last. In a closed loop ``at_s`` are infinite: the callers draw
    from the columns as they go."""

    at_s: array[float]
    work_s: array[float]
    consumer: array[int]
    key: array[int] | None
    hashes: tuple[int, ...]
    priority: array[int] | None


def draw_arrivals(scenario: Scenario, seed: int) -> Arrivals:
    """All calls of one run."""
    traffic = scenario.traffic
    if traffic.trace is not None:
        return _recorded(scenario, seed, Path(traffic.trace))
    if traffic.closed is not None:
        # No caller can make more calls than this without any work being done at all.
        count = int(traffic.closed * scenario.seconds / max(traffic.think_s, scenario.work.mean_s / 4)) + traffic.closed
        at_s = array("d", [inf]) * count
    else:
        at_s = _poisson(scenario, seed)
    return _with_columns(scenario, seed, at_s)


def load_points(scenario: Scenario) -> list[tuple[float, float]]:
    """The offered load as points (second, load), joined by lines."""
    if scenario.steps is not None:
        points: list[tuple[float, float]] = []
        for at_s, load in step_starts(scenario):
            points += [(at_s, load), (at_s + scenario.steps.seconds, load)]
        return points
    offered = scenario.traffic.load
    return list(offered) if isinstance(offered, list) else [(0.0, offered)]


def step_starts(scenario: Scenario) -> list[tuple[float, float]]:
    """(second, load) at which each step of the staircase begins; empty without one."""
    steps = scenario.steps
    if steps is None:
        return []
    starts: list[tuple[float, float]] = []
    load = steps.first
    while load <= steps.last * 1.0001:
        starts.append((len(starts) * steps.seconds, load))
        load *= steps.ratio
    return starts


def _poisson(scenario: Scenario, seed: int) -> array[float]:
    """A Poisson process whose rate follows the load. The rate is held within one interval between two calls, which is
    milliseconds where the load changes over seconds."""
    random = stream(seed, "arrivals").random
    points = load_points(scenario)
    times = [at_s for at_s, _ in points]
    capacity = scenario.capacity
    at_s, found, segment_until, rate, slope = 0.0, array("d"), 0.0, 0.0, 0.0
    origin = 0.0
    while True:
        if at_s >= segment_until:
            place = bisect_right(times, at_s)
            origin, level = points[max(0, place - 1)]
            segment_until = times[place] if place < len(points) else inf
            slope = 0.0
            if 0 < place < len(points) and segment_until > origin:
                slope = (points[place][1] - level) / (segment_until - origin) * capacity
            rate = level * capacity
        now = rate + slope * (at_s - origin)
        if now <= 1e-9:
            at_s += 0.1
        else:
            at_s -= log(1.0 - random()) / now
        if at_s >= scenario.seconds:
            return found
        if now > 1e-9:
            found.append(at_s)


def _with_columns(scenario: Scenario, seed: int, at_s: array[float]) -> Arrivals:
    count, work, traffic = len(at_s), scenario.work, scenario.traffic
    table = quantiles(work.distribution, work.mean_s, work.shape)
    random = stream(seed, "work").random
    work_s = array("d", [table[int(random() * TABLE)] for _ in range(count)])
    random = stream(seed, "consumers").random
    consumers = scenario.consumers.count
    consumer = array("l", [int(random() * consumers) for _ in range(count)])
    key: array[int] | None = None
    hashes: tuple[int, ...] = ()
    if traffic.keys:
        sums, random = zipf_sums(traffic.keys, traffic.zipf), stream(seed, "keys").random
        key = array("l", [bisect_left(sums, random()) for _ in range(count)])
        hashes = tuple(hash_key(("key", number)) for number in range(traffic.keys))
    priority = None
    if traffic.priorities:
        random, bounds = stream(seed, "priorities").random, traffic.priorities
        priority = array("l", [bisect_right(bounds, random()) for _ in range(count)])
    return Arrivals(at_s, work_s, consumer, key, hashes, priority)


def _recorded(scenario: Scenario, seed: int, path: Path) -> Arrivals:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = [row for row in csv.reader(file) if row and not row[0].startswith(("#", "seconds"))]
        # Stable, so that calls of one moment keep the file's order.
        rows = sorted(((float(row[0]), row[1:3]) for row in lines), key=lambda row: row[0])
        rows = [row for row in rows if 0.0 <= row[0] < scenario.seconds]
        drawn = _with_columns(scenario, seed, array("d", [at_s for at_s, _ in rows]))
        work_s = drawn.work_s
        if rows and all(len(rest) > 1 for _, rest in rows):
            work_s = array("d", [float(rest[1]) for _, rest in rows])
    except (OSError, ValueError) as error:
        raise ConfigError(f"traffic.trace: cannot read {path} as seconds[,key[,work]]: {error}") from None
    if not rows or not all(rest for _, rest in rows):
        return Arrivals(drawn.at_s, work_s, drawn.consumer, None, (), drawn.priority)
    names = {name: number for number, name in enumerate(dict.fromkeys(rest[0] for _, rest in rows))}
    key = array("l", [names[rest[0]] for _, rest in rows])
    return Arrivals(drawn.at_s, work_s, drawn.consumer, key, tuple(map(hash_key, names)), drawn.priority)
