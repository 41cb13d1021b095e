"""What nodes tell of their calls: how long one takes there and in the fleet, and whose queue is to drain.

It leaves known queues alone: a short one that all consumers hear of at one moment makes them herd. What the numbers
mean is ``latency``'s; here they are kept, and forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from steelyard.model import LoadReport

from ..load import FRESH_S
from . import latency
from .member import Member


@dataclass(frozen=True, slots=True)
class LongQueue:
    """A queue that is to become shorter: the node tells of ``told`` calls where ``fair`` are its part."""

    told: float
    fair: float
    since_s: float


class Told:
    """``mean_s`` is how long a call takes in the fleet, None while nobody tells. *slow* is the ``slow_latency`` of the
    settings."""

    __slots__ = ("_slow", "long_queues", "mean_s")

    def __init__(self, slow: float) -> None:
        self._slow = slow
        self.mean_s: float | None = None
        self.long_queues: dict[Member, LongQueue] = {}

    def hear(self, member: Member, report: LoadReport, mean_load: float, now_s: float) -> None:
        """Take in a believed report of *member*, whose pressure and ``passes`` follow."""
        told, calls_per_s = float(report.in_flight or 0), report.calls_per_s
        if calls_per_s is None:
            return
        answered_per_s = calls_per_s - (report.errors_per_s or 0.0)
        member.told_at_s = member.load.sampled_at_s
        member.told_in_flight, member.answered_per_s = latency.blended(
            (member.told_in_flight, member.answered_per_s), (told, answered_per_s)
        )
        mean_s = self.mean_s
        if mean_s:
            relative = latency.seconds(member.told_in_flight, member.answered_per_s) / mean_s
            member.pressure = latency.counted(member.load.raw, relative, self._slow, mean_load)
            if not member.is_blocked:
                self._judge_queue(member, told, answered_per_s, mean_s, now_s)

    def _judge_queue(self, member: Member, told: float, answered_per_s: float, mean_s: float, now_s: float) -> None:
        passes = member.passes = latency.passing(told, answered_per_s, mean_s)
        before = self.long_queues.pop(member, None)
        if passes < 1.0:
            since_s = now_s if before is None else before.since_s
            self.long_queues[member] = LongQueue(told, mean_s * answered_per_s, since_s)

    def update(self, members: Iterable[Member], now_s: float, *, are_keyed: bool) -> None:
        """Once a period. What a node told is believed as long as a load is fresh: of one that tells no more of its
        calls, or nothing at all, nobody knows, and it gets its draws back. So do all while calls *are_keyed*."""
        until_s = now_s - FRESH_S
        told = answered_per_s = 0.0
        for member in members:
            if member.told_at_s >= until_s:
                told += member.told_in_flight
                answered_per_s += member.answered_per_s
            else:
                member.told_in_flight = member.answered_per_s = 0.0
        for member in list(self.long_queues):
            if member.is_blocked or not member.is_member:
                del self.long_queues[member]
            elif are_keyed or member.told_at_s < until_s:
                member.passes = 1.0
                del self.long_queues[member]
        self.mean_s = told / answered_per_s if answered_per_s > 0.0 else None
