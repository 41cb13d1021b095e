"""Chance, the same on every machine: seeded streams, and distributions as tables of quantiles.

A draw is one uniform number and one look into a table. That is five times faster than ``random.lognormvariate``, and it
cuts the tail at the 1 - 1/32768 quantile, so that a heavy-tailed mean does not hang on one draw of a million. Only
``random()``, ``log`` and ``exp`` are used: the derived methods of ``random`` and numpy's generators may change from
version to version, and then every committed number would.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from math import exp, log
from random import Random
from statistics import NormalDist
from typing import Any

TABLE = 1 << 14


def stream(seed: int, *names: object) -> Random:
    """A generator of its own for each purpose: one more draw in one place moves nothing elsewhere."""
    return Random("/".join(map(str, (seed, *names))))


@lru_cache(maxsize=64)
def quantiles(kind: str, mean: float, shape: float) -> tuple[float, ...]:
    """The distribution's quantiles at (i + 1/2) / 16384, scaled so that their mean is *mean*.

    *shape* is sigma of the log for ``lognormal``, standard deviation over mean for ``cut_normal`` (before it is cut
    at 0), alpha for ``pareto``; ``exponential`` and ``constant`` have none.
    """
    levels = [(at + 0.5) / TABLE for at in range(TABLE)]
    normal = NormalDist()
    match kind:
        case "lognormal":
            raw = [exp(shape * normal.inv_cdf(level)) for level in levels]
        case "cut_normal":
            # Conditioned on being positive, not clipped: no call is free.
            below = normal.cdf(-1.0 / shape)
            raw = [max(1e-3, 1.0 + shape * normal.inv_cdf(below + level * (1.0 - below))) for level in levels]
        case "pareto":
            raw = [(1.0 - level) ** (-1.0 / shape) for level in levels]
        case "exponential":
            raw = [-log(1.0 - level) for level in levels]
        case "constant":
            raw = [1.0] * TABLE
        case _:
            raise ValueError(f"no distribution {kind!r}")
    scale = mean * TABLE / sum(raw)
    return tuple(value * scale for value in raw)


@lru_cache(maxsize=16)
def zipf_sums(count: int, exponent: float) -> tuple[float, ...]:
    """Running sums of 1 / rank**exponent, ending at 1: bisect them with a uniform number."""
    sums = list(accumulate((rank + 1) ** -exponent for rank in range(count)))
    return tuple(value / sums[-1] for value in sums)


def gauss(random: Any) -> float:
    """A standard normal number from one uniform one."""
    return _NORMAL[int(random() * TABLE)]


_NORMAL = tuple(NormalDist().inv_cdf((at + 0.5) / TABLE) for at in range(TABLE))
