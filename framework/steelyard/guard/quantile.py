"""A quantile of a stream of latencies, in one number and without keeping samples.

    q <- q * exp(step * p)          when a sample lies above q
    q <- q * exp(-step * (1 - p))   otherwise

It stands still where a share of 1 - p lies above (stochastic approximation, Robbins and Monro 1951; in logs, because
latencies span decades). A histogram would know all quantiles and cost a hundred times the memory; for the moment to
hedge one is enough. ``step`` = 0.05: a doubling of all latencies is followed within some fifteen samples, a halving
within 300 (p = 0.95), and at rest the estimate wanders by a few percent.
"""

from __future__ import annotations

import math


class Quantile:
    """``value`` estimates the quantile ``p``; None until ``least`` samples have been seen."""

    __slots__ = ("_down", "_least", "_most", "_up", "count", "value")

    def __init__(self, p: float = 0.95, *, step: float = 0.05, least: int = 20) -> None:
        if not 0.0 < p < 1.0:
            raise ValueError(f"p must be in (0, 1), not {p!r}")
        self._up = math.exp(step * p)
        self._down = math.exp(-step * (1.0 - p))
        self._least = least
        self._most = 1e-6  # of the first samples: no quantile yet; the largest is on the safe side
        self.value: float | None = None
        self.count = 0

    def add(self, sample: float) -> None:
        """One latency, in seconds."""
        self.count += 1
        value = self.value
        if value is not None:
            self.value = value * (self._up if sample > value else self._down)
            return
        if self.count == self._least > 1:
            self.value = self._most * (self._up if sample > self._most else self._down)
            return
        self._most = max(self._most, sample)
        if self.count >= self._least:
            self.value = self._most

    def add_above(self) -> None:
        """One latency that was cut short above the estimate: how long it would have been is not known."""
        if self.value is not None:
            self.value *= self._up

    def __repr__(self) -> str:
        return f"Quantile({self.value or self._most:.6g} after {self.count})"
