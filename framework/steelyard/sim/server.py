"""Server: one node's queue, cores, cache and troubles.

All calls in service progress at one rate, so each is given a finishing point on the node's own *work clock*
(``_worked`` = integral of the rate) when it starts, and the order in which they finish never changes, however often
the rate does: a call more in a shared core, a neighbour, a pause. One pending event per node is enough. It may come
too early (the rate has fallen since) and is then set anew; it is never too late, because whatever raises the rate sets
it anew at once.

    fifo, slots = cores           rate(n) = speed
    sharing, many slots           rate(n) = speed * min(1, cores / n)
    batching on a GPU             rate(n) = speed / (1 + marginal * (n - 1))
"""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import lru_cache
from heapq import heappop, heappush
from math import ceil, inf
from typing import Any

from steelyard.balance import LatencyByLoad
from steelyard_registry.node import Hardware, Node

from .call import Call, Ending
from .kernel import Kernel
from .scenario import NodeGroup, parallel

_OK, _ERROR = Ending.OK, Ending.ERROR
_ALL_AT_ONCE = 1 << 30
_MOST_TOLD = 1.5  # a sampler says no more than what is believed of it (balance.load)
_THROTTLE_S = 0.1  # the kernel's default cfs_period_us


class Server:
    """``accept`` takes a call; its client hears of it by ``client.answered``. Counters only ever grow; the recorder
    takes differences. ``busy_s`` is the integral of utilization: 1.0 is all that was allotted; a burst may exceed it.
    """

    # Slots: with more than thirty attributes the interpreter's fast look-up in instances is off.
    __slots__ = (
        "_at_s",
        "_budget_s",
        "_cache",
        "_cores",
        "_count",
        "_dice",
        "_due_s",
        "_events",
        "_kernel",
        "_load",
        "_loads",
        "_number",
        "_rate",
        "_rates",
        "_running",
        "_slots",
        "_speed",
        "_tabled",
        "_waiting",
        "_wakes",
        "_worked",
        "busy_s",
        "fail_cost",
        "fail_rate",
        "group",
        "hit_cost",
        "hits",
        "in_flight",
        "is_down",
        "is_paused",
        "is_throttled",
        "latencies",
        "misses",
        "node",
        "resource",
        "sent",
        "served",
        "slowness",
        "stolen",
        "taken",
        "watched",
    )

    def __init__(self, kernel: Kernel, group: NodeGroup, number: int, dice: Any) -> None:
        self.group = group
        self.node = _node(group, number)
        self.resource = group.reports_as or group.kind
        self.sent = self.taken = self.served = self.hits = self.misses = 0
        self.in_flight = 0
        self.busy_s = 0.0
        self.watched = False
        self.latencies: LatencyByLoad | None = None  # kept where somebody probes
        self._kernel = kernel
        self._events, self._number = kernel.events, kernel.number
        self._wakes = self._wake  # bound once: every event holds it
        self._dice = dice
        self._slots = group.slots or _default_slots(group)
        self._running: list[tuple[float, int, Call]] = []
        self._waiting: deque[Call] = deque()
        self._cache: OrderedDict[int, None] | None = OrderedDict() if group.cache_keys else None
        self._count = 0
        self._worked = 0.0
        self._at_s = 0.0
        self._rate = 0.0
        self._load = 0.0
        self._due_s = inf
        self._cores = group.cores
        # Troubles: each kept by itself, because they may overlap.
        self.fail_rate = 0.0
        self.fail_cost = 0.0
        self.hit_cost = 1.0
        self.slowness = 1.0
        self.stolen = 0.0
        self.is_paused = False
        self.is_down = False
        self.is_throttled = False
        self._budget_s = inf
        if group.quota is not None:
            self._budget_s = group.quota * _THROTTLE_S
            kernel.every(_THROTTLE_S, _THROTTLE_S * dice(), self._refill)
        self._set_tables()

    # --- calls --------------------------------------------------------------------------------------------------

    def accept(self, call: Call) -> None:
        """Run *call*, let it wait, or turn it away."""
        if call.is_over:  # its deadline passed on the way
            return
        self.sent += 1
        if self.is_down:
            call.client.answered(call, Ending.TRANSPORT, None)
            return
        self.taken += 1
        if self.latencies is not None:
            call.arrived_at_s, call.met = self._kernel.now_s, self.in_flight
        if len(self._running) < self._slots:
            self.in_flight += 1
            self._start(call)
        elif len(self._waiting) < self.group.queue_limit:
            self.in_flight += 1
            self._waiting.append(call)
        else:
            call.client.answered(call, Ending.OVERLOAD, None)

    def _start(self, call: Call) -> None:
        work_s = call.work_s
        if self._cache is not None and call.key >= 0:
            work_s *= self._look_up(self._cache, call.key)
        if self.fail_rate:
            call.fails = self._dice() < self.fail_rate
            if call.fails:
                work_s *= self.fail_cost
        running = self._running
        # ``_advance`` and ``_set_rate`` written out for the usual case: this and ``_wake`` are half of a simulation.
        now_s = self._kernel.now_s
        elapsed_s = now_s - self._at_s
        worked = self._worked = self._worked + elapsed_s * self._rate
        self.busy_s += elapsed_s * self._load
        if self._budget_s is not inf:
            self._budget_s -= elapsed_s * min(len(running), self._cores) * (self._rate > 0)
        self._at_s = now_s
        self._count = number = self._count + 1
        heappush(running, (worked + work_s, number, call))
        count = len(running)
        if count >= self._tabled:
            self._set_rate()
            return
        rate = self._rate = self._rates[count] * self._speed
        self._load = self._loads[count]
        due_s = now_s + (running[0][0] - worked) / rate
        if due_s < self._due_s:
            self._due_s = due_s
            heappush(self._events, (due_s, self._number(), self._wakes, due_s))

    def _look_up(self, cache: OrderedDict[int, None], key: int) -> float:
        if key in cache:
            cache.move_to_end(key)
            self.hits += 1
            return self.hit_cost
        self.misses += 1
        cache[key] = None
        if len(cache) > self.group.cache_keys:
            cache.popitem(last=False)
        return 1.0

    def _wake(self, due_s: float) -> None:
        """The pending event: something may have finished, or the quota may be used up."""
        if due_s != self._due_s:
            return  # set anew since
        self._due_s = inf
        running = self._running
        now_s = self._kernel.now_s
        elapsed_s = now_s - self._at_s
        worked = self._worked = self._worked + elapsed_s * self._rate
        self.busy_s += elapsed_s * self._load
        if self._budget_s is not inf:
            self._budget_s -= elapsed_s * min(len(running), self._cores) * (self._rate > 0)
        self._at_s = now_s
        reach = worked + 1e-12 + worked * 1e-15
        # Nothing that an answer leads to comes back here at once: what follows from it are events.
        while running and running[0][0] <= reach:
            call = heappop(running)[2]
            self.in_flight = in_flight = self.in_flight - 1
            self.served += not call.fails
            if self.latencies is not None:
                self.latencies.observe(call.met, now_s - call.arrived_at_s)
            if not call.is_over:
                call.client.answered(call, _ERROR if call.fails else _OK, in_flight)
        waiting = self._waiting
        while waiting and len(running) < self._slots:
            call = waiting.popleft()
            if call.is_over:  # its deadline came with it, so nobody works for it any more
                self.in_flight -= 1
            else:
                self._start(call)
        count = len(running)
        if not 0 < count < self._tabled:
            self._set_rate()
            return
        rate = self._rate = self._rates[count] * self._speed
        self._load = self._loads[count]
        due_s = now_s + (running[0][0] - worked) / rate
        if due_s < self._due_s:
            self._due_s = due_s
            heappush(self._events, (due_s, self._number(), self._wakes, due_s))

    # --- the work clock -----------------------------------------------------------------------------------------

    def _advance(self) -> None:
        now_s = self._kernel.now_s
        elapsed_s = now_s - self._at_s
        self._worked += elapsed_s * self._rate
        self.busy_s += elapsed_s * self._load
        if self._budget_s is not inf:
            self._budget_s -= elapsed_s * min(len(self._running), self._cores) * (self._rate > 0)
        self._at_s = now_s

    def _set_rate(self) -> None:
        """The rate for what runs now, and the event for what happens next. Call after ``_advance``."""
        running = self._running
        count = len(running)
        if not count or self.is_paused or self.is_throttled:
            self._rate = 0.0
            # A stopped process uses nothing; a throttled one has used its quota already.
            self._load = 0.0
            self._due_s = inf
            return
        rates = self._rates
        rate = self._rate = (rates[count] if count < len(rates) else self._rate_of(count)) * self._speed
        self._load = self._loads[count] if count < len(self._loads) else self._loads[-1]
        due_s = self._at_s + (running[0][0] - self._worked) / rate
        if self._budget_s is not inf:
            due_s = min(due_s, self._at_s + max(0.0, self._budget_s) / min(count, self._cores))
            if self._budget_s <= 1e-9:
                self.is_throttled = True
                self._set_rate()
                return
        if due_s < self._due_s:
            self._due_s = due_s
            heappush(self._events, (due_s, self._number(), self._wakes, due_s))

    def changed(self) -> None:
        """A trouble or a neighbour came or went: the rate is another from now on."""
        self._advance()
        self._speed = self.group.speed * (1.0 - self.stolen) / self.slowness
        self._due_s = inf
        self._set_tabled()
        self._set_rate()

    def set_cores(self, cores: float) -> None:
        self._advance()
        self._cores = cores
        self._set_tables()
        self.changed()

    def _set_tables(self) -> None:
        group = self.group
        self._speed = group.speed
        marginal = group.marginal if group.discipline == "batching" else None
        self._rates, self._loads = _tables(self._cores, min(self._slots, 256), marginal, parallel(group))
        self._set_tabled()

    def _set_tabled(self) -> None:
        """Up to how many calls the tables say all; with a quota, or in a pause, they never do."""
        self._tabled = 0 if self.is_paused or self._budget_s is not inf else len(self._rates)

    def _rate_of(self, count: int) -> float:
        if self.group.discipline == "batching":
            return 1.0 / (1.0 + self.group.marginal * (count - 1))
        return min(1.0, self._cores / count)

    def _refill(self) -> None:
        assert self.group.quota is not None
        self._advance()
        # What was overdrawn within an event's precision is not carried over; unused quota is not saved up.
        self._budget_s = self.group.quota * _THROTTLE_S
        self.is_throttled = False
        self._due_s = inf
        self._set_rate()

    # --- troubles -----------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """The process is gone, with everything it had; until ``restart`` connections are refused."""
        self._advance()
        self.is_down = True
        lost = [call for _, _, call in self._running] + list(self._waiting)
        self._running.clear()
        self._waiting.clear()
        self.in_flight = 0
        if self._cache is not None:
            self._cache.clear()
        self._set_rate()
        for call in lost:
            if not call.is_over:
                call.client.answered(call, Ending.TRANSPORT, None)

    def restart(self) -> None:
        self.is_down = False

    def utilization(self, busy_s: float, elapsed_s: float) -> float:
        """What a sampler on the node would say of an interval in which ``busy_s`` grew by so much."""
        level = min(_MOST_TOLD, busy_s / elapsed_s) if elapsed_s > 0 else 0.0
        if self.group.saturates != 1.0:
            level = 1.0 - (1.0 - min(1.0, level)) ** self.group.saturates
        return level

    def busy_until_now(self) -> float:
        self._advance()
        return self.busy_s


@lru_cache(maxsize=512)
def _tables(cores: float, slots: int, marginal: float | None, allotted: float) -> tuple[list[float], list[float]]:
    """Rate of each call, and utilization, by how many calls run. A GPU's utilization is the share of its best
    throughput; a CPU's is the busy part of what it was allotted."""
    counts = range(max(slots, ceil(cores)) + 1)
    if marginal is not None:
        rates = [1.0, *(1.0 / (1.0 + marginal * (count - 1)) for count in counts[1:])]
        return rates, [min(1.0, count * rate / allotted) for count, rate in zip(counts, rates, strict=True)]
    rates = [1.0, *(min(1.0, cores / count) for count in counts[1:])]
    return rates, [min(float(count), cores) / allotted for count in counts]


def _default_slots(group: NodeGroup) -> int:
    if group.discipline == "sharing":
        return _ALL_AT_ONCE
    return 16 if group.discipline == "batching" else ceil(group.cores)


def _node(group: NodeGroup, number: int) -> Node:
    return Node(
        interface="sim.Service",
        host=f"{group.name}-{number}",
        port=1,
        weight=group.weight,
        zone=group.zone,
        hardware=Hardware(kind=group.kind, cores=group.cores, quota=group.quota),
    )
