"""The degraded share: the SRE rule up, halves down, lowest priority first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.guard.protection.settings import ProtectionSettings
from steelyard.guard.protection.share import DegradedShare, spread


def period(share: DegradedShare, asked: int, ok: int, failed: int, *, is_on: bool = True) -> float:
    share.close({1: asked}, ok, failed, is_on=is_on)
    return share.share


def test_nothing_is_cut_while_one_call_in_k_succeeds() -> None:
    assert period(DegradedShare(ProtectionSettings()), 100, 51, 49) == 0.0


def test_the_share_rises_to_the_rule_at_once() -> None:
    assert period(DegradedShare(ProtectionSettings()), 100, 20, 80) == pytest.approx((100 - 40) / 101)


def test_it_falls_by_half_a_period_at_most_and_only_on_evidence() -> None:
    share = DegradedShare(ProtectionSettings())
    top = period(share, 100, 0, 100)
    assert top == pytest.approx(100 / 101)
    assert period(share, 100, 0, 0) == top  # nothing ended: nothing is known
    assert period(share, 100, 1, 9) == top  # what was let through failed
    seen = [top]
    while seen[-1]:
        let_through = round(100 * (1 - seen[-1])) + 1
        seen.append(period(share, 100, let_through, 0))
        assert seen[-1] == 0.0 or seen[-1] >= seen[-2] / 2 - 1e-9
    assert 5 <= len(seen) <= 20


def test_a_level_that_ends_leaves_the_share_to_go_its_way() -> None:
    share = DegradedShare(ProtectionSettings())
    period(share, 100, 10, 90)
    assert period(share, 100, 20, 0, is_on=False) == pytest.approx(0.8 * 100 / 101 / 2, abs=0.01)


def test_lowest_priority_first() -> None:
    assert spread(0.3, {0: 50, 1: 30, 2: 20}) == {2: 1.0, 1: pytest.approx(1 / 3)}
    assert spread(0.0, {0: 50}) == {}
    assert spread(1.0, {0: 50, 7: 1}) == {7: 1.0, 0: 1.0}
    assert spread(0.5, {}) == {}


@given(share=st.floats(0, 1), asked=st.dictionaries(st.integers(0, 255), st.integers(1, 1000), max_size=8))
def test_the_share_is_what_is_spread(share: float, asked: dict[int, int]) -> None:
    chances = spread(share, asked)
    total = sum(asked.values())
    assert sum(chances.get(priority, 0.0) * count for priority, count in asked.items()) == pytest.approx(share * total)
    by_priority = [chances.get(priority, 0.0) for priority in sorted(asked)]
    assert by_priority == sorted(by_priority)
    assert sum(0.0 < chance < 1.0 for chance in by_priority) <= 1
