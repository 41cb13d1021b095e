"""The gates of the scenarios, at few seeds: what ``docs/results.md`` shows in full.

Gates that are known not to be met carry their reason in the scenario file (``unmet``); they are measured and shown all
the same. The normal run takes the scenarios that cost seconds; ``--slow`` takes all.
"""

from __future__ import annotations

import pytest

from steelyard.balance import policy_names
from steelyard.sim import judge, plan, run, scenario_names, variants

QUICK = ("cold-node", "flapping", "hot-key", "outage-and-return", "pause", "promotion-spike", "slow-pair")


def unexpected(name: str, seeds: int) -> list[str]:
    """Gates of *name* that are not met and not said to be so."""
    scenario = variants(name)[0][1]
    rivals = dict.fromkeys(gate.of for gate in scenario.gates if gate.of is not None)
    results = [run(job) for job in plan([name], ["dual", *rivals], seeds)]
    return [
        f"{name} {dict(verdict.variant)}: {verdict.gate.name}: {verdict.measured}"
        for verdict in judge(scenario, results)
        if not verdict.is_met and not verdict.gate.unmet
    ]


@pytest.mark.parametrize("name", QUICK)
def test_gates_that_cost_seconds(name: str) -> None:
    assert not unexpected(name, 2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [name for name in scenario_names() if name not in QUICK])
def test_gates_that_cost_minutes(name: str) -> None:
    assert not unexpected(name, 2)


@pytest.mark.parametrize("name", scenario_names())
def test_every_named_policy_exists(name: str) -> None:
    scenario = variants(name)[0][1]
    named = {gate.policy for gate in scenario.gates} | {gate.of for gate in scenario.gates if gate.of}
    named |= {text.partition(":")[0] for text in scenario.policies}
    assert named <= set(policy_names())
    if scenario.policies:
        assert {gate.of for gate in scenario.gates if gate.of} <= set(scenario.policies)
