"""The memory of a pick: whose news is used, whose is not, and for how long."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from support.fleet import node

from steelyard.balance.dual import Dual, DualSettings
from steelyard.balance.dual.member import Member
from steelyard.model import Outcome
from steelyard_registry.node import Node

NODES = [node(f"n{at:02}") for at in range(16)]


def busy(count: int = 16, **settings: object) -> Dual:
    """All nodes have told of ten calls."""
    policy = Dual(DualSettings(**settings))  # type: ignore[arg-type]
    policy.set_nodes([*NODES, *(node(f"m{at}") for at in range(count - 16))] if count > 16 else NODES[:count], 0.0)
    for member in policy.eligible:
        answer(policy, member, 0.0, 10)
    return policy


def answer(policy: Dual, member: Member, now_s: float, told: int, outcome: Outcome = Outcome.OK) -> None:
    policy.started(member, now_s)
    policy.ended(member, outcome, now_s, latency_s=0.01, in_flight=told)


def part(policy: Dual, member: Member, now_s: float, excluded: tuple[str, ...] = ()) -> float:
    dice = random.Random(1).random
    return sum(policy.pick(now_s, dice, None, excluded) is member for _ in range(400)) / 400


def test_a_node_that_has_just_told_of_a_shorter_queue_is_one_of_the_choices_for_a_second() -> None:
    policy = busy()
    member = policy.eligible[3]
    answer(policy, member, 0.1, 2)
    assert part(policy, member, 0.2) == 1.0
    answer(policy, policy.eligible[4], 0.3, 9)
    assert part(policy, member, 0.4) == 1.0  # no better news
    answer(policy, policy.eligible[5], 0.5, 1)
    assert part(policy, policy.eligible[5], 0.6) == 1.0
    answer(policy, policy.eligible[6], 1.7, 9)
    assert part(policy, policy.eligible[5], 1.8) < 0.5  # its news is old: only draws find it now


def test_each_call_sent_there_makes_it_less_of_a_choice() -> None:
    policy = busy()
    dice = random.Random(1).random
    answer(policy, policy.eligible[3], 0.1, 5)
    picks = []
    for _ in range(40):
        member = policy.pick(0.2, dice)
        assert member is not None
        policy.started(member, 0.2)
        picks.append(member is policy.eligible[3])
    assert all(picks[:5])
    assert sum(picks) < 12


def test_idle_nodes_are_not_preferred_for_the_news_nor_empty_ones_with_a_small_share() -> None:
    policy = busy()
    for member in policy.eligible:
        answer(policy, member, 0.1, 0)
    assert part(policy, policy.eligible[15], 0.2) < 0.15
    policy = busy()
    small = policy.eligible[3]
    small.log_w = -3.5
    policy._is_stale = True
    policy.tick(0.5)
    answer(policy, small, 0.6, 0)
    assert part(policy, small, 0.7) < 0.1


def test_one_that_fails_is_excluded_drains_or_has_left_is_not_used() -> None:
    policy = busy()
    member = policy.eligible[3]
    answer(policy, member, 0.1, 0)
    assert part(policy, member, 0.2, (member.identity,)) == 0.0
    assert part(policy, member, 0.2, (policy.eligible[4].identity,)) == 1.0
    member.passes = 0.25
    assert 0.1 < part(policy, member, 0.2) < 0.5
    member.passes = 1.0
    policy.set_nodes([one for one in NODES if one.identity != member.identity], 0.3)
    assert part(policy, member, 0.3) == 0.0

    policy = busy()
    member = policy.eligible[3]
    answer(policy, member, 0.1, 1, Outcome.FAILED)
    answer(policy, member, 0.2, 1)
    assert part(policy, member, 0.3) < 0.5  # found by draws only


def test_small_fleets_and_the_published_law_have_no_memory() -> None:
    for policy in (busy(8), busy(law="ratio")):
        member = policy.eligible[3]
        answer(policy, member, 0.1, 2)
        assert part(policy, member, 0.2) < 0.5


@given(st.lists(st.tuples(st.integers(0, 23), st.sampled_from(["ok", "failed", "leave", "join", "pick", "tick"]))))
def test_whatever_happens_a_pick_is_a_member_that_is_not_excluded(steps: list[tuple[int, str]]) -> None:
    every = [node(f"n{at:02}") for at in range(24)]
    policy = Dual(DualSettings())
    here: dict[str, Node] = {one.identity: one for one in every[:16]}
    policy.set_nodes(list(here.values()), 0.0)
    dice = random.Random(1).random
    now_s = 0.0
    for at, what in steps:
        now_s += 0.1
        one = every[at]
        member = policy.candidates.get(one.identity)
        if what in ("ok", "failed") and member is not None:
            answer(policy, member, now_s, at % 4, Outcome.OK if what == "ok" else Outcome.FAILED)
        elif what in ("leave", "join"):
            here.pop(one.identity, None) if what == "leave" else here.setdefault(one.identity, one)
            policy.set_nodes(list(here.values()), now_s)
        elif what == "tick":
            policy.tick(now_s)
        found = policy.pick(now_s, dice, None, (one.identity,) if what == "pick" else ())
        assert found is None or found.identity in here
        assert what != "pick" or found is None or found.identity != one.identity
        assert found is not None or len(here) <= 1


def test_who_hears_of_every_node_all_the_time_needs_no_memory() -> None:
    policy = busy()
    for turn in range(1, 41):  # four replies of each node a second, for ten seconds
        now_s = turn * 0.25
        for member in policy.eligible:
            answer(policy, member, now_s, 10)
        policy.tick(now_s)
    member = policy.eligible[3]
    answer(policy, member, 10.1, 9)
    assert part(policy, member, 10.2) < 0.5  # four draws of sixteen find it
    policy.tick(20.5)  # and when the calls have become few, it begins anew
    assert part(policy, member, 20.6) < 0.5
    answer(policy, policy.eligible[4], 20.7, 2)
    assert part(policy, policy.eligible[4], 20.8) == 1.0
