"""Faults and neighbours: what happens to servers while the calls go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log
from random import Random

from .kernel import Kernel
from .reporting import Reporter
from .sampling import stream
from .scenario import Antagonist, Fault, Scenario
from .server import Server
from .targets import node_places


def plan_troubles(
    scenario: Scenario,
    kernel: Kernel,
    servers: Sequence[Server],
    reporters: Sequence[Reporter],
    set_present: Callable[[int, bool], None],
    seed: int,
) -> None:
    """Schedule every fault and every neighbour of *scenario*. ``set_present(place, is_there)`` is the registry."""
    for fault in scenario.faults:
        for order, place in enumerate(node_places(scenario.nodes, fault.nodes)):
            begin, end = _actions(fault, servers[place], reporters[place], place, set_present)
            for late_s in _turns(fault, scenario.seconds):
                kernel.at(fault.at_s + late_s, _do, begin)
                until_s = fault.until_s + late_s + order * fault.stagger_s
                if until_s < scenario.seconds:
                    kernel.at(until_s, _do, end)
    for number, antagonist in enumerate(scenario.antagonists):
        for place in node_places(scenario.nodes, antagonist.nodes):
            _Neighbour(kernel, antagonist, servers[place], stream(seed, "neighbour", number, place)).act()


def _turns(fault: Fault, seconds: float) -> list[float]:
    """How much later than the first each turn of *fault* begins."""
    if fault.every_s is None:
        return [0.0]
    return [number * fault.every_s for number in range(int((seconds - fault.at_s) / fault.every_s) + 1)]


def _do(action: Callable[[], None]) -> None:
    action()


def _actions(
    fault: Fault, server: Server, reporter: Reporter, place: int, set_present: Callable[[int, bool], None]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """What to do when *fault* begins, and when it ends."""

    def put(name: str, value: object, *, is_rate: bool = False) -> Callable[[], None]:
        def do() -> None:
            setattr(server, name, value)
            if is_rate:
                server.changed()

        return do

    match fault.kind:
        case "fail":

            def fail() -> None:
                server.fail_rate, server.fail_cost = fault.rate, fault.cost

            return fail, put("fail_rate", 0.0)
        case "slow":
            return put("slowness", fault.factor, is_rate=True), put("slowness", 1.0, is_rate=True)
        case "pause":
            return put("is_paused", True, is_rate=True), put("is_paused", False, is_rate=True)
        case "crash":
            return server.crash, server.restart
        case "leave":
            return (lambda: set_present(place, False)), (lambda: set_present(place, True))
        case _:
            return (lambda: reporter.distort(fault.kind)), (lambda: reporter.distort(None))


class _Neighbour:
    """One antagonist on one machine."""

    def __init__(self, kernel: Kernel, settings: Antagonist, server: Server, chance: Random) -> None:
        self._kernel = kernel
        self._settings = settings
        self._server = server
        self._random = chance.random

    def act(self, _: object = None) -> None:
        settings, server = self._settings, self._server
        level = settings.low + (settings.high - settings.low) * self._random()
        if settings.machine_cores is None:
            server.stolen = min(0.999, level)
            server.changed()
        else:
            idle = settings.machine_cores * (1.0 - level)
            # Halves: few enough different numbers of cores that their tables are shared.
            server.set_cores(max(server.group.cores, round(idle * 2.0) / 2.0))
        wait_s = -log(1.0 - self._random()) * settings.every_s if settings.every_s < inf else inf
        self._kernel.at(self._kernel.now_s + wait_s, self.act)
