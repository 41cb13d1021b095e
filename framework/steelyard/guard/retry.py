"""How many retries there may be, and how long to wait before one.

Retries are the cheapest way to turn a small outage into a large one: with three tries each, a fleet that fails gets
three times its load at the worst moment. A *budget* ties retries to calls, so the extra load has a bound that no
storm can pass; a fixed number per call (Dubbo's ``retries=2``) alone has none. The form is Finagle's RetryBudget: each
call deposits a fraction of a token, a trickle per second keeps quiet consumers able to retry, each retry takes one.

    tokens <- min(max, tokens + ratio * calls + per_second * dt - retries)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from steelyard.errors import ConfigError


class RetryBudget:
    """A token bucket of retries, in the caller's time.

    ``ratio``: tokens per call, 0..1; 0.2 bounds the extra load in the long run to 20 % (Finagle's default; SRE book:
    10 %). ``per_second``: tokens per second, so that one call a minute may still be retried. ``max_tokens``: what can
    be saved up; by default 10 s of the trickle, and at least 10 s worth of one call/s: a storm after a long calm must
    not find an hour's savings. With ``ratio`` and ``per_second`` both 0 there is never a retry: 0 means 0.
    """

    __slots__ = ("_at_s", "_max", "_per_second", "_ratio", "_tokens", "denied", "granted")

    def __init__(self, ratio: float = 0.2, per_second: float = 10.0, max_tokens: float | None = None) -> None:
        if not 0.0 <= ratio <= 1.0:
            raise ConfigError(f"ratio must be in [0, 1], not {ratio!r}")
        if not 0.0 <= per_second < math.inf:
            raise ConfigError(f"per_second must be finite and at least 0, not {per_second!r}")
        if max_tokens is not None and not 0.0 <= max_tokens < math.inf:
            raise ConfigError(f"max_tokens must be None, or finite and at least 0, not {max_tokens!r}")
        self._ratio = ratio
        self._per_second = per_second
        self._max = max_tokens if max_tokens is not None else 10.0 * max(per_second, ratio)
        # Full to begin with (Finagle's reserve): a consumer that starts while one node of four fails would otherwise
        # fail its own callers until the first control period has seen it. What a storm can take is bounded by max.
        self._tokens = self._max
        self._at_s: float | None = None
        self.granted = 0
        self.denied = 0

    def deposit(self, now_s: float) -> None:
        """A call (not a retry) is made."""
        if self._tokens < self._max:
            self._trickle(now_s)
            self._tokens = min(self._max, self._tokens + self._ratio)
        else:
            self._at_s = now_s if self._at_s is None or now_s > self._at_s else self._at_s

    def try_withdraw(self, now_s: float, *, reserve: float = 0.0) -> bool:
        """Whether a retry may be made now; takes its token. *reserve*: the part of the largest savings that must be
        left for others. Hedges leave half: a call that has failed needs its second attempt, one that is slow may
        not."""
        self._trickle(now_s)
        # 1e-9: five deposits of 0.2 are one retry, whatever binary fractions make of them.
        if self._tokens < 1.0 + reserve * self._max - 1e-9:
            self.denied += 1
            return False
        self._tokens = max(0.0, self._tokens - 1.0)
        self.granted += 1
        return True

    def tokens(self, now_s: float) -> float:
        """What is left, in retries."""
        self._trickle(now_s)
        return self._tokens

    def is_low(self, now_s: float) -> bool:
        """Whether less than half of the largest savings is left: something goes on that retries alone will not end."""
        return self.tokens(now_s) < 0.5 * self._max

    def _trickle(self, now_s: float) -> None:
        if self._at_s is not None and now_s > self._at_s:
            self._tokens = min(self._max, self._tokens + (now_s - self._at_s) * self._per_second)
        if self._at_s is None or now_s > self._at_s:
            self._at_s = now_s

    def __repr__(self) -> str:
        return f"RetryBudget({self._tokens:.1f} of {self._max:g} left, {self.granted} granted, {self.denied} denied)"


def backoff_s(attempt: int, dice: Callable[[], float], *, base_s: float = 0.01, max_s: float = 1.0) -> float:
    """Seconds to wait before retry number *attempt* (1 is the first): full jitter,

        dice() * min(max_s, base_s * 2 ** (attempt - 1))

    Full jitter spreads a crowd that failed at one moment over the whole interval, where fixed waits keep it together
    (AWS Architecture Blog, "Exponential Backoff And Jitter", 2015). base_s = 10 ms: a retry on *another* node need
    not wait for anything to heal, only not be simultaneous.
    """
    if attempt < 1:
        raise ValueError(f"attempt counts from 1, not {attempt!r}")
    # Bounded exponent: 2.0 ** 1024 overflows.
    return dice() * min(max_s, base_s * 2.0 ** min(attempt - 1, 64))
