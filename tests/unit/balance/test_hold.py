"""Diversion that is held gives the healthy air, and sends nothing to the dead."""

from __future__ import annotations

import random

import pytest
from support.fleet import node

from steelyard.balance import Candidate, make_policy
from steelyard.balance.dual.policy import Dual
from steelyard.model import Outcome

SICK = "test.Fleet@n0:1"


def shed_one(success: float) -> tuple[Dual, random.Random, float]:
    """A policy over eight nodes, of which the first succeeds with *success* for ten seconds."""
    policy, dice, now_s = make_policy("dual"), random.Random(1), 0.0
    assert isinstance(policy, Dual)
    policy.set_nodes([node(f"n{at}") for at in range(8)], now_s)
    for _ in range(10):
        now_s = second(policy, dice, now_s, success)
    return policy, dice, now_s


def second(policy: Dual, dice: random.Random, now_s: float, success: float) -> float:
    for _ in range(200):
        now_s += 1 / 200
        candidate = policy.pick(now_s, dice.random)
        assert isinstance(candidate, Candidate)
        policy.started(candidate, now_s)
        is_ok = candidate.node.host != "n0" or dice.random() < success
        policy.ended(candidate, Outcome.OK if is_ok else Outcome.FAILED, now_s, latency_s=0.001)
    policy.tick(now_s)
    return now_s


def share(policy: Dual, now_s: float) -> float:
    return next(found.share for found in policy.statistics(now_s).nodes if found.node.host == "n0")


def test_a_node_that_mostly_succeeds_gets_some_of_its_share_back() -> None:
    policy, dice, now_s = shed_one(0.8)
    before = share(policy, now_s)
    policy.hold_diversion(0.5)
    now_s = second(policy, dice, now_s, 0.8)
    during = share(policy, now_s)
    assert during > 1.2 * before
    for _ in range(5):
        now_s = second(policy, dice, now_s, 0.8)
        assert share(policy, now_s) >= during - 1e-9  # frozen: no further cut
    policy.hold_diversion(None)
    for _ in range(3):
        now_s = second(policy, dice, now_s, 0.8)
    assert share(policy, now_s) < during


@pytest.mark.parametrize("success", [0.0, 0.3])
def test_a_node_that_mostly_fails_gets_nothing(success: float) -> None:
    policy, dice, now_s = shed_one(success)
    before = share(policy, now_s)
    policy.hold_diversion(0.5)
    for _ in range(5):
        now_s = second(policy, dice, now_s, success)
    assert share(policy, now_s) <= before * 1.05


def test_holding_changes_nothing_where_nothing_is_diverted() -> None:
    policy, dice, now_s = shed_one(1.0)
    policy.hold_diversion(0.5)
    now_s = second(policy, dice, now_s, 1.0)
    assert share(policy, now_s) == pytest.approx(1 / 8)
