"""The committed results are reproduced: the page from its numbers, and some of its numbers from nothing.

A failure after a change of a law is the point of it: look at the new numbers, then ``./dev sim SCENARIO --report``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard.sim import Result, notes_in, page, plan, read_ledger, rounded, run, scenario_names, variants

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = read_ledger(DOCS / "results.csv")

# Scenario -> its first variant is run anew with these policies. Together some ten seconds.
SUBSET = {
    "sinkhole": ("dual", "random", "p2c", "prequal", "weighted_round_robin", "peak_ewma"),
    "pause": ("dual", "least_active", "round_robin"),
    "reports": ("dual", "ralb", "adaptive"),
    "outage-and-return": ("dual", "available"),
    "cold-node": ("dual", "shortest_response"),
    "hot-key": ("dual", "consistent_hash", "bounded_hash"),
}


def test_the_page_is_made_of_the_numbers() -> None:
    assert (DOCS / "results.md").read_text(encoding="utf-8") == page(RESULTS, notes_in(DOCS))


def test_every_scenario_and_variant_has_its_numbers() -> None:
    there = {(result.scenario, str(dict(result.variant))) for result in RESULTS}
    wanted = {(name, str(dict(variant))) for name in scenario_names() for variant, _ in variants(name)}
    assert there == wanted


@pytest.mark.parametrize(
    ("name", "policy"), [(name, policy) for name, policies in SUBSET.items() for policy in policies]
)
def test_numbers_are_reproduced(name: str, policy: str) -> None:
    again = run(plan([name], [policy], 1)[0])
    [committed] = [result for result in RESULTS if _key(result) == _key(again)]
    assert {metric: rounded(value) for metric, value in again.metrics.items()} == committed.metrics


def _key(result: Result) -> tuple[str, str, str, int]:
    return (result.scenario, str(dict(result.variant)), result.policy, result.seed)
