"""Latency as an objective beside utilization: what a node's load counts as, seen how long calls take there.

Utilization has two blind spots. A full node says 1.0 however long its queue is, and one that may use what its
neighbours leave idle says more than 1.0 *because* there is room: both look the same, or the wrong way round. And a node
whose every call takes sixteen times as long is at its mean utilization a part of every p99. So, with W the time that a
call takes at a node, over the calls' mean time in the fleet,

    utilization below ``FULL``      load * max(1, W / slow)       slow = 4: unequal hardware is no fault
    at or above it                  min(load, 1) * W              within [1/2, 2]; [1, 2] while the mean node has room

W is told and not measured: in_flight / answered per second of the node's own report (Little 1961: L = lambda * W).
Every consumer hears of every node once a second that way, however seldom it calls it; its own latencies are too few
from a hundred consumers on. Failures are no answers, so failing fast does not look quick. A report without rates leaves
the load as it is, and so does a consumer whose calls have keys: keys are not moved for a second's queue.

**A moment's count is not how long calls take.** in_flight is one look a second, and a node with one call in flight
shows none, one or three of them. Followed as it is, that noise was larger than the load's own, so that no evidence was
ever enough, and devices of 12 ms counted as four times too slow every few seconds. So W is made of averages
(``blended``). The fleet of ``bench_fleet`` in virtual time, spread of its loads, mean and largest of six seeds: .140
and .198 as told, .053 and .061 averaged (.057, .055 and .053 over 3, 10 and 20 reports).

**A long queue is to drain.** Shares follow within some seconds; a neighbour that comes back fills a queue in one. So a
node that tells of more calls than the mean W explains, and chance on top, takes only a part of its draws until it is
heard of again, such that the excess is gone in ``_DRAIN_S`` (``passing``; it is the load interpretation of Dahlin
2000). All consumers hear of a queue at one moment and move together, so what they do must be in proportion: if such a
report sets the queues that calls are placed by, a long one gets nothing for a second and a short one everything.
Simulated, p99 in ms, seeds 1 and 2: 20 nodes with neighbours and 100 consumers / ``prequal-ramp`` 40 by 40 at .75 and
1.41. Reports that raise queues and lower what they raised 1,856 and 1,817 / 690, 615 / 1,453, 1,342; that only raise
them 668 / 444 / 712 (seed 1); that leave them alone 1,231 / 360 / 730 (seed 1); in proportion 497, 443 / 366 / 757,
929. ``herd`` with 200 consumers 515 (2,000 before; in two seconds 715). Other ways to react faster are worse: weights
of full nodes that follow log W at once, by .25, .5 and 1, at 1.41: 994, 1,312 and 2,388, for they ring.

When it came, together with four choices and reports that raised queues, against utilization, two choices and replies
alone (p99 in ms, seed 1): ``slow-pair`` 398 and 231, ``busy-share`` 758 and 576, ``prequal-ramp`` at 1.41 (40 by 40)
1,693 and 745, ``herd`` (20 nodes, 100 consumers) 1,157 and 602; success of what is admitted in ``promotion-spike`` 96.7
and 98.6 %. With three choices and W from in_flight over the planned share, which needs no rate: 324, 700, 779, 570 and
97.5 %, since what choices have evened out cannot be seen in queues; with rates and three choices 253, 626, 785, 692 and
97.7 %.
"""

from __future__ import annotations

from math import sqrt

# From here on utilization says "full" and no more. ``promotion-spike``: .97 98.4 %, .9 98.6 % of what is admitted
# succeed (a second's measurement of a full node varies by 3 %); ``busy-share`` p99 626 and 576 ms.
FULL = 0.9
_LEAST_FULL, _MOST_FULL = 0.5, 2.0
# A full node whose calls are quick may carry more only where the others are full as well; beside nodes with room it is
# simply too full. Between these mean loads the one becomes the other (``bench_fleet``: a machine with a neighbour stood
# at .84 beside devices at .55, because its calls were quicker than theirs).
_ROOM = 0.75
_MOST_SLOW = 4.0
# The part of a new report in the average, and how far off it must be to be taken as it is: full nodes have to be
# followed at once. ``prequal-ramp``, 40 by 40 at 1.41, seeds 1 and 2, on the way here: all averaged 998 and 1,176 ms,
# from two deviations on 875 and 852, three 953 and 941, four 1,147 and 948.
_BLEND, _PLAIN_SIGMAS = 0.18, 3.0
# A second is what a report is old on average when the next one has had its effect. ``prequal-ramp`` at 1.74: one second
# 3.4 s and 99.70 %, two 3.9 s and 99.61 %.
_DRAIN_S, _DRAIN_SIGMAS = 1.0, 2.0
_LEAST_PASSING = 0.05
_LEAST_RATE = 0.5  # calls/s: a node that answered nothing in a second is not infinitely slow


def seconds(in_flight: float, answered_per_s: float) -> float:
    """How long a call takes, by Little's law."""
    return in_flight / max(answered_per_s, _LEAST_RATE)


def blended(known: tuple[float, float], told: tuple[float, float]) -> tuple[float, float]:
    """(in flight, answered per second) after one more report: an average over some five, since a node with one call in
    flight tells of none, one or three, and a call seems to take nothing or three times as long. What chance cannot
    explain is taken as it is."""
    in_flight, answered_per_s = known
    change = told[0] - in_flight
    is_plain = abs(change) > _PLAIN_SIGMAS * sqrt(max(1.0, in_flight)) + 1.0
    if is_plain or not answered_per_s:
        return told
    return in_flight + _BLEND * change, answered_per_s + _BLEND * (told[1] - answered_per_s)


def passing(in_flight: float, answered_per_s: float, mean_s: float) -> float:
    """Which part of its draws a node is to take for a second: what it has to do beyond the fleet's mean, and beyond
    chance, is to be gone in ``_DRAIN_S``."""
    rate = max(answered_per_s, _LEAST_RATE)
    fair = mean_s * rate
    excess = in_flight - fair - _DRAIN_SIGMAS * sqrt(max(1.0, fair))
    return 1.0 if excess <= 0.0 else max(_LEAST_PASSING, 1.0 - excess / (rate * _DRAIN_S))


def counted(load: float, relative: float, slow: float, mean: float) -> float:
    """What *load* counts as where a call takes *relative* times the fleet's mean, and *slow* times is too long.
    *mean* is the mean utilization."""
    if load >= FULL:
        fullness = min(1.0, max(0.0, (mean - _ROOM) / (FULL - _ROOM)))
        least = 1.0 - (1.0 - _LEAST_FULL) * fullness
        return min(load, 1.0) * min(_MOST_FULL, max(least, relative))
    return load * min(_MOST_SLOW, relative / slow) if relative > slow else load
