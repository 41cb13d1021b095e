"""From options to an outcome: prepare, play, measure, and leave nothing behind, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from steelyard.balance import NodeStatistics, make_policy
from steelyard.cluster import open_at
from steelyard.errors import ConfigError, SteelyardError
from steelyard.testing import QUOTA_PREFIX, Quotas, QuotasRefused, is_of_dead_run, run_name

from . import picture
from .fleet import Fleet, NodeProcess
from .measure import NodeWindow, consumer_window, load_spread, mean_spread, node_windows
from .model import DATA_PACKAGE, Trained, copies_for, train
from .outcome import NodeResult, Outcome, Second, expectations, machine, versions
from .plan import FLEET, MODEL_COST_S, RATE_PER_S, SICK_NODE, SICK_SHARE_OF_FAILURES, TWIN, USERS, DemoOptions, Schedule
from .stage import SEED, Glimpse, Note, Stage

REGISTRY_WAIT_S = 5.0


class DemoFailed(SteelyardError):
    """The demonstration could not be run; the message says why and what to do."""


class Screen(Protocol):
    """Where a run shows itself."""

    def step(self, text: str) -> None:
        """A step of the preparation has been done."""

    def training(self, done: float) -> None:
        """That part of the training is done, in [0, 1]."""

    def look(self, glimpse: Glimpse) -> None:
        """The cluster now."""


@dataclass(frozen=True, slots=True)
class Played:
    """A run: what it has shown, and why there is no picture although one was asked for."""

    outcome: Outcome
    undrawn: OSError | None = None


async def run_demo(options: DemoOptions, screen: Screen) -> Played:
    """Plays the demonstration once. Raises ConfigError (policy, registry URL), RegistryUnavailable,
    DemoFailed and FleetError."""
    make_policy(options.policy)
    _check_installed(options)
    await _check_registry(options.registry)
    schedule = Schedule(options.seconds, options.has_fault, options.policy)
    with _folder() as folder, _quotas(screen) as quotas:
        registry = options.registry or f"embedded://{folder}/registry.db"
        has_ended = threading.Event()
        training = asyncio.ensure_future(asyncio.to_thread(_prepare, options, screen, has_ended))
        try:
            async with Fleet(FLEET, folder, quotas) as fleet:
                screen.step(f"{len(FLEET)} provider processes started")
                trained = await training
                screen.step(f"model trained on {trained.data_set}: {trained.accuracy:.1%} right")
                async with _stage(fleet, registry, trained, schedule, folder, screen) as (stage, copies):
                    await stage.play(screen.look)
                    outcome = measured(stage, trained, copies, registry if options.registry else "embedded")
                    drawing = asyncio.ensure_future(asyncio.to_thread(_draw, options, outcome))  # while the fleet ends
        finally:
            has_ended.set()
            training.cancel()
            await asyncio.gather(training, return_exceptions=True)
    return Played(outcome, await drawing)


def _draw(options: DemoOptions, outcome: Outcome) -> OSError | None:
    if options.plot is not None:
        try:
            picture.draw(outcome, options.plot)
        except OSError as error:
            return error  # after all that, the numbers are worth showing
    return None


def _check_installed(options: DemoOptions) -> None:
    """Before eight processes are started for nothing."""
    wanted = {DATA_PACKAGE: "scikit-learn (it carries the data)"}
    if options.plot is not None:
        wanted["matplotlib"] = "matplotlib (it draws the picture; --no-plot does without)"
    missing = [why for name, why in wanted.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoFailed(
            f"the demonstration needs {' and '.join(missing)}: pip install 'steelyard[examples]', or in a clone "
            "pip install '.[examples]' (./dev demo does it for you)"
        )


async def _check_registry(url: str | None) -> None:
    """Before eight processes find out. Raises ConfigError, RegistryUnavailable."""
    if url is None:
        return
    if url.startswith(("memory:", "static:")):
        raise ConfigError(f"--registry: one that several processes can register in, not {url}")
    await (await open_at(url, REGISTRY_WAIT_S)).close()


@contextlib.asynccontextmanager
async def _stage(
    fleet: Fleet, registry: str, trained: Trained, schedule: Schedule, folder: Path, screen: Screen
) -> AsyncIterator[tuple[Stage, int]]:
    copies = copies_for(trained.model, trained.rows[0], MODEL_COST_S)
    weights = folder / "model.npz"
    trained.model.save(weights)
    run = folder.name
    await fleet.serve(run=run, registry=registry, model=weights, copies=copies, seed=SEED)
    screen.step(f"all serve; CPU shares by {fleet.how}")
    screen.step("the GPUs of two nodes are emulated: a queue with a service time")
    async with Stage.open(fleet, registry, trained, schedule, run) as stage:
        screen.step(f"traffic: {RATE_PER_S:g} calls/s of {USERS} users, open loop")
        yield stage, copies


class _GivenUp(Exception):
    """The run has ended while the model was being trained."""


def _prepare(options: DemoOptions, screen: Screen, has_ended: threading.Event) -> Trained:
    """What can be done while the processes start. In a thread, which nobody can cancel: it asks."""

    def told(done: float) -> None:
        if has_ended.is_set():
            raise _GivenUp
        screen.training(done)

    trained = train(told, seed=0)
    if options.plot is not None and not has_ended.is_set():
        picture.load()
    return trained


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """This run's folder. Those of earlier runs of this user whose process is gone are removed as well."""
    parent = Path(tempfile.gettempdir())
    for old in parent.glob(f"{QUOTA_PREFIX}*"):
        if is_of_dead_run(old.name) and old.stat().st_uid == os.getuid():
            shutil.rmtree(old, ignore_errors=True)
    folder = parent / run_name()
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _quotas(screen: Screen) -> Iterator[Quotas | None]:
    try:
        quotas = Quotas.open()
    except QuotasRefused as refused:
        screen.step(f"no CPU quotas from the kernel ({refused}): each node keeps to its share by itself")
        yield None
        return
    with quotas:
        yield quotas


