"""``--report``: all shipped scenarios, and the two committed files made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .ledger import page, read, written
from .reading import scenario_names, variants
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
    """Run *names* [all] with *policies* [all] and rewrite the files in *folder*. Lines of other scenarios, and of other
    policies in these, stay as they are: after a change of one law, only its own lines are made anew."""
    chosen = names or scenario_names()
    jobs: list[Job] = plan(chosen, policies, seeds)
    results: list[Result] = []
    for result in run_all(jobs, processes=processes):
        results.append(result)
        on_result(result, len(results), len(jobs))
    path = folder / CSV
    replaced = {(job.scenario.name, job.contender.name) for job in jobs}
    is_partial = bool(names) or policies != ("all",)
    before = read(path) if is_partial and path.is_file() else []
    kept = [result for result in before if (result.scenario, result.policy) not in replaced]
    path.write_text(written(_in_order([*kept, *results])), encoding="utf-8")
    rewrite(folder)


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
    (folder / PAGE).write_text(page(read(folder / CSV), notes_in(folder)), encoding="utf-8")
