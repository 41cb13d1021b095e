"""``steelyard sim``: tables of policies side by side, gates, pictures and the committed report."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from steelyard.sim import (
    Result,
    Step,
    Table,
    Verdict,
    check_picture,
    draw,
    gate_rows,
    in_words,
    judge,
    plain,
    plan,
    progress,
    regenerate,
    rounded,
    rows,
    run_all,
    scenario_names,
    variants,
)

from .failure import Failure, usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for on the command line."""

    scenarios: list[str]
    policies: str = "all"
    seeds: int = 8
    jobs: int | None = None
    json_path: str | None = None
    plot: str | None = None
    report: str | None = None
    is_gated: bool = False
    shows_differences: bool = False


def run(asked: Asked) -> None:
    """Raises Failure when a gate was asked for and is not met."""
    if asked.seeds < 1:
        raise usage(f"--seeds: at least 1, not {asked.seeds}")
    if asked.report is not None:
        _report(asked)
        return
    if not asked.scenarios:
        _list()
        return
    if asked.plot is not None:
        check_picture(Path(asked.plot))
    if asked.json_path not in (None, "-") and not Path(asked.json_path).parent.is_dir():
        raise usage(f"--json: there is no folder {str(Path(asked.json_path).parent)!r}")
    jobs = plan(asked.scenarios, _policies(asked), asked.seeds)
    results: list[Result] = []
    first = jobs[0].seed
    running = run_all(
        jobs,
        processes=_processes(asked),
        with_loads=(lambda job: job.seed == first) if asked.plot is not None else (lambda job: False),
    )
    for step in progress(jobs, running):
        results.append(step.result)
        _progress(step)
    _progress_ends()
    failed = [verdict for name in asked.scenarios for verdict in _show(name, results, asked)]
    if asked.json_path is not None:
        _write_json(asked.json_path, results)
    if asked.plot is not None:
        draw(results, Path(asked.plot))
    if asked.is_gated and failed:
        named = {policy for verdict in failed for policy in (verdict.gate.policy, verdict.gate.of) if policy}
        absent = sorted(named - {result.policy for result in results})
        why = f"; they speak of {', '.join(absent)}, which was not run" if absent else ""
        raise Failure(f"{len(failed)} gate{'' if len(failed) == 1 else 's'} not met{why}")


def _policies(asked: Asked) -> tuple[str, ...]:
    return tuple(part.strip() for part in asked.policies.split(",") if part.strip())


def _processes(asked: Asked) -> int:
    if asked.jobs is not None:
        if asked.jobs < 1:
            raise usage(f"--jobs: at least 1, not {asked.jobs}")
        return asked.jobs
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def _list() -> None:
    width = max(map(len, scenario_names()))
    for name in scenario_names():
        typer.echo(f"{name.ljust(width)}  {variants(name)[0][1].text}")
    typer.echo("\nsteelyard sim SCENARIO...: run some of these, or files of your own", err=True)


def _show(name: str, results: list[Result], asked: Asked) -> list[Verdict]:
    """Print one scenario's tables; those of its gates that are not met."""
    scenario = variants(name)[0][1]
    mine = [result for result in results if result.scenario == scenario.name]
    table = Table(mine)
    verdicts = judge(scenario, mine)
    if asked.json_path != "-":
        typer.echo(f"\n{scenario.name}: {scenario.text}")
        for variant in table.variants():
            about = ", ".join(f"{key} {value}" for key, value in variant.items())
            typer.echo(f"\n{about}" if about else "")
            typer.echo(plain(*rows(table, variant, as_differences=asked.shows_differences)))
        if verdicts:
            typer.echo("")
            typer.echo(plain(*gate_rows(scenario, verdicts)))
    return [verdict for verdict in verdicts if not verdict.is_met]


def _write_json(path: str, results: list[Result]) -> None:
    document = [
        {
            "scenario": result.scenario,
            "variant": dict(result.variant),
            "policy": result.policy,
            "seed": result.seed,
            "calls": result.calls,
            "calls_per_s": round(result.calls_per_s),
            "metrics": {name: rounded(value) for name, value in result.metrics.items()},
        }
        for result in results
    ]
    text = json.dumps(document, indent=1)
    if path == "-":
        typer.echo(text)
    else:
        Path(path).write_text(text + "\n", encoding="utf-8")


def _report(asked: Asked) -> None:
    assert asked.report is not None
    folder = Path(asked.report)
    if not folder.is_dir():
        raise usage(f"--report takes the folder of results.md, and {folder} is none")
    names = tuple(asked.scenarios)
    regenerate(
        folder,
        names=names,
        policies=_policies(asked),
        seeds=asked.seeds,
        processes=_processes(asked),
        on_step=_progress,
        on_kept=_kept,
    )
    _progress_ends()


def _kept(count: int) -> None:
    if count:
        typer.echo(f"{count} runs of a report that was stopped are kept, since nothing has changed", err=True)


def _progress(step: Step) -> None:
    result = step.result
    about = " ".join([result.scenario, *(f"{key}={value}" for key, value in result.variant.items()), result.policy])
    left = f", {in_words(step.left_s)} left" if step.done < step.total else ""
    line = f"{step.done} of {step.total}{left}: {about}, seed {result.seed} ({result.calls_per_s:,.0f} calls/s)"
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line[:110]}")
        sys.stderr.flush()
    elif step.done == step.total or step.done % 50 == 0:
        typer.echo(line, err=True)


def _progress_ends() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
