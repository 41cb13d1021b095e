"""Weighted draws: one uniform number in, one index out.

A table of running sums and a bisection, and not an alias table: at 1,000 entries a draw takes 0.1 us more
than the alias method's, but a table of running sums is built 16 times faster, and plans are rebuilt every
second.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate

Dice = Callable[[], float]


class DrawTable:
    """Draws index i with probability weights[i] / sum(weights). Immutable; weights are >= 0, their sum > 0."""

    __slots__ = ("_last", "_sums", "total")

    def __init__(self, weights: Iterable[float]) -> None:
        self._sums = sums = list(accumulate(weights))
        self.total = float(sums[-1])
        # The last index that can be drawn: dice() * total may round up to total itself.
        last = len(sums) - 1
        while last > 0 and sums[last - 1] >= sums[last]:
            last -= 1
        self._last = last

    def draw(self, dice: Dice) -> int:
        at = bisect_right(self._sums, dice() * self.total)
        return at if at <= self._last else self._last

    def draw_two(self, dice: Dice) -> tuple[int, int]:
        """Two independent draws."""
        sums, total, last = self._sums, self.total, self._last
        one, two = bisect_right(sums, dice() * total), bisect_right(sums, dice() * total)
        return one if one <= last else last, two if two <= last else last

    def draw_other(self, dice: Dice, first: int) -> int:
        """Another index than *first*, by weight among the others; *first* itself when no other has weight."""
        sums = self._sums
        before = sums[first - 1] if first else 0.0
        width = sums[first] - before
        mark = dice() * (self.total - width)
        at = bisect_right(sums, mark if mark < before else mark + width)
        return at if at <= self._last else self._last
