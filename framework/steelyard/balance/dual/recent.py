"""Memory: one of a pick's choices is the node with the best of the newest news.

What is known of a queue is what the node's last reply said. A hundred consumers before a hundred nodes hear of each
once in a second or two, and four nodes drawn are four old stories: a neighbour that comes back fills a queue in half of
that time. But news is coming in all the time, from those nodes that have just replied. So of the replies of the last
second the one that told of the shortest queue for its share is kept, as long as no better one comes, and its node is
the last of the choices. It costs nobody a message (Prequal probes three nodes for every call, to the same end), each
consumer hears something else, so they do not move together, and a call that is sent there lengthens the known queue.
(Mitzenmacher, Prabhakar and Shah 2002 show for exact queues that one draw and the best of the last choices are better
than two draws.)

Nobody is preferred for being idle: the draw gives way only where the remembered node has the shorter queue per share
before the call, q / p, *and* with it, (q + 1) / p. By the first alone an empty node with a hundredth of the share, one
that is slow, say, would win every time. And a node that failed one call in ten lately is not remembered: failing is
little work too, and calls tried a second time would find the sick nodes idle (``masking`` at 60 %: success 93.4 and
95.4 %).

A consumer that hears of every node more than once a second anyway does without: its drawn nodes are news as well, and
the best of a second's replies is then the shortest queue of a fleet, whatever the shares say. Latency is a little
better for it and loads are less even. Simulated, seed 1, with memory and without: ``published-2024-06``, 2.9 replies of
each node a second, p99 482 and 544 ms, mean utilization when the first nodes are full .798 and .892 (.798 with the best
of 16 replies, too); ``herd`` with one consumer, spread .149 and .164, p99 160 and 172; ``slow-pair`` p99 172 and 215.

Simulated, three draws and this against four draws, p99 in ms, seed 1: ``prequal-ramp`` 356 and 294, 707 and 388, 1,124
and 507, 3,403 and 857 (success 99.70 and 99.99 %; without load reports in proportion 5,000 and 94.4 % for four draws);
``herd`` with 1, 40, 200 and 1,000 consumers 167 and 160, 339 and 227, 515 and 401, 1,410 and 1,005; ``slow-pair`` 201
and 172; ``sparse-calls`` 3,021 and 2,690. At 1.74: the last reply instead of the best of a second 1,134, the best of
.2 s 833; two draws and this 815, and with a second memory 795, but ``sparse-calls`` 3,091; known queues that rise to
the mean with a half-life of 2 s 970.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ..draw import Dice
from .member import Member

_KEPT_S = 1.0
_MOST_NEWS_PER_S = 1.5
_SUCCESSES = 10  # for each failure in the window, at least


def is_news_scarce(calls_per_s: float, nodes: int) -> bool:
    """Whether a consumer with so many calls a second knows so little of so many *nodes* that memory is worth it."""
    return calls_per_s < _MOST_NEWS_PER_S * nodes


class Recent:
    """``parts`` are the plan's, by place; places are the members' own, so ``forget`` when they change."""

    __slots__ = ("_member", "_until_s")

    def __init__(self) -> None:
        self._member: Member | None = None
        self._until_s = -math.inf

    def heard(self, member: Member, parts: Sequence[float], now_s: float) -> None:
        """*member*, which has a place, has just replied."""
        window, known = member.window, self._member
        if window.failed * _SUCCESSES > window.ok:
            return
        if (
            known is not None
            and known is not member
            and now_s < self._until_s
            and (known.queue + 1.0) * parts[member.place] <= (member.queue + 1.0) * parts[known.place]
        ):
            return
        self._member, self._until_s = member, now_s + _KEPT_S

    def or_better(
        self, drawn: Member | None, parts: Sequence[float], dice: Dice, excluded: Collection[str] = ()
    ) -> Member | None:
        """The remembered node where it is better than *drawn*."""
        known = self._member
        if known is None or drawn is None or (excluded and known.identity in excluded):
            return drawn
        queue, part, known_queue, known_part = drawn.queue, parts[drawn.place], known.queue, parts[known.place]
        if (
            known_queue * part < queue * known_part
            and (known_queue + 1.0) * part < (queue + 1.0) * known_part
            and (known.passes >= 1.0 or dice() < known.passes)
        ):
            return known
        return drawn

    def forget(self) -> None:
        self._member = None
