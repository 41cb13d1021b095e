"""Diversion held: what active protection's first level does to the availability law.

Diverting from sick nodes can drown the healthy. While it is held, diversion keeps a part of its size and does not grow,
so that the healthy get air. But only as far as that relieves them: a call to a node that succeeds with rate a spares
the healthy a call with a, and costs them a retry with 1 - a. So of the relief a node gets

    max(0, 2 a - 1)

and a dead one none: sending calls to it would only bring them back later, with a retry spent.
"""

from __future__ import annotations

import math

from .member import NO_REASON, Member

# Below this a node costs the healthy more than it spares them.
_EVEN = 0.5


def held(member: Member, factor: float | None) -> float:
    """The part of its flow that *member* keeps: its own ``kept``, or more while diversion is held at *factor*."""
    if factor is None:
        return member.kept
    relief = (1.0 - factor) * max(0.0, 2.0 * member.sick_rate - 1.0)
    return 1.0 - (1.0 - member.kept) * (1.0 - relief)


def freeze(member: Member, kept_before: float, sick_rate_before: float) -> None:
    """Takes back what the last judgement cut from a node that is still worth calling. One that was not shed before is
    not shed after it either: left on hold, its load would not steer it until the end of the spike, and a full slow node
    kept its share (``promotion-spike``, success of what is admitted: 97.9 and 98.3 %)."""
    if member.sick_rate >= _EVEN and not member.is_ejected:
        member.kept = max(member.kept, kept_before)
        member.sick_rate = max(member.sick_rate, sick_rate_before)
        if member.kept >= 1.0 and not member.is_warming:
            # Not shed after all: so it is steered by its load like the others, and needs no probes.
            member.deepest = 1.0
            member.held_until_s = -math.inf
            member.probe_at_s = member.probe_every_s = math.inf
            member.reason = NO_REASON
