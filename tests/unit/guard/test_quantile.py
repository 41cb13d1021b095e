"""One number that follows a quantile."""

from __future__ import annotations

import random

import pytest

from steelyard.guard import Quantile


def test_it_finds_the_quantile() -> None:
    quantile, dice = Quantile(0.95), random.Random(1)
    for _ in range(20_000):
        quantile.add(dice.expovariate(100.0))
    assert quantile.value == pytest.approx(0.02996, rel=0.25)  # -ln(0.05) / 100


def test_it_says_nothing_of_few_samples() -> None:
    quantile = Quantile()
    for _ in range(19):
        quantile.add(0.01)
    assert quantile.value is None
    quantile.add_above()
    quantile.add(0.01)
    assert quantile.value == pytest.approx(0.01, rel=0.1)


def test_it_follows_a_change_up_faster_than_down() -> None:
    quantile = Quantile(0.95)
    for _ in range(1000):
        quantile.add(0.01)
    for _ in range(50):
        quantile.add(0.1)
    up = quantile.value
    assert up is not None
    assert up > 0.08
    for _ in range(50):
        quantile.add(0.01)
    assert quantile.value is not None
    assert quantile.value > up / 2


def test_what_was_cut_short_counts_as_above() -> None:
    quantile = Quantile(0.95)
    for _ in range(100):
        quantile.add(0.01)
    before = quantile.value
    quantile.add_above()
    assert before is not None
    assert quantile.value is not None
    assert quantile.value > before


@pytest.mark.parametrize("p", [0.0, 1.0, -1.0])
def test_a_quantile_lies_within(p: float) -> None:
    with pytest.raises(ValueError, match="p must be"):
        Quantile(p)
