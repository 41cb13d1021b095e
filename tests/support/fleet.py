"""A small fleet in virtual time: unequal single-queue nodes, one consumer, a policy under test.

Not the simulator (that is a room of its own, later): just enough to see a law act. Calls arrive by a Poisson process
and carry keys with Zipf-like popularity; a node serves one call at a time at its speed; its utilization is the busy
share of the last second, told with lag and noise, as a real reporter's is.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from steelyard.balance import Policy, hash_key
from steelyard.model import LoadReport, Outcome
from steelyard_registry.node import Node


def node(name: str, weight: int = 100, **facts: object) -> Node:
    return Node(interface="test.Fleet", host=name, port=1, weight=weight, **facts)  # type: ignore[arg-type]


@dataclass
class Machine:
    """A node: ``cost_s`` of work per call, done at ``speed`` (1.0: a whole core)."""

    name: str
    speed: float = 1.0
    cost_s: float = 0.01
    fail: float = 0.0  # probability that a call fails
    fail_cost: float = 1.0  # cost of a failing call, relative
    is_down: bool = False  # nothing listens: transport failures at once
    is_silent: bool = False
    resource: str = "cpu"
    free_at_s: float = 0.0
    open: int = 0
    busy: deque[tuple[float, float]] = field(default_factory=deque)

    @property
    def node(self) -> Node:
        return node(self.name)

    def utilization(self, now_s: float) -> float:
        while self.busy and self.busy[0][1] < now_s - 1.0:
            self.busy.popleft()
        return min(1.0, sum(max(0.0, min(end, now_s) - max(start, now_s - 1.0)) for start, end in self.busy))


@dataclass
class Second:
    """What happened in one second of virtual time."""

    sent: dict[str, int]
    failed: int
    calls: int
    load: dict[str, float]

    def share(self, name: str) -> float:
        return self.sent[name] / max(1, sum(self.sent.values()))


class Fleet:
    """Runs one consumer against machines. Deterministic by *seed*."""

    def __init__(
        self,
        policy: Policy,
        machines: list[Machine],
        *,
        seed: int = 1,
        calls_per_s: float = 200.0,
        keys: int | None = 2000,
        zipf: float = 0.0,
        lag_s: float = 1.0,
        noise: float = 0.03,
        tick_phase_s: float = 0.5,
        retries: int = 2,
    ) -> None:
        self.policy = policy
        self.machines = {machine.name: machine for machine in machines}
        self.random = random.Random(seed)
        self.calls_per_s, self.lag_s, self.noise, self.retries = calls_per_s, lag_s, noise, retries
        self._keys = None if keys is None else [hash_key(("user", at)) for at in range(keys)]
        self._popularity = None if keys is None else [1.0 / (at + 1) ** zipf for at in range(keys)]
        self.now_s = 0.0
        self.seconds: list[Second] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._sent = dict.fromkeys(self.machines, 0)
        self._failed = self._calls = 0
        policy.set_nodes([machine.node for machine in machines], 0.0)
        self._at(0.0, self._arrive)
        self._at(tick_phase_s, self._tick)
        self._at(1.0, self._second)
        for machine in machines:
            self._at(self.random.random(), lambda machine=machine: self._report(machine))

    def run(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, action = heapq.heappop(self._events)
            action()
        self.now_s = until_s

    def share(self, name: str, from_s: int, to_s: int) -> float:
        sent = [second.sent for second in self.seconds[from_s:to_s]]
        return sum(second[name] for second in sent) / max(1, sum(sum(second.values()) for second in sent))

    def load_std(self, from_s: int, to_s: int) -> float:
        """The spread over nodes of each node's mean load in a stretch of time."""
        stretch = self.seconds[from_s:to_s]
        means = [sum(second.load[name] for second in stretch) / len(stretch) for name in self.machines]
        centre = sum(means) / len(means)
        return (sum((mean - centre) ** 2 for mean in means) / len(means)) ** 0.5

    # --- events -------------------------------------------------------------------------------------------------

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, action))

    def _arrive(self) -> None:
        self._at(self.now_s + self.random.expovariate(self.calls_per_s), self._arrive)
        self._calls += 1
        key = None if self._keys is None else self.random.choices(self._keys, self._popularity)[0]
        self._send(key, ())

    def _send(self, key: int | None, tried: tuple[str, ...]) -> None:
        candidate = self.policy.pick(self.now_s, self.random.random, key, tried)
        if candidate is None:
            self._failed += 1
            return
        machine = self.machines[candidate.node.host]
        self._sent[machine.name] += 1
        started_s = self.now_s
        self.policy.started(candidate, started_s)
        machine.open += 1
        is_failed = machine.is_down or self.random.random() < machine.fail
        cost_s = machine.cost_s * self.random.expovariate(1.0) * (machine.fail_cost if is_failed else 1.0)
        if machine.is_down:
            done_s = self.now_s + 0.001
        else:
            start_s = max(self.now_s, machine.free_at_s)
            done_s = machine.free_at_s = start_s + cost_s / machine.speed
            machine.busy.append((start_s, done_s))

        def end() -> None:
            machine.open -= 1
            self.policy.ended(
                candidate,
                Outcome.FAILED if is_failed else Outcome.OK,
                self.now_s,
                latency_s=self.now_s - started_s,
                in_flight=None if machine.is_down else machine.open,
                is_transport=machine.is_down,
            )
            if is_failed:
                if len(tried) < self.retries:
                    self._send(key, (*tried, candidate.node.identity))
                else:
                    self._failed += 1

        self._at(done_s, end)

    def _report(self, machine: Machine) -> None:
        self._at(self.now_s + 1.0, lambda: self._report(machine))
        if machine.is_silent or machine.is_down:
            return
        load = max(0.0, machine.utilization(self.now_s) * (1.0 + self.random.gauss(0.0, self.noise)))
        report = LoadReport(utilization={machine.resource: load}, in_flight=machine.open)
        self._at(self.now_s + self.lag_s, lambda: self.policy.report(machine.node.address, report, self.now_s))

    def _tick(self) -> None:
        self._at(self.now_s + 1.0, self._tick)
        self.policy.tick(self.now_s)

    def _second(self) -> None:
        self._at(self.now_s + 1.0, self._second)
        load = {name: machine.utilization(self.now_s) for name, machine in self.machines.items()}
        self.seconds.append(Second(self._sent, self._failed, self._calls, load))
        self._sent = dict.fromkeys(self.machines, 0)
        self._failed = self._calls = 0


def unequal_fleet(per_call_s: float = 0.012) -> list[Machine]:
    """Six CPU containers with quotas of 10 to 40 % of a core and two GPU nodes; about half busy at 200 calls/s."""
    quotas = (0.15, 0.15, 0.2, 0.2, 0.4, 0.4)
    cpus = [Machine(f"cpu-{at}", speed=quota, cost_s=per_call_s / 3) for at, quota in enumerate(quotas)]
    gpus = [Machine(f"gpu-{at}", speed=1.0, cost_s=per_call_s / 2, resource="gpu") for at in range(2)]
    return cpus + gpus
