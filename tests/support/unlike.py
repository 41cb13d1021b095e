"""The fleet of ``./dev bench fleet`` in virtual time: four CPU quotas, two devices, one consumer, 60 % load.

From the tenth second on a neighbour in the 60 % node's own group takes half of its quota and counts as its load. A
node's load is, as there, the larger of its CPU over its quota and of the busy share of its one handler thread (which a
throttled call keeps busy), from the fortieth second on, over a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import msgspec

from steelyard.balance import Policy
from steelyard.sim import Call, Scenario, Server, World, draw_arrivals

QUOTAS = {"cpu-10": 0.10, "cpu-20": 0.20, "cpu-40": 0.40, "cpu-60": 0.60}
SLOWED = 3  # the place of cpu-60
CALL_S, DEVICE_S = 0.0028, 0.012
FROM_S, WINDOW_S = 40.0, 60.0
QUOTA_S = 0.1


class UnlikeServer(Server):
    def __init__(self, *given: Any) -> None:
        self.neighbour = 0.0  # its part of the quota
        self.handler_s = 0.0
        self._noted_at_s = self._told_s = 0.0
        super().__init__(*given)

    def note(self) -> None:
        now_s = self._kernel.now_s
        if self._running:
            self.handler_s += now_s - self._noted_at_s
        self._noted_at_s = now_s

    def _start(self, call: Call) -> None:
        self.note()
        super()._start(call)

    def _wake(self, due_s: float) -> None:
        self.note()
        super()._wake(due_s)

    def _refill(self) -> None:
        assert self.group.quota is not None
        self._advance()
        self._budget_s = self.group.quota * QUOTA_S * (1.0 - self.neighbour)
        self.is_throttled = False
        self._due_s = inf
        self._set_rate()

    def utilization(self, busy_s: float, elapsed_s: float) -> float:
        self.note()
        handler_s, self._told_s = self.handler_s - self._told_s, self.handler_s
        if elapsed_s <= 0.0:
            return 0.0
        return min(1.5, max(busy_s / elapsed_s + self.neighbour, handler_s / elapsed_s))


def loads(make: Callable[[], Policy], seed: int) -> dict[str, float]:
    """Each node's load over the window."""
    described = _scenario()
    world = World(described, draw_arrivals(described, seed), make, seed, server=UnlikeServer)
    servers: list[Any] = world.servers
    marks: list[list[tuple[float, float]]] = []

    def begin_neighbour(_: object) -> None:
        servers[SLOWED].neighbour = 0.5

    def mark(_: object) -> None:
        for server in servers:
            server.note()
        marks.append([(server.busy_until_now(), server.handler_s) for server in servers])

    world.kernel.at(10.0, begin_neighbour)
    world.kernel.at(FROM_S, mark)
    world.kernel.at(FROM_S + WINDOW_S, mark)
    world.run()
    first, last = marks
    return {
        server.group.name: min(1.0, max((cpu - cpu_0) / WINDOW_S + server.neighbour, (handler - handler_0) / WINDOW_S))
        for server, (cpu_0, handler_0), (cpu, handler) in zip(servers, first, last, strict=True)
    }


def _scenario() -> Scenario:
    devices, device = 2, CALL_S / DEVICE_S
    capacity = (sum(QUOTAS.values()) - QUOTAS["cpu-60"] / 2 + devices * device) / CALL_S
    everything = (sum(QUOTAS.values()) + devices * device) / CALL_S
    document = {
        "name": "unlike",
        "text": "The fleet of the benchmark.",
        "seconds": FROM_S + WINDOW_S,
        "nodes": [
            *({"name": name, "quota": quota, "slots": 1} for name, quota in QUOTAS.items()),
            *({"name": f"dev-{at}", "kind": "gpu", "speed": device, "slots": 1} for at in range(1, devices + 1)),
        ],
        "traffic": {"load": 0.6 * capacity / everything},
        "work": {"mean_s": CALL_S, "distribution": "constant"},
        "consumers": {"count": 1, "timeout_s": 2.0, "delay_s": 0.0005},
        "reports": {"noise": 0.0},
        "measure": {"from_s": FROM_S},
    }
    return msgspec.convert(document, Scenario)
