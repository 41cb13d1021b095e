"""How many calls a provider has under way at most: found from latencies, and not configured.

A fixed limit is right for one model on one machine on the day it was measured. This one follows the Vegas form of
Netflix's concurrency-limits (after TCP Vegas, Brakmo and Peterson 1995): by Little's law a system with N calls under
way, of which each takes W and would take W0 without waiting, has

    queue = N * (1 - tolerance * W0 / W)

calls that wait. While fewer than alpha wait, capacity is left and the limit grows; when more than beta wait, and they
wait longer than SLACK_S, further calls would only add latency, and it falls. So throughput is full, and the wait
bounded by beta calls or SLACK_S, whichever is longer, whatever is offered. (Without the slack a method of 1 ms would
shed a burst that is over in 20 ms.)

Gradient2, the other form considered, compares a short with a long average of W itself. Under a steady overload the long
average becomes the overloaded latency, the gradient becomes 1, and the limit grows by its queue allowance with every
update: it forgets what unloaded was (tests/unit/guard/test_concurrency.py has it beside this one).

Where the provider sees when a call began to *run* (a pool of threads), W0 is measured in every call: ``ran_s``. Nothing
then has to be guessed, and the tolerance is 1. Where it does not (coroutines), W0 has to be learned, and four things
differ from Netflix's Vegas, each because calls are not packets of one size:

* latencies are averaged over windows of as many calls as are under way, and at least WINDOW_SAMPLES. The least single
  latency, Vegas' W0, would be that of the one trivial call, by which everything else seems to queue; and the least
  *average* falls for ever, by chance: with 64 exponential calls at a time it closed the limit to 16.
* W0 follows the average while the limit is far: then nothing waits for it.
* W > W0 by less than TOLERANCE is noise, not a queue.
* while calls are refused, W0 is measured by *probing*: a quarter of the limit, until the calls that began in it have
  ended. (Not those that ended in it: the first to end are the short ones.) Netflix resets W0 to the latency of the
  moment; under overload that is the overloaded one. A node that refuses nobody never refuses for a probe; they are 1 s
  apart at first, then doubling to PROBE_EVERY_S. A probe without the smaller limit gives the first W0.

Class 0 has room of its own, FIRST_CLASS times the limit (``admits``): it is served first, so it waits for its own kind
alone, and what others have filled is no reason to refuse it. Classes from LOW on stop short of the limit. And a limit
is never below ``least``: where it is known how many calls can truly run together, only the length of the queue is to be
found.

Pure: time is an argument, and each sample is one call's latency and one of three endings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from steelyard.errors import ConfigError

# Over fewer the mean of latencies as uneven as exponential ones is off by more than a quarter.
WINDOW_SAMPLES = 16
# A window is closed at the latest then, so that a slow method is not judged by last minute's load.
WINDOW_S = 1.0
# A wait that is not worth a refusal: five to ten times CoDel's target for a packet, for a call is as much longer.
SLACK_S = 0.05
TOLERANCE = 1.5  # Gradient2's rttTolerance
FOLLOW = 0.1  # the weight of one window in W0
FIRST_PROBE_S = 1.0
PROBE_EVERY_S = 10.0
PROBE_PART = 0.25
PROBE_SAMPLES = 32
BACKOFF = 0.9  # after a drop, as in Netflix's AIMD
FIRST_CLASS = 4  # a burst of the most important waits so many times longer before one of them is refused
RESERVED = 0.1  # the part of the limit that classes from LOW on leave free
LOW = 2


class Ending(Enum):
    """SUCCESS: its latency counts. IGNORED: it says nothing (the caller left, a refusal further in, an answer that is
    an error). DROPPED: it met a limit or its deadline on the way: the limit is too high."""

    SUCCESS = "success"
    IGNORED = "ignored"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencySettings:
    """``start``: the limit before anything is known [20, Netflix's]. ``least``, ``most``: its bounds [1, 1000].
    ``alpha``, ``beta``: calls that may wait before the limit stops growing [6] and begins to fall [12], where they
    wait longer than half of, or all of, SLACK_S. ``servers``: calls that run together, where that is known [None]: with
    a first ``ran_s`` the limit is then at most servers + max(beta, what servers do in SLACK_S), so that an overload
    that comes over a quiet node does not begin with ``start`` calls in line. Netflix has 3 log10(limit) and 6
    log10(limit); a lone server at 90 % load would then refuse 7 % of Poisson arrivals (M/M/1/K, K = 8), with 12 it is 3
    %, for a wait of at most 12 services."""

    start: int = 20
    least: int = 1
    most: int = 1000
    alpha: float = 6.0
    beta: float = 12.0
    servers: int | None = None

    def __post_init__(self) -> None:
        for name in ("start", "least", "most"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000:
                raise ConfigError(f"ConcurrencySettings.{name}: a whole number from 1 to 1000000, not {value!r}")
        if self.servers is not None and not (isinstance(self.servers, int) and self.servers >= 1):
            raise ConfigError(f"ConcurrencySettings.servers: None, or a whole number from 1 on, not {self.servers!r}")
        if not self.least <= self.start <= self.most:
            found = f"{self.least}, {self.start}, {self.most}"
            raise ConfigError(f"ConcurrencySettings: least <= start <= most, not {found}")
        if not 0 < self.alpha < self.beta < math.inf:
            raise ConfigError(f"ConcurrencySettings: 0 < alpha < beta, not {self.alpha!r}, {self.beta!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyStatistics:
    """``limit`` and ``in_flight`` in calls, ``queue`` the calls estimated to wait, latencies in seconds (None: not
    measured yet), ``admitted`` and ``refused`` since the start."""

    limit: int
    in_flight: int
    queue: float
    unloaded_s: float | None
    latency_s: float | None
    admitted: int
    refused: int


class ConcurrencyLimit:
    """``if limit.admits(priority): mark = limit.began(priority)``, and ``limit.ended(mark, ...)`` once for each."""

    def __init__(self, settings: ConcurrencySettings | None = None) -> None:
        self.settings = settings or ConcurrencySettings()
        self.in_flight = 0
        self._first_class = 0
        self.admitted = 0
        self.refused = 0
        self._limit = float(self.settings.start)
        self._unloaded_s: float | None = None
        self._latency_s: float | None = None
        self._queue = 0.0
        self._wait_s = 0.0
        self._is_growing_fast = True
        self._probe: _Probe | None = _Probe(self.settings.start, PROBE_SAMPLES, math.inf)
        self._probes = 1
        self._refused_before = 0
        self._probe_after_s = FIRST_PROBE_S
        self._probe_at_s: float | None = None
        self._window_began_s: float | None = None
        self._samples = self._drops = self._ran = self._peak = 0
        self._sum_s = self._ran_s = 0.0

    @property
    def limit(self) -> int:
        """Calls that may be under way now."""
        return int(self._limit) if self._probe is None else self._probe.limit

    def admits(self, priority: int = 1) -> bool:
        """Whether a call of *priority* may begin now. Counts those that may not."""
        if priority <= 0:
            # The limit and not a probe's smaller one: probes are not at the cost of the most important.
            is_room = self._first_class < FIRST_CLASS * int(self._limit)
            self.refused += not is_room
            return is_room
        limit = self.limit
        is_low = priority >= LOW and limit > 1
        room = limit - max(1, int(limit * RESERVED)) if is_low else limit
        if self.in_flight < room:
            return True
        self.refused += 1
        return False

    def began(self, priority: int = 1) -> int:
        """A call is let in. The answer belongs to ``ended``."""
        probe = self._probe
        mark = 0
        # Those that began while the old queue was still there would measure that.
        if probe is not None and self.in_flight < probe.limit and probe.to_begin:
            probe.to_begin -= 1
            mark = 2 * self._probes
        if priority <= 0:
            mark += 1
            self._first_class += 1
        self.in_flight += 1
        self.admitted += 1
        self._peak = max(self._peak, self.in_flight)
        return mark

    def ended(self, mark: int, ending: Ending, latency_s: float, now_s: float, *, ran_s: float | None = None) -> None:
        """One that began is over, after *latency_s* from ``began``, of which it ran *ran_s* (None: not known)."""
        self._peak = max(self._peak, self.in_flight)
        self.in_flight -= 1
        self._first_class -= mark & 1
        if ran_s is not None and self._unloaded_s is None:
            self._unloaded_s, self._probe = ran_s, None  # nothing to find out
            self._limit = min(self._limit, self._most())
        if self._probe is not None:
            self._probed(mark, ending, latency_s, now_s)
            return
        if ending is Ending.IGNORED:
            return
        if self._window_began_s is None:
            self._window_began_s = now_s
        if ending is Ending.DROPPED:
            self._drops += 1
        else:
            self._samples += 1
            self._sum_s += latency_s
            if ran_s is not None:
                self._ran += 1
                self._ran_s += ran_s
        count = self._samples + self._drops
        is_long = count > 1 and now_s - self._window_began_s >= WINDOW_S
        if is_long or count >= max(WINDOW_SAMPLES, self._peak):
            self._close_window(now_s)

    def retry_after_s(self) -> float:
        """When a refused caller might try again: in the time that what is under way here takes, 1 ms to 1 s."""
        latency_s = self._latency_s if self._latency_s is not None else 0.05
        return min(1.0, max(0.001, latency_s))

    def statistics(self) -> ConcurrencyStatistics:
        return ConcurrencyStatistics(
            limit=self.limit,
            in_flight=self.in_flight,
            queue=self._queue,
            unloaded_s=self._unloaded_s,
            latency_s=self._latency_s,
            admitted=self.admitted,
            refused=self.refused,
        )

    def _open_window(self, now_s: float | None) -> None:
        self._window_began_s = now_s
        self._samples = self._drops = self._ran = 0
        self._sum_s = self._ran_s = 0.0
        self._peak = self.in_flight

    def _close_window(self, now_s: float) -> None:
        drops, peak = self._drops, self._peak
        is_measured = 2 * self._ran > self._samples
        if self._samples:
            mean_s = self._sum_s / self._samples
            self._latency_s = mean_s
            if is_measured:
                self._unloaded_s = self._ran_s / self._ran
            else:
                self._learn(mean_s, peak)
            tolerance = 1.0 if is_measured else TOLERANCE
            unloaded_s = self._unloaded_s or 0.0
            self._wait_s = max(0.0, mean_s - tolerance * unloaded_s)
            self._queue = peak * self._wait_s / mean_s if mean_s > 0 else 0.0
        self._open_window(now_s)
        self._adapt(drops, peak)
        if not is_measured:
            self._plan_probe(now_s)

    def _learn(self, mean_s: float, peak: int) -> None:
        if self._unloaded_s is None:
            self._unloaded_s = mean_s
        elif 2 * peak < self._limit:
            self._unloaded_s += FOLLOW * (mean_s - self._unloaded_s)

    def _adapt(self, drops: int, peak: int) -> None:
        settings, limit = self.settings, self._limit
        if drops:
            self._is_growing_fast = False
            limit *= BACKOFF
        elif self._queue > settings.beta and self._wait_s > SLACK_S:
            self._is_growing_fast = False
            # Half of what is too much: the queue was measured at its peak, and the next window will tell the rest.
            most = max(settings.beta, self._queue * SLACK_S / self._wait_s)
            limit = min(limit, peak) - max(1.0, (self._queue - most) / 2)
        elif self._queue >= settings.alpha and self._wait_s >= SLACK_S / 2:
            self._is_growing_fast = False
        elif 2 * peak >= limit:  # a limit that nobody comes near cannot be judged
            is_fast = self._is_growing_fast and self._queue < settings.alpha / 2
            limit = 2 * limit if is_fast else limit + max(1.0, limit / 8)
        self._limit = min(self._most(), max(float(settings.least), limit))

    def _most(self) -> float:
        settings = self.settings
        if settings.servers is None or not self._unloaded_s:
            return float(settings.most)
        waiting = max(settings.beta, settings.servers * SLACK_S / self._unloaded_s)
        return min(float(settings.most), settings.servers + waiting)

    def _plan_probe(self, now_s: float) -> None:
        was_refused, self._refused_before = self.refused > self._refused_before, self.refused
        if not was_refused:
            self._probe_at_s = None
            return
        if self._probe_at_s is None:
            self._probe_at_s = now_s + self._probe_after_s
        if now_s < self._probe_at_s:
            return
        self._probe_after_s = min(PROBE_EVERY_S, 2 * self._probe_after_s)
        self._probe_at_s = None
        self._probes += 1
        limit = max(self.settings.least, math.ceil(self._limit * PROBE_PART))
        self._probe = _Probe(limit, max(PROBE_SAMPLES, 2 * limit), now_s + PROBE_EVERY_S)

    def _probed(self, mark: int, ending: Ending, latency_s: float, now_s: float) -> None:
        probe = self._probe
        assert probe is not None
        if mark >> 1 == self._probes:
            probe.to_end -= 1
            if ending is Ending.SUCCESS:
                probe.samples += 1
                probe.sum_s += latency_s
        if probe.to_end and now_s < probe.ends_at_s:
            return
        if probe.samples >= WINDOW_SAMPLES // 2:
            self._unloaded_s = probe.sum_s / probe.samples
        self._probe = None
        self._open_window(now_s)


class _Probe:
    """``to_begin`` calls are measured from their beginning; when all have ended it is over."""

    __slots__ = ("ends_at_s", "limit", "samples", "sum_s", "to_begin", "to_end")

    def __init__(self, limit: int, calls: int, ends_at_s: float) -> None:
        self.limit = limit
        self.to_begin = self.to_end = calls
        self.ends_at_s = ends_at_s
        self.samples = 0
        self.sum_s = 0.0
