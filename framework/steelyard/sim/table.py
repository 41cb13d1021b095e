"""Tables: the same rows for a terminal and for docs/results.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .compare import Difference, Table, Verdict
from .scenario import Scenario

REFERENCE = "dual"


@dataclass(frozen=True, slots=True)
class Column:
    """A metric in a table: its heading, how it is printed, and which direction is better (0: neither)."""

    metric: str
    heading: str
    form: str
    better: int


COLUMNS = (
    Column("success", "success %", "{:.3%}", 1),
    Column("degraded", "degraded %", "{:.2%}", 0),
    Column("p50_ms", "p50 ms", "{:.0f}", -1),
    Column("p99_ms", "p99 ms", "{:.0f}", -1),
    Column("p999_ms", "p99.9 ms", "{:.0f}", -1),
    Column("load_mean", "load mean", "{:.3f}", 0),
    Column("load_std", "load std", "{:.4f}", -1),
    Column("load_max", "load max", "{:.3f}", -1),
    Column("miss", "miss %", "{:.2%}", -1),
    Column("moved", "moved %", "{:.2%}", -1),
    Column("bad_share", "bad share %", "{:.2%}", -1),
    Column("converge_s", "settles s", "{:.1f}", -1),
    Column("sustainable", "sustainable", "{:.3f}", 1),
    Column("saturation_load", "at saturation", "{:.3f}", 1),
)


def rows(
    table: Table, variant: Mapping[str, Any], *, as_differences: bool = False
) -> tuple[list[str], list[list[str]]]:
    """(headings, one row per policy). A number is followed by how it compares with the reference policy's on the same
    seeds: ``+`` better, ``-`` worse, ``=`` a tie within the noise; nothing with a single seed. *as_differences*: every
    number but the reference policy's own is the paired difference to it, with its 95 % interval."""
    columns = [column for column in COLUMNS if _is_told(table, variant, column)]
    headings = ["policy", *(column.heading for column in columns)]
    return headings, [
        [policy, *(cell(table, variant, policy, column, as_difference=as_differences) for column in columns)]
        for policy in table.policies()
        if any(table.values(variant, policy, column.metric) for column in columns)
    ]


def _is_told(table: Table, variant: Mapping[str, Any], column: Column) -> bool:
    """Whether any policy has this number, and it is not 0 for all of them."""
    return any(table.mean(variant, policy, column.metric) for policy in table.policies())


def cell(table: Table, variant: Mapping[str, Any], policy: str, column: Column, *, as_difference: bool = False) -> str:
    mean = table.mean(variant, policy, column.metric)
    if mean is None:
        return ""
    text = column.form.format(mean).rstrip("%")
    if policy == REFERENCE or not (column.better or as_difference):
        return text
    difference = table.difference(variant, policy, REFERENCE, column.metric)
    if as_difference and difference is not None:
        text = _signed(column, difference)
    if difference is None or difference.half_width == float("inf") or not column.better:
        return text
    if difference.is_tie:
        return f"{text} ="
    return f"{text} {'+' if difference.mean * column.better > 0 else '-'}"


def _signed(column: Column, difference: Difference) -> str:
    mean = column.form.format(abs(difference.mean)).rstrip("%")
    text = f"{'-' if difference.mean < 0 else '+'}{mean}"
    if difference.half_width == float("inf"):
        return text
    return f"{text} ±{column.form.format(difference.half_width).rstrip('%')}"


def markdown(headings: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(headings)} |", f"|{'|'.join(['---', *['---:'] * (len(headings) - 1)])}|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in body)])


def plain(headings: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Aligned columns; the first to the left, numbers to the right."""
    widths = [max(len(row[at]) for row in [headings, *body]) for at in range(len(headings))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if at == 0 else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [headings, *body]
    )


def describe(variant: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in variant.items())


def bound_of(verdict: Verdict) -> str:
    gate = verdict.gate
    bound = f"<= {gate.at_most:g}" if gate.at_most is not None else f">= {gate.at_least:g}"
    if gate.beside:
        return f"over {describe(gate.beside)} {bound}"
    if gate.of is None:
        return bound
    return f"{'minus' if gate.minus else 'over'} {gate.of} {bound}{' or a tie' if gate.or_tie else ''}"


def gate_rows(scenario: Scenario, verdicts: Sequence[Verdict]) -> tuple[list[str], list[list[str]]]:
    """One row per gate: its worst variant, and how many of its variants meet it."""
    body = []
    for gate in scenario.gates:
        mine = [verdict for verdict in verdicts if verdict.gate == gate]
        if not mine:
            continue
        worst = worst_of(mine)
        met = sum(verdict.is_met for verdict in mine)
        measured = told(worst.measured)
        verdict = "met" if met == len(mine) else "NOT MET"
        count = f" ({met} of {len(mine)})" if len(mine) > 1 else ""
        body.append([gate.name, bound_of(worst), measured, describe(worst.variant), verdict + count])
    return ["gate", "bound", "measured", "in", "verdict"], body


def told(measured: float | None) -> str:
    return "not run" if measured is None else f"{measured:.4g}"


def worst_of(verdicts: Sequence[Verdict]) -> Verdict:
    """The one that is farthest on the wrong side."""
    gate = verdicts[0].gate

    def badness(verdict: Verdict) -> tuple[bool, float]:
        if verdict.measured is None:
            return True, float("inf")
        return not verdict.is_met, verdict.measured if gate.at_most is not None else -verdict.measured

    return max(verdicts, key=badness)
