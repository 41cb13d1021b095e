"""Outcomes of one node in a sliding window, and which of them have already been paid for.

Ten buckets of one second instead of a deque of calls: memory does not grow with traffic and adding costs the same
at 1 call/s and at 10,000. Instead of an exponential average: a window forgets completely, so what the operator reads
("12 of 250 failed") is a count and not a blend.

*Spent* outcomes are the second half of the idea. When a law cuts a node's share because of failures, those failures
have had their effect; counting them again one second later would charge them twice, and would keep a healed node
out until the whole window had slid past. ``spend()`` marks everything up to now; ``evidence()`` counts only what
came later. The plain totals still tell the truth for display and for the fleet's average.
"""

from __future__ import annotations

BUCKETS = 10
BUCKET_S = 1.0


class OutcomeWindow:
    """Counts of sent, ok and failed calls in the last ``BUCKETS * BUCKET_S`` seconds.

    ``sent``, ``ok`` and ``failed`` are totals as of the last call of a method that takes ``now_s``; call
    ``advance(now_s)`` before reading them. A clock that steps back is read as standing still.
    """

    __slots__ = ("_at", "_failed", "_ok", "_sent", "_spent", "failed", "ok", "sent")

    def __init__(self) -> None:
        self._at = -1
        self._ok = [0] * BUCKETS
        self._failed = [0] * BUCKETS
        self._sent = [0] * BUCKETS
        # (ok, failed) per bucket that a law has acted upon; None for the many nodes that never were below target.
        self._spent: tuple[list[int], list[int]] | None = None
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
            for step in range(1, min(steps, BUCKETS) + 1):
                self._clear((self._at + step) % BUCKETS)
        self._at = at

    def count_sent(self, now_s: float) -> None:
        if int(now_s / BUCKET_S) > self._at:
            self.advance(now_s)
        self._sent[self._at % BUCKETS] += 1
        self.sent += 1

    def count_ok(self, now_s: float) -> None:
        if int(now_s / BUCKET_S) > self._at:
            self.advance(now_s)
        self._ok[self._at % BUCKETS] += 1
        self.ok += 1

    def count_failed(self, now_s: float) -> None:
        if int(now_s / BUCKET_S) > self._at:
            self.advance(now_s)
        self._failed[self._at % BUCKETS] += 1
        self.failed += 1

    def spend(self) -> None:
        """Everything up to now has had its effect."""
        self._spent = (self._ok.copy(), self._failed.copy())

    def evidence(self, buckets: int = BUCKETS) -> tuple[int, int]:
        """(ok, failed) that are not spent, in the newest *buckets* (the running one included)."""
        if buckets >= BUCKETS and self._spent is None:
            return self.ok, self.failed
        ok = failed = 0
        for back in range(min(buckets, BUCKETS)):
            bucket = (self._at - back) % BUCKETS
            ok += self._ok[bucket]
            failed += self._failed[bucket]
            if self._spent is not None:
                ok -= self._spent[0][bucket]
                failed -= self._spent[1][bucket]
        return ok, failed

    def _clear(self, bucket: int) -> None:
        self.ok -= self._ok[bucket]
        self.failed -= self._failed[bucket]
        self.sent -= self._sent[bucket]
        self._ok[bucket] = self._failed[bucket] = self._sent[bucket] = 0
        if self._spent is not None:
            self._spent[0][bucket] = self._spent[1][bucket] = 0

    def __repr__(self) -> str:
        return f"OutcomeWindow(sent={self.sent}, ok={self.ok}, failed={self.failed})"
