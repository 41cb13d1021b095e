"""The retry budget and back-off."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.guard import RetryBudget, backoff_s


@given(
    ratio=st.floats(0, 1),
    per_second=st.floats(0, 50),
    steps=st.lists(st.tuples(st.booleans(), st.floats(0, 2)), max_size=200),
)
def test_retries_never_exceed_the_budget(ratio: float, per_second: float, steps: list[tuple[bool, float]]) -> None:
    budget = RetryBudget(ratio, per_second)
    now_s = 0.0
    calls = retries = 0
    for is_call, pause_s in steps:
        now_s += pause_s
        if is_call:
            budget.deposit(now_s)
            calls += 1
        else:
            retries += budget.try_withdraw(now_s)
    # The reserve it begins with, so many per second, the ratio of the calls; 1e-6 for sums of floats.
    assert retries <= 10 * max(per_second, ratio) + per_second * now_s + ratio * calls + 1e-6


def test_zero_means_zero() -> None:
    budget = RetryBudget(0.0, 0.0)
    for at in range(1000):
        budget.deposit(at * 1.0)
    assert not budget.try_withdraw(1000.0)
    assert (budget.granted, budget.denied) == (0, 1)


def test_five_calls_are_one_retry_at_a_fifth() -> None:
    budget = RetryBudget(0.2, 0.0)
    assert [budget.try_withdraw(0.0) for _ in range(3)] == [True, True, False]  # the reserve: 10 s of one call a second
    for _ in range(4):
        budget.deposit(0.0)
        assert not budget.try_withdraw(0.0)
    budget.deposit(0.0)
    assert budget.try_withdraw(0.0)
    assert not budget.try_withdraw(0.0)


def test_a_quiet_hour_saves_up_ten_seconds_only() -> None:
    budget = RetryBudget(0.2, 10.0)
    budget.deposit(0.0)
    assert sum(budget.try_withdraw(3600.0) for _ in range(1000)) == 100


def test_a_clock_that_steps_back_gives_nothing_twice() -> None:
    budget = RetryBudget(0.0, 1.0, max_tokens=5)
    assert [budget.try_withdraw(10.0) for _ in range(5)] == [True, True, True, True, True]
    assert budget.tokens(11.0) == 1.0
    assert budget.tokens(13.0) == 3.0
    assert budget.tokens(5.0) == 3.0
    assert budget.tokens(13.0) == 3.0


@pytest.mark.parametrize("bad", [{"ratio": 1.5}, {"ratio": math.nan}, {"per_second": -1}, {"max_tokens": math.inf}])
def test_bad_settings_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        RetryBudget(**bad)


def test_backoff_doubles_to_its_cap_with_full_jitter() -> None:
    highest = [backoff_s(attempt, lambda: 1.0, base_s=0.01, max_s=0.1) for attempt in (1, 2, 3, 4, 5, 5000)]
    assert highest == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.1, 0.1])
    assert backoff_s(3, lambda: 0.0) == 0.0
    assert 0.0 <= backoff_s(1, random.Random(1).random) <= 0.01
    with pytest.raises(ValueError, match="counts from 1"):
        backoff_s(0, lambda: 0.5)


def test_a_reserve_is_left_for_others() -> None:
    budget = RetryBudget(0.2, 1.0)
    hedges = sum(budget.try_withdraw(0.0, reserve=0.5) for _ in range(100))
    assert hedges == 5
    assert sum(budget.try_withdraw(0.0) for _ in range(100)) == 5


def test_low_is_less_than_half() -> None:
    budget = RetryBudget(0.2, 1.0)
    assert [(budget.try_withdraw(0.0), budget.is_low(0.0))[1] for _ in range(6)] == [False] * 5 + [True]
