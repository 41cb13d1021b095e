"""Rate: so many a second on average, and a second's worth at once (a token bucket).

The bucket is two numbers that are brought up to date when somebody asks; there is no timer and nothing to refill it.
"""

from __future__ import annotations

from collections import OrderedDict


class Rate:
    """*per_s* on average; *burst* at once [a second's worth, at least one]."""

    __slots__ = ("_at_s", "_burst", "_left", "per_s")

    def __init__(self, per_s: float, now_s: float, burst: float | None = None) -> None:
        self.per_s = per_s
        self._burst = max(1.0, per_s if burst is None else burst)
        self._left = self._burst
        self._at_s = now_s

    def admits(self, now_s: float) -> bool:
        """Takes one, when there is one."""
        left = min(self._burst, self._left + max(0.0, now_s - self._at_s) * self.per_s)
        self._at_s = now_s
        if left < 1.0:
            self._left = left
            return False
        self._left = left - 1.0
        return True

    def wait_s(self) -> float:
        """How long until there is one again, as of the last question."""
        return max(0.0, (1.0 - self._left) / self.per_s)


class Rates:
    """One Rate for each name, of the *most* that were seen last: who is forgotten begins with a full bucket, so there
    must be more places than names that somebody could make up."""

    __slots__ = ("_burst", "_most", "_per_s", "_rates")

    def __init__(self, per_s: float, burst: float | None = None, most: int = 65_536) -> None:
        self._per_s = per_s
        self._burst = burst
        self._most = most
        self._rates: OrderedDict[str, Rate] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rates)

    def of(self, name: str, now_s: float) -> Rate:
        rate = self._rates.get(name)
        if rate is None:
            if len(self._rates) >= self._most:
                self._rates.popitem(last=False)
            rate = self._rates[name] = Rate(self._per_s, now_s, self._burst)
        else:
            self._rates.move_to_end(name)
        return rate
