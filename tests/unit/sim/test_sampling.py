"""Distributions as tables, and streams that do not disturb one another."""

from __future__ import annotations

import pytest

from steelyard.sim.sampling import gauss, quantiles, stream, zipf_sums


@pytest.mark.parametrize(
    ("kind", "shape"),
    [("lognormal", 0.5), ("cut_normal", 1.0), ("pareto", 1.5), ("exponential", 1.0), ("constant", 1.0)],
)
def test_the_mean_is_as_asked_and_quantiles_ascend(kind: str, shape: float) -> None:
    table = quantiles(kind, 0.25, shape)
    assert sum(table) / len(table) == pytest.approx(0.25)
    assert list(table) == sorted(table)
    assert table[0] > 0


def test_a_heavy_tail_is_heavier() -> None:
    assert quantiles("pareto", 1.0, 1.5)[-1] > 10 * quantiles("lognormal", 1.0, 0.5)[-1]


def test_an_unknown_distribution_is_refused() -> None:
    with pytest.raises(ValueError, match="no distribution 'uniform'"):
        quantiles("uniform", 1.0, 1.0)


def test_zipf_sums_end_at_one_and_favour_the_first() -> None:
    sums = zipf_sums(100, 1.0)
    assert sums[-1] == pytest.approx(1.0)
    assert sums[0] > 0.15


def test_streams_are_their_own() -> None:
    assert stream(1, "a").random() == stream(1, "a").random()
    assert stream(1, "a").random() != stream(1, "b").random()
    assert stream(1, "a").random() != stream(2, "a").random()


def test_a_stream_is_the_same_in_every_version() -> None:
    """A golden value: committed results hang on it."""
    assert stream(1, "arrivals").random() == 0.7021220472894018


def test_gauss_is_standard() -> None:
    dice = stream(3, "gauss").random
    numbers = [gauss(dice) for _ in range(20_000)]
    assert sum(numbers) / len(numbers) == pytest.approx(0.0, abs=0.03)
    assert sum(number**2 for number in numbers) / len(numbers) == pytest.approx(1.0, abs=0.05)
