"""Paired comparison over seeds, and gates.

Every seed gives one difference between two policies on the same calls. Their mean over its standard error is Student's
t; where the 95 % interval holds 0, the two are a *tie*, and the tables say so instead of printing a winner by luck.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any

from .run import Result
from .scenario import Gate, Scenario

# Student's t, two-sided 95 %, by degrees of freedom; beyond the table, the normal's.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
# Smaller than anybody cares about, and the size of differences in how a library rounds.
_NOTHING = 1e-9
_KNOWN_WITHIN = 0.25

Key = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """``mean`` of (one - other) over seeds, and half of its 95 % interval. With one seed the interval is unknown, and
    nothing is called a difference."""

    mean: float
    half_width: float

    @property
    def is_tie(self) -> bool:
        return not abs(self.mean) > max(self.half_width, _NOTHING)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A gate on one variant: the measured number, its bound, and whether it is met. ``measured`` None: the runs have no
    such number (the policy or metric was not run)."""

    gate: Gate
    variant: Mapping[str, Any]
    measured: float | None
    is_met: bool


class Table:
    """Results by variant and policy, seeds in order."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._by_key: dict[tuple[Key, str], list[Result]] = {}
        self._variants: list[Mapping[str, Any]] = []
        for result in results:
            self._variants.append(result.variant)
            self._by_key.setdefault((_key(result.variant), result.policy), []).append(result)

    def variants(self) -> list[Mapping[str, Any]]:
        return list({_key(one): one for one in self._variants}.values())

    def policies(self) -> list[str]:
        return list(dict.fromkeys(policy for _, policy in self._by_key))

    def values(self, variant: Mapping[str, Any], policy: str, metric: str) -> dict[int, float]:
        """Seed -> value, for the seeds that have it."""
        results = self._by_key.get((_key(variant), policy), [])
        return {result.seed: result.metrics[metric] for result in results if metric in result.metrics}

    def mean(self, variant: Mapping[str, Any], policy: str, metric: str) -> float | None:
        values = list(self.values(variant, policy, metric).values())
        return fsum(values) / len(values) if values else None

    def difference(self, variant: Mapping[str, Any], one: str, other: str, metric: str) -> Difference | None:
        """*one* minus *other*, paired by seed."""
        ones, others = self.values(variant, one, metric), self.values(variant, other, metric)
        return paired([ones[seed] - others[seed] for seed in ones if seed in others])


def paired(differences: Sequence[float]) -> Difference | None:
    """The mean of paired differences with its interval; None without any."""
    count = len(differences)
    if not count:
        return None
    mean = fsum(differences) / count
    if count == 1:
        return Difference(mean, float("inf"))
    variance = fsum((value - mean) ** 2 for value in differences) / (count - 1)
    t = _T95[count - 2] if count - 2 < len(_T95) else 1.96
    return Difference(mean, t * sqrt(variance / count))


def judge(scenario: Scenario, results: Iterable[Result]) -> list[Verdict]:
    """Every gate on every variant that it speaks of. Means over seeds are compared with the bound; for a gate beside
    another policy "no worse" allows for a tie."""
    table = Table(results)
    return [
        _verdict(gate, variant, table)
        for gate in scenario.gates
        for variant in table.variants()
        if all(variant.get(name) in values for name, values in gate.only.items())
    ]


def _verdict(gate: Gate, variant: Mapping[str, Any], table: Table) -> Verdict:
    measured = table.mean(variant, gate.policy, gate.metric)
    if gate.beside and measured is not None:
        other = table.mean({**variant, **gate.beside}, gate.policy, gate.metric)
        measured = None if other is None else measured / other if other else float("inf")
    if gate.of is not None and measured is not None:
        other = table.mean(variant, gate.of, gate.metric)
        if other is None:
            measured = None
        elif gate.minus:
            measured -= other
        else:
            measured = measured / other if other else float("inf") if measured else 1.0
    if measured is None:
        return Verdict(gate, variant, None, False)
    is_met = _is_within(gate, measured)
    if not is_met and gate.or_tie and gate.of is not None:
        difference = table.difference(variant, gate.policy, gate.of, gate.metric)
        level = table.mean(variant, gate.of, gate.metric)
        is_met = difference is not None and level is not None and difference.is_tie
        # With two seeds nearly everything is a tie: one that is not known to within a quarter excuses nothing.
        is_met = is_met and difference is not None and difference.half_width <= _KNOWN_WITHIN * abs(level or 0.0)
    return Verdict(gate, variant, measured, is_met)


def _is_within(gate: Gate, measured: float) -> bool:
    if gate.at_most is not None:
        return measured <= gate.at_most + _NOTHING
    assert gate.at_least is not None
    return measured >= gate.at_least - _NOTHING


def _key(variant: Mapping[str, Any]) -> Key:
    return tuple((name, str(value)) for name, value in variant.items())
