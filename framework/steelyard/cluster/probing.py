"""Probes of a policy that asks nodes by itself (``ProbingPolicy``; Prequal is one), over the connections there are.

A probe is a PING whose PONG tells the provider's calls in flight and how long one takes at that number. Nothing waits
for it: no call, no task, no timer. What is under way is one entry in each connection for each reference, so a node that
is stopped gathers none, and the end of the connection or of the reference forgets them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from steelyard.balance import Candidate, ProbingPolicy

from .directory import Directory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeStatistics:
    """Since the start: probes ``asked`` for by the policy; ``sent``; ``answered``. Those that were not sent had no
    connection ready, or the last one there was still unanswered. ``under_way``: nodes that owe an answer now."""

    asked: int
    sent: int
    answered: int
    under_way: int


class Prober:
    """``ask`` after each attempt and about once a second. Never blocks, never raises."""

    def __init__(
        self,
        policy: ProbingPolicy,
        directory: Directory,
        *,
        clock: Callable[[], float],
        dice: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._directory = directory
        self._clock = clock
        self._dice = dice
        self._asked = self._sent = self._answered = 0
        self._is_closed = False

    def ask(self) -> None:
        """Sends the probes that the policy wants now; often none."""
        if self._is_closed:
            return
        for candidate in self._policy.probes(self._clock(), self._dice):
            self._asked += 1
            channel = self._directory.channel(candidate.node.address)
            if channel is not None and channel.probe((self, candidate.identity), partial(self._take, candidate)):
                self._sent += 1

    def statistics(self) -> ProbeStatistics:
        waiting = 0
        for node in self._directory.nodes:
            channel = self._directory.channel(node.address)
            waiting += channel is not None and channel.is_probed((self, node.identity))
        return ProbeStatistics(asked=self._asked, sent=self._sent, answered=self._answered, under_way=waiting)

    def close(self) -> None:
        """Answers that still come are dropped."""
        self._is_closed = True

    def _take(self, candidate: Candidate, in_flight: int, latency_s: float) -> None:
        if self._is_closed:
            return
        self._answered += 1
        try:
            self._policy.probed(candidate, self._clock(), in_flight=in_flight, latency_s=latency_s)
        except Exception:  # a policy that fails once must not end the connection that told it something
            log.exception("%s: the answer to a probe could not be taken", candidate.identity)
