"""Will this call be answered in time? Little's law over a consumer's own calls to one method.

    expected wait = calls under way / calls answered per second          (Little 1961: L = lambda * W)

Failures tell of overload too late: in front of a queue nothing fails until the queue is as long as the deadline, and
then everything in it fails at once, while the servers go on answering calls that nobody waits for any more. What has
failed by then can be no "99.9 % of what is admitted". The queue itself can be seen while it grows, from this side and
at every call, because a call that waits is a call under way.

Four things must not look like a queue:

* a slow method: what counts is the wait beyond ``base``, the best of its per-period mean latencies in a minute (the
  minimum filter of BBR's RTprop, Cardwell et al. 2016);
* a burst: a hundred calls sent at once to an idle cluster are many under way and few answered, but those that *are*
  answered were not slow. So it takes both: the predicted wait at the limit, and a tenth of it measured already;
* a node that answers nothing: its stuck calls are under way for long, but the others' answers are not slow;
* this process standing still (a long collection, a starved container): all its calls look late then, by no fault of
  the cluster. A gap between two looks tells of it, and for half a second nothing is judged.
"""

from __future__ import annotations

import math
from collections import deque

_BUCKETS_PER_S = 20
_BUCKET_S = 1 / _BUCKETS_PER_S
_BUCKETS = 20
_NEWEST = 4  # buckets: a rise of the rate is believed at once, a fall after a second
_RECENT = 2  # buckets: latencies are believed at once, up and down
_BASE_PERIODS = 60
_BASE_CALLS = 5
# Calls come at least so often where there is a queue; after a longer gap it was this process that stood still.
_STALL_S = 0.25
_AFTER_STALL_S = 0.5
# One node of eight that is ten times slower makes the mean 2.1 times what it was.
_SLOW = 3.0
# What must have been measured of a predicted wait. At four times the capacity the answers that come back have waited a
# third of what a call sent now will wait, at ten times a tenth.
_MEASURED_PART = 0.1


class MethodWait:
    """Calls under way, answers and latencies of one method, in the caller's time (seconds)."""

    __slots__ = (
        "_at",
        "_base",
        "_bucket_calls",
        "_bucket_latency_s",
        "_counts",
        "_new_calls",
        "_new_latency_s",
        "_next_at_s",
        "_seen_at_s",
        "_sums_s",
        "_trusted_from_s",
        "base_s",
        "in_flight",
        "rate_per_s",
        "recent_s",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        self.rate_per_s = 0.0
        self.recent_s = 0.0
        self.base_s: float | None = None
        self._at = 0
        self._counts = [0] * _BUCKETS
        self._sums_s = [0.0] * _BUCKETS
        self._base: deque[float] = deque(maxlen=_BASE_PERIODS)
        self._next_at_s = -math.inf  # when the next bucket begins
        self._seen_at_s = math.inf
        self._trusted_from_s = -math.inf
        self._bucket_calls = 0
        self._bucket_latency_s = 0.0
        self._new_calls = 0
        self._new_latency_s = 0.0

    def answered(self, now_s: float, latency_s: float) -> None:
        """One call was answered (``in_flight`` is the caller's to count). Failures answer nothing and are not
        counted."""
        if now_s >= self._next_at_s or now_s - self._seen_at_s > _STALL_S:
            self.advance(now_s)
        self._seen_at_s = now_s
        self._bucket_calls += 1
        self._bucket_latency_s += latency_s

    def advance(self, now_s: float) -> None:
        """Reads the rate and the recent latency anew, twenty times a second."""
        if now_s - self._seen_at_s > _STALL_S:
            self._trusted_from_s = now_s + _AFTER_STALL_S
        self._seen_at_s = now_s
        at = int(now_s * _BUCKETS_PER_S)
        steps = at - self._at
        self._next_at_s = (self._at + 1) / _BUCKETS_PER_S
        if steps <= 0:
            return
        self._close_bucket()
        for step in range(1, min(steps, _BUCKETS) + 1):
            self._counts[(self._at + step) % _BUCKETS] = 0
            self._sums_s[(self._at + step) % _BUCKETS] = 0.0
        self._at = at
        self._next_at_s = (at + 1) / _BUCKETS_PER_S
        # The bucket that begins now is empty, so the full ones are one fewer.
        newest = sum(self._counts[(at - back) % _BUCKETS] for back in range(1, _NEWEST + 1))
        self.rate_per_s = max(sum(self._counts) / ((_BUCKETS - 1) * _BUCKET_S), newest / (_NEWEST * _BUCKET_S))
        recent = [(at - back) % _BUCKETS for back in range(1, _RECENT + 1)]
        answered = sum(self._counts[bucket] for bucket in recent)
        if answered:
            self.recent_s = sum(self._sums_s[bucket] for bucket in recent) / answered
        elif not self.rate_per_s:
            self.recent_s = 0.0

    def _close_bucket(self) -> None:
        bucket = self._at % _BUCKETS
        self._counts[bucket] += self._bucket_calls
        self._sums_s[bucket] += self._bucket_latency_s
        self._new_calls += self._bucket_calls
        self._new_latency_s += self._bucket_latency_s
        self._bucket_calls = 0
        self._bucket_latency_s = 0.0

    def close_period(self, is_base: bool) -> None:
        """Ends a period. *is_base*: its latencies may count as what the method takes without a queue."""
        self._close_bucket()
        if is_base and self._new_calls >= _BASE_CALLS:
            self._base.append(self._new_latency_s / self._new_calls)
            self.base_s = min(self._base)
        self._new_calls = 0
        self._new_latency_s = 0.0

    def expected_s(self) -> float | None:
        """How long a call sent now will be under way; None while nothing is answered."""
        return self.in_flight / self.rate_per_s if self.rate_per_s else None

    @property
    def is_slow(self) -> bool:
        """Whether answers in general take several times what they do without a queue."""
        return self.base_s is not None and self.recent_s > _SLOW * self.base_s

    def is_late(self, now_s: float, remaining_s: float, patience: float) -> bool:
        """``advance`` and ``is_too_long`` for every call: where answers are no slower than they should be, and that is
        nearly always, there is nothing else to ask."""
        if now_s >= self._next_at_s or now_s - self._seen_at_s > _STALL_S:
            self.advance(now_s)
        else:
            self._seen_at_s = now_s
        base_s = self.base_s
        if base_s is None or self.recent_s - base_s <= _MEASURED_PART * (patience * (remaining_s - base_s)):
            return False
        return self.is_too_long(remaining_s, patience)

    def is_too_long(self, remaining_s: float, patience: float) -> bool:
        """Whether waiting would take more than *patience* of the time that the call has beyond ``base``, as of the last
        ``advance``."""
        base_s = self.base_s
        if base_s is None or not self.rate_per_s or self._seen_at_s < self._trusted_from_s:
            return False
        spare_s = remaining_s - base_s
        if spare_s <= 0 or spare_s == math.inf:
            return False  # too short in the best of times, or without a deadline: nothing to protect
        limit_s = patience * spare_s
        return self.in_flight / self.rate_per_s - base_s > limit_s and self.recent_s - base_s > _MEASURED_PART * limit_s