def measured(stage: Stage, trained: Trained, copies: int, registry: str) -> Outcome:
    """What the run has shown."""
    schedule, calls, fleet = stage.schedule, stage.traffic.calls, stage.counters
    start = stage.start_at

    def nodes_in(start_s: float, end_s: float) -> dict[str, Any]:
        return {window.name: window for window in node_windows(fleet, start + start_s, start + end_s)}

    def spread_in(window: tuple[float, float]) -> float:
        begin_s, end_s = _whole_seconds(window)
        return mean_spread(fleet, start + begin_s, start + end_s, schedule.spread_over_s)

    after, whole = nodes_in(*schedule.after), nodes_in(0.0, schedule.seconds)
    run = consumer_window(calls, start, start + schedule.seconds)
    load_std = spread_in(schedule.before), spread_in(schedule.after)
    fair_share = sick_share = share_after = success = None
    if schedule.has_fault:
        sick_share = nodes_in(schedule.settled_s, schedule.heal_s)[SICK_NODE].share
        share_after, fair_share = after[SICK_NODE].share, after[TWIN].share
        success = consumer_window(calls, start + schedule.fault_s, start + schedule.heal_s).success
    last = stage.notes[-1].balancer
    return Outcome(
        calls=run.calls,
        failed_calls=run.failed,
        p50_ms=run.p50_ms,
        p99_ms=run.p99_ms,
        accuracy=run.accuracy,
        nodes=[_node_result(node, after[node.plan.name], last.get(node.plan.name)) for node in stage.fleet.nodes],
        load_std_before=load_std[0],
        load_std_after=load_std[1],
        sick_node=SICK_NODE if schedule.has_fault else None,
        sick_node_fair_share=fair_share,
        sick_node_share_during_fault=sick_share,
        sick_node_share_after_recovery=share_after,
        consumer_success_during_fault=success,
        failed_attempts=round(sum(window.failed for window in whole.values())),
        expectations=expectations(
            load_std=load_std, sick_share=sick_share, success=success, share_after=share_after, fair_share=fair_share
        ),
        settings={
            "seconds": schedule.seconds,
            "policy": schedule.policy,
            "registry": registry,
            "load_std": "standard deviation over the nodes of their loads in the seconds before a moment; before and "
            "after: means of it",
            "load_std_over_s": schedule.spread_over_s,
            "before_s": _whole_seconds(schedule.before),
            "after_s": _whole_seconds(schedule.after),
            "seed": SEED,
            "rate_per_s": RATE_PER_S,
            "users": USERS,
            "cpu_shares_by": stage.fleet.how,
            "is_cpu_share_emulated": not stage.fleet.has_quotas,
            "fleet": [msgspec.to_builtins(plan) for plan in FLEET],
            "sick_share_of_failures": SICK_SHARE_OF_FAILURES,
            "copies_averaged": copies,
            "model_cost_s": MODEL_COST_S,
            "data_set": trained.data_set,
            "accuracy_on_unseen_rows": trained.accuracy,
            "machine": machine(),
            "versions": versions(),
            "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
        errors=dict(stage.traffic.errors.most_common(10)),
        phases=[msgspec.to_builtins(phase) for phase in schedule.phases],
        series=_series(stage),
    )


def _whole_seconds(window: tuple[float, float]) -> tuple[float, float]:
    """The seconds of the series that lie in *window*; the window itself where none does."""
    begin_s, end_s = math.ceil(window[0] - 1e-9), math.floor(window[1] + 1e-9)
    return (float(begin_s), float(end_s)) if begin_s < end_s else window


def _node_result(node: NodeProcess, window: NodeWindow, view: NodeStatistics | None) -> NodeResult:
    """``list`` is "absent" for a node that the consumer does not know at the end."""
    return NodeResult(
        name=node.plan.name,
        hardware=node.hardware,
        share=window.share,
        availability=None if view is None else view.availability,
        load=window.load,
        flow_ratio=0.0 if view is None else view.flow_ratio,
        list="absent" if view is None else view.list.value,
    )


def _series(stage: Stage) -> list[Second]:
    fleet, calls, start = stage.counters, stage.traffic.calls, stage.start_at
    over_s = stage.schedule.spread_over_s
    seconds = []
    for number, note in enumerate(stage.notes[1:], start=1):
        begin, end = start + number - 1.0, start + number
        nodes = node_windows(fleet, begin, end)
        seconds.append(
            Second(
                at_s=float(number),
                phase=stage.schedule.phase_at(number - 0.5).name,
                consumer=consumer_window(calls, begin, end),
                load_std=load_spread(node_windows(fleet, max(start, end - over_s), end)),
                nodes={window.name: window for window in nodes},
                balancer=_thoughts(note),
            )
        )
    return seconds


def _thoughts(note: Note) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "policy": note.policy,
            "share": node.share,
            "base_share": node.base_share,
            "availability": node.availability,
            "load": node.load,
            "flow_ratio": node.flow_ratio,
            "list": node.list.value,
            "reason": node.reason.text,
        }
        for name, node in note.balancer.items()
    }
