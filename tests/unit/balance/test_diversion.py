"""Least diversion: refusal is nested, the diverted part is the distance, a diverted key has a home."""

from __future__ import annotations

from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleet import node

from steelyard.balance import hash_key
from steelyard.balance.dual import Dual
from steelyard.balance.dual.member import Member
from steelyard.balance.dual.plan import Plan, make_plan
from steelyard.balance.dual.warm_up import apply_ramps
from steelyard.balance.ring import HashRing

KEYS = [hash_key(at) for at in range(3000)]
flows = st.lists(st.floats(0.02, 50), min_size=2, max_size=20)


def members(count: int) -> list[Member]:
    made = [Member(node(f"n{at}"), 0.0, is_warming=False) for at in range(count)]
    for place, member in enumerate(made):
        member.place = place
    return made


def plan_of(flow: list[float]) -> Plan:
    made = members(len(flow))
    ring = HashRing([member.identity for member in made], [100] * len(made))
    return make_plan(made, flow, ring=ring, weights=None)


def policy_of(flow: list[float]) -> Dual:
    """A policy whose plan follows from weights *flow*, as after a long run."""
    policy = Dual()
    policy.set_nodes([node(f"n{at}") for at in range(len(flow))], 0.0)
    policy.pick(0.0, lambda: 0.5, KEYS[0])
    for member, weight in zip(policy.eligible, flow, strict=True):
        member.log_w = log(weight)
    policy._replan(0.0)
    return policy


def target(policy: Dual, key: int) -> tuple[str, bool]:
    """Where the policy sends a key on an idle fleet, and whether that is away from home."""
    assert policy._ring is not None
    picked = policy.pick(0.0, lambda: 0.5, key)
    assert picked is not None
    return picked.identity, picked is not policy.eligible[policy._ring.owner(key)]


@settings(max_examples=50, deadline=None)
@given(flow=flows)
def test_the_diverted_fraction_is_the_distance_between_base_and_target(flow: list[float]) -> None:
    spread = plan_of(flow).keyed
    assert spread is not None
    shares = [base * ratio for base, ratio in zip(spread.base, spread.ratio, strict=True)]
    assert sum(shares) == pytest.approx(1.0)
    distance = sum(abs(share - base) for share, base in zip(shares, spread.base, strict=True)) / 2
    assert spread.diverted == pytest.approx(distance, abs=1e-9)
    accepted = sum(max(0.0, share - base) for share, base in zip(shares, spread.base, strict=True))
    assert accepted == pytest.approx(distance, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(count=st.integers(2, 8), low=st.floats(0.05, 0.9), step=st.floats(0.05, 1.0))
def test_raising_the_ratio_only_adds_keys(count: int, low: float, step: float) -> None:
    rest = [1.0] * (count - 1)
    more, fewer = policy_of([low * (1 - step / 2), *rest]), policy_of([low, *rest])
    refused_more = {key for key in KEYS if target(more, key)[1]}
    refused_fewer = {key for key in KEYS if target(fewer, key)[1]}
    assert refused_fewer <= refused_more


@pytest.mark.parametrize(
    ("count", "takers"),
    [(4, 2), (40, 13), (80, 8)],  # a list for rendezvous, one that is sampled on the ring, one with a ring of its own
)
def test_calls_arrive_in_the_planned_shares(count: int, takers: int) -> None:
    policy = policy_of([0.3 * (1 + at % 2) if at < count - takers else 0.9 + 0.3 * (at % 3) for at in range(count)])
    plan = policy._plan
    assert plan is not None
    assert plan.keyed is not None
    many = [hash_key(("many", at)) for at in range(20_000)]
    got = dict.fromkeys((member.identity for member in plan.members), 0)
    for key in many:
        got[target(policy, key)[0]] += 1
    for member in plan.members:
        share = plan.keyed.base[member.place] * plan.keyed.ratio[member.place]
        deviation = (share * (1 - share) / len(many)) ** 0.5
        # 6 deviations for chance, and 0.2 % for samples that end before anybody took the key.
        assert got[member.identity] / len(many) == pytest.approx(share, abs=6 * deviation + 0.002)


def test_a_diverted_key_keeps_its_second_home_when_another_weight_changes() -> None:
    # n0 gives away; n1..n3 accept. Raising n1's weight may only draw keys to n1.
    before, after = policy_of([0.2, 1.0, 1.0, 1.0]), policy_of([0.2, 1.3, 1.0, 1.0])
    moved = [(target(before, key)[0], target(after, key)[0]) for key in KEYS if target(before, key)[1]]
    changed = [new for old, new in moved if old != new]
    to_other = [new for new in changed if "n1" not in new]
    assert changed
    assert len(to_other) <= len(moved) * 0.02


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_warming_nodes_never_take_more_than_their_joint_ramp(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 10))
    cold = data.draw(st.integers(1, count - 1))
    base = [1 / count] * count
    ramps = [(at, data.draw(st.floats(0.1, 1.0))) for at in range(cold)]
    flow = [data.draw(st.floats(0.02, 50)) for _ in range(count)]
    apply_ramps(base, flow, ramps)
    parts = [share * part for share, part in zip(base, flow, strict=True)]
    assert sum(parts[:cold]) / sum(parts) <= sum(ramp for _, ramp in ramps) / count + 1e-9
