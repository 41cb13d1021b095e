"""``--report``: all shipped scenarios, and the two committed files made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .ledger import page, read, written
from .progress import Step, progress
from .reading import scenario_names, variants
from .run import Job, Result, plan, run_all
from .unfinished import Unfinished

CSV, PAGE, NOTES = "results.csv", "results.md", "results-notes.md"


def notes_in(folder: Path) -> dict[str, str]:
    """What people have to say about scenarios: sections of ``results-notes.md``, by the heading's name. Kept apart,
    so that a regenerated page loses nothing."""
    path = folder / NOTES
    if not path.is_file():
        return {}
    sections = path.read_text(encoding="utf-8").split("\n## ")[1:]
    return {head.strip(): text.strip() for head, _, text in (section.partition("\n") for section in sections)}


def regenerate(
    folder: Path,
    *,
    names: tuple[str, ...] = (),
    policies: tuple[str, ...] = ("all",),
    seeds: int = 8,
    processes: int = 1,
    on_step: Callable[[Step], None] = lambda step: None,
    on_kept: Callable[[int], None] = lambda count: None,
) -> None:
    """Run *names* [all] with *policies* [all] and rewrite the files in *folder*. Lines of other scenarios, and of other
    policies in these, stay as they are: after a change of one law, only its own lines are made anew.

    Runs are kept as they come, and one that was stopped goes on where it was, if nothing has changed since
    (``unfinished``): ``on_kept`` is told how many need not be run again, ``on_step`` of each that was."""
    chosen = names or scenario_names()
    jobs: list[Job] = plan(chosen, policies, seeds)
    unfinished = Unfinished(folder)
    found = [(job, unfinished.of(job)) for job in jobs]
    results = [result for _, result in found if result is not None]
    open_jobs = [job for job, result in found if result is None]
    on_kept(len(results))
    for job, step in zip(open_jobs, progress(open_jobs, run_all(open_jobs, processes=processes)), strict=True):
        unfinished.keep(job, step.result)
        results.append(step.result)
        on_step(step)
    path = folder / CSV
    replaced = {(job.scenario.name, job.contender.name) for job in jobs}
    is_partial = bool(names) or policies != ("all",)
    before = read(path) if is_partial and path.is_file() else []
    kept = [result for result in before if (result.scenario, result.policy) not in replaced]
    _replace(path, written(_in_order([*kept, *results])))
    rewrite(folder)
    unfinished.finished(jobs)


def _in_order(results: list[Result]) -> list[Result]:
    """By scenario, variant (in the file's order), policy and seed, whenever and in whatever parts they were run."""
    places = {
        (name, str(dict(variant))): place
        for name in dict.fromkeys(result.scenario for result in results)
        for place, (variant, _) in enumerate(variants(name))
    }
    return sorted(
        results,
        key=lambda one: (one.scenario, places.get((one.scenario, str(dict(one.variant))), -1), one.policy, one.seed),
    )


def rewrite(folder: Path) -> None:
    """The page anew, from the numbers that are there."""
    _replace(folder / PAGE, page(read(folder / CSV), notes_in(folder)))


def _replace(path: Path, text: str) -> None:
    """All of it or, on a full disk or when killed, nothing: what was there has the numbers of other scenarios."""
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
