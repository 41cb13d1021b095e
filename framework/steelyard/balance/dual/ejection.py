"""Fast ejection: five transport failures in a row and a node is empty now, not at the next tick.

A connection that is refused says more than a failed call: nothing at all arrives, each try costs a retry, and
a period is hundreds of calls long. The count is *consecutive* and only of transport failures: any answer, even an
error, proves that the transport works, and overload answers must shed and never eject (ejecting the overloaded sends
their load to the next).

The way back is one single call at a time (a pick that would refuse lets one through) after a jittered back-off,

    wait = min(max_backoff, backoff * 2**failed_probes) * (1/2 + dice/2)

Half fixed and half drawn: with full jitter some consumers would probe at once, and with none all together. The dice
come with a pick, so the wait is drawn by the first pick after the ejection.
"""

from __future__ import annotations

import math

from ..draw import Dice
from ..statistics import Objective, Reason
from .member import Member
from .settings import DualSettings

# probe_at_s of an ejected node whose wait is not drawn yet.
UNDRAWN = -math.inf
_MOST_DOUBLINGS = 16


class EjectionLaw:
    def __init__(self, settings: DualSettings) -> None:
        self._settings = settings

    def count(self, member: Member, *, is_transport_failure: bool) -> bool:
        """Count one ended call; True when it ejects the node (or, for an ejected one, when its probe failed)."""
        if not is_transport_failure:
            member.transport_failures = 0
            return False
        member.transport_failures += 1
        if member.is_ejected:
            # Calls sent before the ejection also end; only a call sent as a probe says something new, and then
            # the wait has been drawn.
            if member.probe_at_s != UNDRAWN and member.in_flight == 0:
                member.ejections += 1
                return True
            return False
        return member.transport_failures >= self._settings.eject_after

    def eject(self, member: Member) -> None:
        member.is_ejected = True
        member.probe_at_s = UNDRAWN

    def readmit(self, member: Member) -> None:
        member.is_ejected = False
        member.block(False)
        member.ejections = 0

    def may_probe(self, member: Member, now_s: float, dice: Dice) -> bool:
        """Whether one call may go to this ejected node now. Draws the wait if that is still to do, and sets the next
        moment, so that a probe whose end never comes does not block the node for ever."""
        if member.probe_at_s == UNDRAWN:
            member.probe_at_s = now_s + self._wait_s(member, dice)
            return False
        if now_s < member.probe_at_s or member.in_flight > 0:
            return False
        member.probe_at_s = now_s + self._wait_s(member, dice)
        return True

    def reason(self, member: Member, now_s: float) -> Reason:
        count = member.transport_failures
        return Reason(
            objective=Objective.TRANSPORT,
            imbalance=float(count),
            since_s=now_s,
            text=f"{count} transport failures in a row",
        )

    def _wait_s(self, member: Member, dice: Dice) -> float:
        settings = self._settings
        wait_s = settings.probe_backoff_s * 2.0 ** min(member.ejections, _MOST_DOUBLINGS)
        return min(settings.max_probe_backoff_s, wait_s) * (0.5 + 0.5 * dice())
