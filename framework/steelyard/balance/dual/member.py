"""Member: a Candidate with the law's own state.

Written by tick(), report() and ended(); a pick only reads it, but for ``probe_at_s``, which it moves when it lets a
probe through.
"""

from __future__ import annotations

import math

from steelyard_registry.node import Node

from ..candidate import Candidate
from ..hashing import hash_key
from ..statistics import Reason

NO_REASON = Reason()
# Until a node's own noise is known: 10 % of the load, as a second of some hundred calls has.
_FIRST_NOISE = 0.01
_NOISE_GAIN = 0.1


class Member(Candidate):
    """A node under the dual-objective law.

    Utilization: ``log_w`` is the log of the weight ratio w, and ``log_w_then`` what it was when the node's reports
    began to repeat themselves. ``is_off_domain`` remembers the hysteresis, ``off_since_s`` when the node last left the
    domain with a neutral weight. ``held_until_s``: until then its load is not believed to show its full share; infinite
    while it is shed or warming.

    Evidence: ``reports`` since the last step said in sum ``excess_sum`` more than the mean of all nodes, which was in
    sum ``mean_sum``; ``noise`` is the variance of one such excess about what it measures.

    Latency: its reports tell of ``told_in_flight`` calls and of ``answered_per_s``, as ``latency.blended``, and did so
    last at ``told_at_s``; ``pressure`` is what its utilization counts as, seen how long its calls take.

    Availability: ``kept`` is 1 - refuse, in [floor, 1]; below 1 the node is *shed*. ``deepest`` is the lowest ``kept``
    since it was shed. ``sick_rate`` is the success rate it was shed for, ``log_odds`` the evidence since for "healthy"
    against "as sick as before", ``new_ok`` and ``new_failed`` the outcomes since the last tick. ``base`` is its base
    share. ``reason`` says why it is shed or ejected.

    Transport: ``transport_failures`` in a row; ``ejections`` counts failed probes for the back-off; ``is_ejected``
    until a probe succeeds. ``is_blocked``: ejected, and no panic. ``passes`` is what a pick without a key looks at: the
    part of its draws that count, 1 but for a node that is to drain (see ``latency``), and 0 for a blocked one.

    ``is_doubted``: its last call failed, or none has succeeded yet.

    ``probe_at_s``: when a call that the plan would refuse may go through after all; infinite for nodes not shed.
    """

    __slots__ = (
        "answered_per_s",
        "base",
        "deepest",
        "ejections",
        "excess",
        "excess_sum",
        "held_until_s",
        "is_blocked",
        "is_doubted",
        "is_ejected",
        "is_off_domain",
        "is_warming",
        "kept",
        "log_odds",
        "log_w",
        "log_w_then",
        "mean_sum",
        "new_failed",
        "new_ok",
        "noise",
        "observed_at_s",
        "off_since_s",
        "passes",
        "place",
        "pressure",
        "probe_at_s",
        "probe_every_s",
        "reason",
        "reports",
        "salt",
        "sick_rate",
        "told_at_s",
        "told_in_flight",
        "transport_failures",
        "warm_from_s",
    )

    def __init__(self, node: Node, now_s: float, *, is_warming: bool) -> None:
        super().__init__(node, now_s)
        self.salt = hash_key(self.identity)
        self.place = -1  # in the plan's sequences; -1: takes no traffic
        self.base = 0.0
        self.log_w = self.log_w_then = 0.0
        self.is_off_domain = False
        self.excess = self.excess_sum = self.mean_sum = 0.0
        self.reports = 0
        self.noise = 0.0
        self.pressure = 0.0
        self.told_in_flight = self.answered_per_s = 0.0
        self.told_at_s = -math.inf
        self.observed_at_s = -math.inf
        self.off_since_s: float | None = None
        self.held_until_s = -math.inf
        self.kept = 1.0
        self.deepest = 1.0
        self.sick_rate = 1.0
        self.log_odds = 0.0
        self.new_ok = 0
        self.new_failed = 0
        self.transport_failures = 0
        self.ejections = 0
        self.is_ejected = False
        self.is_blocked = False
        self.passes = 1.0
        self.is_doubted = True
        self.probe_at_s = math.inf
        self.probe_every_s = math.inf
        self.reason = NO_REASON
        self.is_warming = False
        self.warm_from_s = now_s
        if is_warming:
            self.warm(now_s)

    def block(self, is_blocked: bool) -> None:
        self.is_blocked = is_blocked
        self.passes = 0.0 if is_blocked else 1.0

    def warm(self, now_s: float) -> None:
        """Start the ramp."""
        self.is_warming = True
        self.warm_from_s = now_s
        self.held_until_s = math.inf

    def observe(self, load: float, mean: float, at_s: float, least_s: float, most: int) -> None:
        """A report, measured at *at_s*, said *load*, where the nodes' *mean* is. Reports less than *least_s* apart
        measure the same second and count as one; after *most* of them the oldest fade.

        The noise is half the mean square of the difference of successive reports (von Neumann 1941): a level that
        drifts, or is simply wrong, does not count as noise. Both are kept in units of load and divided when they are
        used: in the first second of traffic the mean is next to nothing, and a report relative to it was forty times
        too much, which counted as evidence, and as noise, for half a minute.
        """
        if at_s - self.observed_at_s < least_s:
            return
        excess = load - mean
        if self.observed_at_s > -math.inf:
            change = excess - self.excess
            self.noise += _NOISE_GAIN * (0.5 * change * change - self.noise)
        else:
            self.noise = _FIRST_NOISE * mean * mean
        self.observed_at_s = at_s
        self.excess = excess
        if self.reports < most:
            self.reports += 1
            self.excess_sum += excess
            self.mean_sum += mean
        else:
            self.excess_sum += excess - self.excess_sum / most
            self.mean_sum += mean - self.mean_sum / most

    def forget(self) -> None:
        """What was observed has had its effect, or says nothing any more."""
        self.reports = 0
        self.excess_sum = self.mean_sum = 0.0

    def hold(self, now_s: float, hold_s: float) -> None:
        """Do not steer by load for *hold_s*, and then by what was measured in its last second."""
        self.forget()
        self.held_until_s = now_s + hold_s
        self.load.restart(now_s + max(0.0, hold_s - 1.0))

    @property
    def is_shed(self) -> bool:
        """Below the availability target, or not yet fully back."""
        return self.kept < 1.0 or self.is_ejected
