"""How far many runs have come, and how long the rest will take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic

from .arrivals import load_points
from .run import Job, Result
from .scenario import Scenario

_A_REPORT = 0.5  # what a consumer's hearing of a report takes, in calls


@dataclass(frozen=True, slots=True)
class Step:
    """A run that is over: number ``done`` of ``total``. ``left_s``: until the last one is, as far as can be told."""

    result: Result
    done: int
    total: int
    left_s: float


def progress(jobs: Sequence[Job], results: Iterable[Result], clock: Callable[[], float] = monotonic) -> Iterator[Step]:
    """*results* are those of *jobs*, in their order.

    A run's length is estimated by its calls and reports, and by how fast its policy was until now: the longest of a
    report takes a thousand times as long as the shortest, so counting runs would say nothing.
    """
    began_s = clock()
    efforts = [effort(job.scenario) for job in jobs]
    done_effort: dict[str, float] = {}  # by policy, as the two that follow
    done_s: dict[str, float] = {}
    left_effort: dict[str, float] = {}
    for job, size in zip(jobs, efforts, strict=True):
        name = job.contender.name
        left_effort[name] = left_effort.get(name, 0.0) + size
        done_effort[name] = done_s[name] = 0.0
    for done, (job, size, result) in enumerate(zip(jobs, efforts, results, strict=True), 1):
        name = job.contender.name
        left_effort[name] -= size
        done_effort[name] += size
        done_s[name] += result.calls / result.calls_per_s if result.calls_per_s else 0.0
        everybodys = sum(done_s.values()) / sum(done_effort.values())
        rest_s = sum(
            size * (done_s[name] / done_effort[name] if done_effort[name] else everybodys)
            for name, size in left_effort.items()
        )
        # Processor seconds into this machine's time, at the rate so far.
        left_s = (clock() - began_s) * rest_s / (sum(done_s.values()) or 1.0)
        yield Step(result, done, len(jobs), max(0.0, left_s))


def effort(scenario: Scenario) -> float:
    """About how many calls' worth of work a run is."""
    reports = sum(group.count for group in scenario.nodes) * scenario.consumers.count / scenario.reports.period_s
    return _calls(scenario) + reports * scenario.seconds * _A_REPORT


def _calls(scenario: Scenario) -> float:
    traffic = scenario.traffic
    if traffic.closed is not None:
        return traffic.closed * scenario.seconds / (traffic.think_s + scenario.work.mean_s)
    points = [(at_s, load) for at_s, load in load_points(scenario) if at_s < scenario.seconds]
    points.append((scenario.seconds, points[-1][1]))
    return scenario.capacity * sum((to_s - at_s) * (load + to) / 2.0 for (at_s, load), (to_s, to) in pairwise(points))


def in_words(seconds: float) -> str:
    """ "40 s", "12 min", "3 h 05 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
