"""Rates: so many a second, a second's worth at once, and a bounded number of names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.guard import Rate, Rates


def test_a_seconds_worth_at_once_and_then_the_average() -> None:
    rate = Rate(10.0, 0.0)
    assert [rate.admits(0.0) for _ in range(12)] == [True] * 10 + [False] * 2
    assert rate.wait_s() == pytest.approx(0.1)
    assert rate.admits(0.1)
    assert not rate.admits(0.1)


def test_less_than_one_a_second_still_admits_one() -> None:
    rate = Rate(0.1, 0.0)
    assert rate.admits(0.0)
    assert not rate.admits(9.0)
    assert rate.admits(10.1)


@given(
    st.floats(0.1, 100.0),
    st.lists(st.floats(0.0, 1.0, allow_subnormal=False), max_size=300),
)
def test_never_more_than_burst_and_average(per_s: float, waits: list[float]) -> None:
    rate, now_s, admitted = Rate(per_s, 0.0), 0.0, 0
    for wait_s in waits:
        now_s += wait_s
        admitted += rate.admits(now_s)
    assert admitted <= max(1.0, per_s) + per_s * now_s + 1e-6


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    rate = Rate(1.0, 100.0)
    assert rate.admits(100.0)
    assert not rate.admits(50.0)
    assert not rate.admits(50.9)


def test_names_have_rates_of_their_own_and_are_bounded() -> None:
    rates = Rates(1.0, most=3)
    assert rates.of("a", 0.0).admits(0.0)
    assert not rates.of("a", 0.0).admits(0.0)
    assert rates.of("b", 0.0).admits(0.0)
    for name in "cde":
        rates.of(name, 0.0)
    assert len(rates) == 3
    assert rates.of("a", 0.0).admits(0.0), "who is forgotten begins anew"
