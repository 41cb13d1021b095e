"""Running: scenarios x variants x policies x seeds, over the machine's cores, in an order that changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from .arrivals import Arrivals, draw_arrivals
from .contender import Contender, contenders
from .measure import measure
from .reading import variants
from .scenario import Scenario
from .world import World


@dataclass(frozen=True, slots=True)
class Job:
    """One run: everything that it depends on."""

    scenario: Scenario
    variant: Mapping[str, Any]
    contender: Contender
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """One run's numbers. ``calls_per_s`` is how fast the simulation went, and the only number here that depends on the
    machine. Only where a picture was asked for: ``loads`` (seconds x nodes), the names of the ``nodes``, those that are
    ``watched``, and the seconds in which something begins or ends (``turns_s``)."""

    scenario: str
    variant: Mapping[str, Any]
    policy: str
    seed: int
    metrics: Mapping[str, float]
    calls: int
    calls_per_s: float = 0.0
    loads: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    nodes: tuple[str, ...] = field(default=(), repr=False)
    watched: frozenset[str] = field(default=frozenset(), repr=False)
    turns_s: tuple[float, ...] = field(default=(), repr=False)


def plan(names: Sequence[str | Path], policies: Sequence[str], seeds: int | Sequence[int]) -> list[Job]:
    """All runs, a scenario's variants in its own order. Raises ConfigError for unknown names and wrong files, before
    anything has run."""
    numbers = range(1, seeds + 1) if isinstance(seeds, int) else seeds
    return [
        Job(scenario, variant, one, seed)
        for name in names
        for variant, scenario in variants(name)
        for seed in numbers
        for one in contenders(policies, scenario)
    ]


def run(job: Job, *, with_loads: bool = False) -> Result:
    """One run in this process."""
    world = World(job.scenario, _arrivals(job.scenario, job.seed), job.contender.make, job.seed)
    world.run()
    return Result(
        scenario=job.scenario.name,
        variant=job.variant,
        policy=job.contender.name,
        seed=job.seed,
        metrics=measure(world),
        calls=world.calls,
        calls_per_s=world.calls / world.cpu_s,
        loads=tuple(map(tuple, world.recorder.busy)) if with_loads else (),
        nodes=tuple(server.node.host for server in world.servers) if with_loads else (),
        watched=frozenset(server.node.host for server in world.servers if server.watched and with_loads),
        turns_s=_turns_s(job.scenario) if with_loads else (),
    )


def _turns_s(scenario: Scenario) -> tuple[float, ...]:
    """When faults begin and end, each for the first time, and the disturbance that the scenario names."""
    turns_s = [scenario.measure.disturbed_at_s, scenario.measure.disturbed_until_s or 0.0]
    for fault in scenario.faults:
        turns_s += [fault.at_s, fault.until_s]
    return tuple(sorted({at_s for at_s in turns_s if 0.0 < at_s < scenario.seconds}))


def run_all(
    jobs: Sequence[Job],
    *,
    processes: int = 1,
    with_loads: Callable[[Job], bool] = lambda job: False,
) -> Iterator[Result]:
    """The results in the order of *jobs*, each as soon as it and those before it are there."""
    if processes <= 1:
        yield from (run(job, with_loads=with_loads(job)) for job in jobs)
        return
    # Fresh interpreters: a fork would copy whatever threads and locks the caller has.
    with ProcessPoolExecutor(processes, get_context("spawn"), _end_with_parent) as pool:
        yield from pool.map(_run, [(job, with_loads(job)) for job in jobs], chunksize=1)


def _end_with_parent() -> None:
    """A pool's processes wait for work for ever when whoever made it was killed: each holds the others' pipe open."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def _run(task: tuple[Job, bool]) -> Result:
    return run(task[0], with_loads=task[1])


_last_arrivals: list[tuple[Scenario, int, Arrivals]] = []


def _arrivals(scenario: Scenario, seed: int) -> Arrivals:
    """The last one drawn is kept: the next job is usually the next policy on the same calls."""
    if not _last_arrivals or _last_arrivals[0][:2] != (scenario, seed):
        _last_arrivals[:] = [(scenario, seed, draw_arrivals(scenario, seed))]
    return _last_arrivals[0][2]
