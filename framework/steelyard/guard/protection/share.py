"""Which part of the calls is degraded because calls fail, and of which priority.

    p = max(0, (req - K * ok) / (req + 1))         per period; req: calls asked for, ok: calls that succeeded

This is client-side throttling of Google's SRE book ("Handling Overload"): nothing is cut while more than one call in K
succeeds, and a backend that serves a fixed rate gets K times that rate and no more, however much is asked for. The +1
lets about one call a period through even when nothing succeeds: the rule probes by itself.

The book draws a coin with p for each call, forgetting by a window of two minutes. Here p is a *target* per period. The
share rises to it at once and falls by at most half a period, and only on evidence: a period in which something was let
through, and what was let through succeeded. A window of minutes would degrade for minutes after the end; a share that
falls freely would let the whole crowd back in one second after the first good sign.

The share is of all calls, and is taken from the lowest priority first: the lowest is degraded altogether before the
next one loses a call.
"""

from __future__ import annotations

from collections.abc import Mapping

from .settings import ProtectionSettings


class DegradedShare:
    """``share`` of all calls in [0, 1], and ``chances`` by priority. The counts are the caller's (it counts at every
    call) and of one period: *asked* by priority, and how those ended that were let through."""

    def __init__(self, settings: ProtectionSettings) -> None:
        self._settings = settings
        self.share = 0.0
        self.chances: dict[int, float] = {}
        self.target = 0.0

    def close(self, asked: Mapping[int, int], ok: int, failed: int, *, is_on: bool) -> None:
        """Ends a period. *is_on*: the level calls for degrading; otherwise there is no new share, but one that is left
        goes its gradual way."""
        calls = sum(asked.values())
        settings = self._settings
        self.target = max(0.0, (calls - settings.k * ok) / (calls + 1)) if is_on and calls else 0.0
        if self.target > self.share:
            self.share = self.target
        elif self.share and ok and failed * settings.k <= ok + failed:
            self.share = max(self.target, self.share / 2)
            if self.share < settings.least_share and not failed:
                self.share = 0.0
        if calls or not self.share:
            self.chances = spread(self.share, asked)


def spread(share: float, asked: Mapping[int, int]) -> dict[int, float]:
    """The chance of each priority to be degraded so that *share* of all calls is, lowest priority (highest number)
    first.

    spread(0.3, {0: 50, 1: 30, 2: 20}) == {2: 1.0, 1: 1/3}
    """
    left = share * sum(asked.values())
    chances: dict[int, float] = {}
    for priority in sorted(asked, reverse=True):
        if left <= 0:
            break
        chances[priority] = min(1.0, left / asked[priority])
        left -= asked[priority]
    return chances
