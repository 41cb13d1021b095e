"""``--report``: all shipped scenarios, and the two committed files made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .ledger import page, read, written
from .reading import scenario_names
from .run import Job, Result, plan, run_all

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
    on_result: Callable[[Result, int, int], None] = lambda result, done, total: None,
) -> None:
    """Run *names* [all] and rewrite the files in *folder*. With some names only, the others' lines stay as they are."""
    chosen = names or scenario_names()
    jobs: list[Job] = plan(chosen, policies, seeds)
    results: list[Result] = []
    for result in run_all(jobs, processes=processes):
        results.append(result)
        on_result(result, len(results), len(jobs))
    path = folder / CSV
    replaced = {job.scenario.name for job in jobs}
    kept = [result for result in read(path) if result.scenario not in replaced] if names and path.is_file() else []
    in_order = sorted([*kept, *results], key=lambda result: result.scenario)  # stable: runs keep their order
    path.write_text(written(in_order), encoding="utf-8")
    rewrite(folder)


def rewrite(folder: Path) -> None:
    """The page anew, from the numbers that are there."""
    (folder / PAGE).write_text(page(read(folder / CSV), notes_in(folder)), encoding="utf-8")
