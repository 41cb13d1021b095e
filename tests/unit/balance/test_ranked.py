"""Keeping nodes by cost picks what asking each of them at each call would pick, to the last draw."""

from __future__ import annotations

import random
from collections import deque

import pytest
from support.fleet import node

from steelyard.balance import Candidate, Dice, make_policy
from steelyard.balance.classical.meters import InFlight, Meter, ResponseTime, ShortestResponseSettings
from steelyard.balance.classical.ranked import Ranked
from steelyard.balance.classical.trace import Traced
from steelyard.balance.draw import DrawTable
from steelyard.model import Outcome


def asked_of_each(
    members: list[Traced], meter: Meter, now_s: float, dice: Dice, excluded: tuple[str, ...]
) -> Traced | None:
    best: list[Traced] = []
    smallest = float("inf")
    for member in members:
        if member.identity in excluded:
            continue
        cost = meter.cost(member, now_s)
        if cost < smallest:
            smallest, best = cost, [member]
        elif cost == smallest:
            best.append(member)
    if len(best) < 2:
        return best[0] if best else None
    return best[DrawTable(member.weight for member in best).draw(dice)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("name", "meter"),
    [("least_active", InFlight()), ("shortest_response", ResponseTime(ShortestResponseSettings(slide_s=1.0)))],
)
def test_the_same_picks_and_draws(name: str, meter: Meter, seed: int) -> None:
    chance = random.Random(seed)
    settings = {"slide_s": 1.0} if name == "shortest_response" else {}
    policy = make_policy(name, **settings)
    weights = [100] if seed % 2 else [0, 50, 100, 150]
    fleet = [node(f"n{at}", weight=chance.choice(weights)) for at in range(9)]
    kept, naive = random.Random(seed), random.Random(seed)
    open_calls: deque[tuple[Candidate, float]] = deque()
    now_s = 0.0
    for number in range(3000):
        now_s += chance.choice((0.0, 0.001, 0.01, 0.3 if number % 40 == 0 else 0.0))
        if number % 200 == 0:
            there = [one for one in fleet if chance.random() < 0.8]
            policy.set_nodes(there, now_s)
        excluded = tuple(one.identity for one in chance.sample(fleet, chance.choice((0, 0, 0, 2, 9))))
        expected = asked_of_each(policy.eligible, meter, now_s, naive.random, excluded)  # type: ignore[attr-defined]
        picked = policy.pick(now_s, kept.random, None, excluded)
        assert picked is expected
        assert kept.getstate() == naive.getstate()
        if picked is not None:
            policy.started(picked, now_s)
            open_calls.append((picked, now_s))
        while len(open_calls) > chance.choice((2, 10, 30)):
            ended, began_s = open_calls.popleft()
            outcome = chance.choice((Outcome.OK, Outcome.OK, Outcome.FAILED, Outcome.IGNORED))
            policy.ended(ended, outcome, now_s, latency_s=now_s - began_s)


def test_a_cost_whose_time_is_over_is_asked_for_again() -> None:
    policy = make_policy("shortest_response", slide_s=10.0)
    policy.set_nodes([node("slow"), node("quick")], 0.0)
    dice = random.Random(1).random
    for host, latency_s in (("slow", 1.0), ("quick", 0.1)):
        one = policy.candidates[f"test.Fleet@{host}:1"]  # type: ignore[attr-defined]
        policy.started(one, 1.0)
        policy.ended(one, Outcome.OK, 2.0, latency_s=latency_s)
    assert {policy.pick(9.9, dice).node.host for _ in range(50)} == {"quick"}  # type: ignore[union-attr]
    assert {policy.pick(10.1, dice).node.host for _ in range(50)} == {"slow", "quick"}  # type: ignore[union-attr]


def test_one_whose_time_is_over_is_no_reason_to_ask_all() -> None:
    """Where many nodes are called seldom, the time of one is over at each call."""
    asked = 0

    class Asked(ResponseTime):
        def cost(self, candidate: Traced, now_s: float) -> float:
            nonlocal asked
            asked += 1
            return super().cost(candidate, now_s)

    policy = Ranked("asked", Asked(ShortestResponseSettings(slide_s=10.0)))
    policy.set_nodes([node(f"n{at}") for at in range(200)], 0.0)
    dice, calls = random.Random(1).random, 2000
    for number in range(calls):
        now_s = number / 20.0
        picked = policy.pick(now_s, dice)
        assert picked is not None
        policy.started(picked, now_s)
        policy.ended(picked, Outcome.OK, now_s, latency_s=0.01 + dice() / 100)
    assert asked < 5 * calls
