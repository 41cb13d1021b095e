"""The ledger: every run's numbers in one text file, and the page that is made of it.

``docs/results.csv`` has a line per scenario, variant, policy and seed; ``docs/results.md`` is a function of it. A
change of a law then shows as a diff of numbers, and a test can run any line anew and compare. Numbers are kept to five
significant digits: enough for every table, and fewer than where two C libraries' ``exp`` part.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path

from steelyard.errors import ConfigError

from .compare import Table, Verdict, judge
from .measure import METRICS
from .reading import variants
from .run import Result
from .scenario import Scenario
from .table import bound_of, describe, gate_rows, markdown, rows, told

_HEAD = ("scenario", "variant", "policy", "seed", "calls")


def rounded(value: float) -> float:
    """Five significant digits."""
    return float(f"{value:.5g}")


def written(results: Iterable[Result]) -> str:
    """The CSV text."""
    out = StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow([*_HEAD, *METRICS])
    for result in results:
        numbers = (result.metrics.get(name) for name in METRICS)
        texts = ("" if number is None else f"{rounded(number):g}" for number in numbers)
        variant = json.dumps(dict(result.variant)) if result.variant else ""
        lines.writerow([result.scenario, variant, result.policy, result.seed, result.calls, *texts])
    return out.getvalue()


def read(path: Path) -> list[Result]:
    """The results that ``written`` wrote. Raises ConfigError when they are of another version's metrics."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = csv.DictReader(file)
        if tuple(lines.fieldnames or ()) != (*_HEAD, *METRICS):
            raise ConfigError(f"{path.name} was written with other metrics than this version's; run ./dev sim --report")
        return [_result(line) for line in lines]


def _result(line: Mapping[str, str]) -> Result:
    return Result(
        scenario=line["scenario"],
        variant=json.loads(line["variant"]) if line["variant"] else {},
        policy=line["policy"],
        seed=int(line["seed"]),
        calls=int(line["calls"]),
        metrics={name: float(line[name]) for name in METRICS if line[name] != ""},
    )


def page(results: Sequence[Result], notes: Mapping[str, str]) -> str:
    """docs/results.md. *notes* maps a scenario to what is to be said about it below its gates."""
    parts = [_INTRODUCTION.format(seeds=_seeds(results)), _summary(results)]
    for name in dict.fromkeys(result.scenario for result in results):
        scenario = variants(name)[0][1]
        mine = [result for result in results if result.scenario == name]
        parts.append(_section(scenario, mine, notes.get(name, "")))
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _seeds(results: Sequence[Result]) -> str:
    """How many seeds the scenarios were run with: "8", or "2 to 8"."""
    by_scenario: dict[str, set[int]] = {}
    for result in results:
        by_scenario.setdefault(result.scenario, set()).add(result.seed)
    counts = sorted({len(seeds) for seeds in by_scenario.values()})
    return " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))


def _summary(results: Sequence[Result]) -> str:
    body = []
    for name in dict.fromkeys(result.scenario for result in results):
        scenario = variants(name)[0][1]
        _, gates = gate_rows(scenario, judge(scenario, [result for result in results if result.scenario == name]))
        body += [[f"[{name}](#{name})", *row] for row in gates]
    headings = ["scenario", "gate", "bound", "measured", "worst in", "verdict"]
    return f"## Gates\n\n{markdown(headings, body)}"


def _section(scenario: Scenario, results: Sequence[Result], note: str) -> str:
    table = Table(results)
    parts = [f"## {scenario.name}", scenario.text]
    for variant in table.variants():
        headings, body = rows(table, variant)
        if variant:
            parts.append(f"**{describe(variant)}**")
        parts.append(markdown(headings, body))
    parts += _unmet(scenario, judge(scenario, results))
    parts.append(note)
    return "\n\n".join(part for part in parts if part)


def _unmet(scenario: Scenario, verdicts: Sequence[Verdict]) -> list[str]:
    """A line per gate that is not met somewhere: where, by how much, and why as far as it is known."""
    lines = []
    for gate in scenario.gates:
        missed = [verdict for verdict in verdicts if verdict.gate == gate and not verdict.is_met]
        if missed:
            where = "; ".join(": ".join(filter(None, (describe(one.variant), told(one.measured)))) for one in missed)
            why = f". {gate.unmet}." if gate.unmet else ""
            lines.append(f"Not met: {gate.name} ({bound_of(missed[0])}): {where}{why}")
    return lines


_INTRODUCTION = """
# Results

Policies side by side in virtual time: every number of this page is made by `./dev sim --report`, from the scenario
files in `tests/sim/scenarios` and {seeds} seeds each. All policies of a row see the same calls, with the same work,
from the same consumers. The numbers of each single run are in [results.csv](results.csv); a test runs some of them anew
and fails when they are not reproduced.

How to read a table: numbers are means over seeds. The sign behind a number compares it with `dual` on the same seeds:
`+` better, `-` worse, `=` a tie (the 95 % interval of the paired differences holds 0). Latencies are what the
caller sees, with retries and expired deadlines. Load is utilization, 1 being all that was allotted to a node. "Bad"
nodes are those with a fault, or those the scenario watches.
"""
