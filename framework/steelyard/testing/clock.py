"""A clock that moves only when told to."""

from __future__ import annotations


class ManualClock:
    """Seconds since an arbitrary moment. Laws take it as ``now_s=clock()``."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def __call__(self) -> float:
        return self._now_s

    def advance(self, by_s: float) -> float:
        """Moves the clock on and gives the new time. Raises ValueError for a step back: monotonic clocks take none."""
        if by_s < 0:
            raise ValueError(f"a monotonic clock does not go back: {by_s!r}")
        self._now_s += by_s
        return self._now_s
