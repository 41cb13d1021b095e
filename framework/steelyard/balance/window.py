"""Outcomes of one node in a sliding window, and which of them have already been paid for.

Ten buckets of one second instead of a deque of calls: memory does not grow with traffic and adding costs the same
at 1 call/s and at 10,000. Instead of an exponential average: a window forgets completely, so what the operator reads
("12 of 250 failed") is a count and not a blend.

*Spent* outcomes are the second half of the idea. When a law cuts a node's share because of failures, those failures
have had their effect; counting them again one second later would charge them twice, and would keep a healed node
out until the whole window had slid past. ``spend()`` marks everything up to now; ``evidence()`` counts only what
came later. The plain totals still tell the truth for display and for the fleet's average.

The buckets are one array of machine integers (200 bytes) made at the first call: three lists take twice that, and a
consumer of 10,000 nodes has 10,000 windows.
"""

from __future__ import annotations

from array import array

BUCKETS = 10
BUCKET_S = 1.0

# The array holds sent, then ok, then failed, BUCKETS of each.
_OK, _FAILED = BUCKETS, 2 * BUCKETS
_NOTHING = array("I", [0] * (3 * BUCKETS))


class OutcomeWindow:
    """Counts of sent, ok and failed calls in the last ``BUCKETS * BUCKET_S`` seconds.

    ``sent``, ``ok`` and ``failed`` are totals as of the last call of a method that takes ``now_s``; call
    ``advance(now_s)`` before reading them. A clock that steps back is read as standing still.
    """

    __slots__ = ("_at", "_counts", "_spent", "failed", "ok", "sent")

    def __init__(self) -> None:
        self._at = -1
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
        if self._counts is not None and (self.sent or self.ok or self.failed):
            if steps >= BUCKETS:
                self._counts = array("I", _NOTHING)
                self._spent = None
                self.sent = self.ok = self.failed = 0
            else:
                for step in range(1, steps + 1):
                    self._clear(self._counts, (self._at + step) % BUCKETS)
        self._at = at

    def count_sent(self, now_s: float) -> None:
        if now_s >= self._at + BUCKET_S:
            self.advance(now_s)
        counts = self._counts
        if counts is None:
            counts = self._begin()
        counts[self._at % BUCKETS] += 1
        self.sent += 1

    def count_ok(self, now_s: float) -> None:
        if now_s >= self._at + BUCKET_S:
            self.advance(now_s)
        counts = self._counts
        if counts is None:
            counts = self._begin()
        counts[_OK + self._at % BUCKETS] += 1
        self.ok += 1

    def count_failed(self, now_s: float) -> None:
        if now_s >= self._at + BUCKET_S:
            self.advance(now_s)
        counts = self._counts
        if counts is None:
            counts = self._begin()
        counts[_FAILED + self._at % BUCKETS] += 1
        self.failed += 1

    def spend(self) -> None:
        """Everything up to now has had its effect."""
        self._spent = (self._counts or _NOTHING)[_OK:]

    def evidence(self, buckets: int = BUCKETS) -> tuple[int, int]:
        """(ok, failed) that are not spent, in the newest *buckets* (the running one included)."""
        counts, spent = self._counts, self._spent
        if counts is None or (buckets >= BUCKETS and spent is None):
            return self.ok, self.failed
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
        if self._counts is None or other._counts is None:
            return
        for at in range(3 * BUCKETS):
            self._counts[at] -= min(self._counts[at], other._counts[at])
        self.sent = sum(self._counts[:_OK])
        self.ok = sum(self._counts[_OK:_FAILED])
        self.failed = sum(self._counts[_FAILED:])

    def _begin(self) -> array[int]:
        self._counts = array("I", _NOTHING)
        return self._counts

    def _clear(self, counts: array[int], bucket: int) -> None:
        self.sent -= counts[bucket]
        self.ok -= counts[_OK + bucket]
        self.failed -= counts[_FAILED + bucket]
        counts[bucket] = counts[_OK + bucket] = counts[_FAILED + bucket] = 0
        if self._spent is not None:
            self._spent[bucket] = self._spent[BUCKETS + bucket] = 0

    def __repr__(self) -> str:
        return f"OutcomeWindow(sent={self.sent}, ok={self.ok}, failed={self.failed})"
