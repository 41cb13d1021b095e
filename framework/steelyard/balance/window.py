"""Outcomes of one node in a sliding window, and which of them have already been paid for.

Ten buckets of one second instead of a deque of calls: memory does not grow with traffic and adding costs the same
at 1 call/s and at 10,000. Instead of an exponential average: a window forgets completely, so what the operator reads
("12 of 250 failed") is a count and not a blend.

*Spent* outcomes are the second half of the idea. When a law cuts a node's share because of failures, those failures
have had their effect; counting them again one second later would charge them twice, and would keep a healed node
out until the whole window had slid past. ``spend()`` marks everything up to now; ``evidence()`` counts only what
came later. The plain totals still tell the truth for display and for the fleet's average.

The buckets are one array of machine integers (200 bytes) made when the first of them is full: three lists take twice
that, and a consumer of 10,000 nodes has 10,000 windows. Only totals are counted call by call, one addition each; what
belongs to the running bucket is the difference to the totals when it began.
"""

from __future__ import annotations

import math
from array import array

BUCKETS = 10
BUCKET_S = 1.0

# The array holds sent, then ok, then failed, BUCKETS of each.
_OK, _FAILED = BUCKETS, 2 * BUCKETS
_NOTHING = array("I", [0] * (3 * BUCKETS))


class OutcomeWindow:
    """Counts of sent, ok and failed calls in the last ``BUCKETS * BUCKET_S`` seconds.

    ``sent``, ``ok`` and ``failed`` are totals as of the last call of a method that takes ``now_s``; call
    ``advance(now_s)`` before reading them. Who counts every call may add to a total himself, while ``now_s`` is before
    ``until_s``. A clock that steps back is read as standing still.
    """

    __slots__ = (
        "_at",
        "_counts",
        "_noted_failed",
        "_noted_ok",
        "_noted_sent",
        "_spent",
        "failed",
        "ok",
        "sent",
        "until_s",
    )

    def __init__(self) -> None:
        self._at = -1
        self.until_s = -math.inf
        # What of the totals stands in buckets; the rest belongs to the running one.
        self._noted_sent = self._noted_ok = self._noted_failed = 0
        self._counts: array[int] | None = None
        # What a law has acted upon, ok then failed; None for the many nodes that never were below target.
        self._spent: array[int] | None = None
        self.ok = 0
        self.failed = 0
        self.sent = 0

    def advance(self, now_s: float) -> None:
        """Forget what is older than the window."""
        at = int(now_s / BUCKET_S)
        steps = at - self._at
        if steps <= 0:
            return
        if self.sent or self.ok or self.failed:
            counts = self._noted()
            if steps >= BUCKETS:
                self._counts = array("I", _NOTHING)
                self._spent = None
                self.sent = self.ok = self.failed = 0
            else:
                for step in range(1, steps + 1):
                    self._clear(counts, (self._at + step) % BUCKETS)
            self._noted_sent, self._noted_ok, self._noted_failed = self.sent, self.ok, self.failed
        self._at = at
        self.until_s = (at + 1) * BUCKET_S

    def count_sent(self, now_s: float) -> None:
        if now_s >= self.until_s:
            self.advance(now_s)
        self.sent += 1

    def count_ok(self, now_s: float) -> None:
        if now_s >= self.until_s:
            self.advance(now_s)
        self.ok += 1

    def count_failed(self, now_s: float) -> None:
        if now_s >= self.until_s:
            self.advance(now_s)
        self.failed += 1

    def spend(self) -> None:
        """Everything up to now has had its effect."""
        self._spent = self._noted()[_OK:]

    def evidence(self, buckets: int = BUCKETS) -> tuple[int, int]:
        """(ok, failed) that are not spent, in the newest *buckets* (the running one included)."""
        spent = self._spent
        if buckets >= BUCKETS and spent is None:
            return self.ok, self.failed
        counts = self._noted()
        ok = failed = 0
        for back in range(min(buckets, BUCKETS)):
            bucket = (self._at - back) % BUCKETS
            ok += counts[_OK + bucket]
            failed += counts[_FAILED + bucket]
            if spent is not None:
                ok -= spent[bucket]
                failed -= spent[BUCKETS + bucket]
        return ok, failed

    def take_out(self, other: OutcomeWindow, now_s: float) -> None:
        """Forget the calls of *other*, which were counted here too (a node has left)."""
        self.advance(now_s)
        other.advance(now_s)
        if not (other.sent or other.ok or other.failed):
            return
        counts, others = self._noted(), other._noted()
        for at in range(3 * BUCKETS):
            counts[at] -= min(counts[at], others[at])
        self.sent = self._noted_sent = sum(counts[:_OK])
        self.ok = self._noted_ok = sum(counts[_OK:_FAILED])
        self.failed = self._noted_failed = sum(counts[_FAILED:])

    def _noted(self) -> array[int]:
        """The buckets, with what was counted since the last time in the running one."""
        counts = self._counts
        if counts is None:
            counts = self._counts = array("I", _NOTHING)
        bucket = self._at % BUCKETS
        counts[bucket] += self.sent - self._noted_sent
        counts[_OK + bucket] += self.ok - self._noted_ok
        counts[_FAILED + bucket] += self.failed - self._noted_failed
        self._noted_sent, self._noted_ok, self._noted_failed = self.sent, self.ok, self.failed
        return counts

    def _clear(self, counts: array[int], bucket: int) -> None:
        self.sent -= counts[bucket]
        self.ok -= counts[_OK + bucket]
        self.failed -= counts[_FAILED + bucket]
        counts[bucket] = counts[_OK + bucket] = counts[_FAILED + bucket] = 0
        if self._spent is not None:
            self._spent[bucket] = self._spent[BUCKETS + bucket] = 0

    def __repr__(self) -> str:
        return f"OutcomeWindow(sent={self.sent}, ok={self.ok}, failed={self.failed})"
