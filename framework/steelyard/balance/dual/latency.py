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

Simulated, together with four choices and reports that raise queues, against utilization, two choices and replies alone
(p99 in ms, seed 1): ``slow-pair`` 398 and 231, ``busy-share`` 758 and 576, ``prequal-ramp`` at 1.41 (40 by 40) 1,693
and 745, ``herd`` (20 nodes, 100 consumers) 1,157 and 602; success of what is admitted in ``promotion-spike`` 96.7 and
98.6 %. With three choices and W from in_flight over the planned share, which needs no rate: 324, 700, 779, 570 and
97.5 %, since what choices have evened out cannot be seen in queues; with rates and three choices 253, 626, 785, 692 and
97.7 %.
"""

from __future__ import annotations

# From here on utilization says "full" and no more. ``promotion-spike``: .97 98.4 %, .9 98.6 % of what is admitted
# succeed (a second's measurement of a full node varies by 3 %); ``busy-share`` p99 626 and 576 ms.
FULL = 0.9
_LEAST_FULL, _MOST_FULL = 0.5, 2.0
# A full node whose calls are quick may carry more only where the others are full as well; beside nodes with room it is
# simply too full. Between these mean loads the one becomes the other (``bench_fleet``: a machine with a neighbour stood
# at .84 beside devices at .55, because its calls were quicker than theirs).
_ROOM = 0.75
_MOST_SLOW = 4.0
_LEAST_RATE = 0.5  # calls/s: a node that answered nothing in a second is not infinitely slow


def seconds(in_flight: float, answered_per_s: float) -> float:
    """How long a call takes, by Little's law."""
    return in_flight / max(answered_per_s, _LEAST_RATE)


def counted(load: float, relative: float, slow: float, mean: float) -> float:
    """What *load* counts as where a call takes *relative* times the fleet's mean, and *slow* times is too long.
    *mean* is the mean utilization."""
    if load >= FULL:
        fullness = min(1.0, max(0.0, (mean - _ROOM) / (FULL - _ROOM)))
        least = 1.0 - (1.0 - _LEAST_FULL) * fullness
        return min(load, 1.0) * min(_MOST_FULL, max(least, relative))
    return load * min(_MOST_SLOW, relative / slow) if relative > slow else load
