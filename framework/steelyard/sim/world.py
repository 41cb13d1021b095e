"""World: servers, clients and events of one run, put together. The same seed and policy make the same run."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from time import process_time

from steelyard.balance import LatencyByLoad, Policy

from .arrivals import Arrivals
from .call import Call
from .client import Client
from .kernel import Kernel
from .recorder import Recorder
from .reporting import Reporter
from .sampling import stream
from .scenario import Scenario
from .server import Server
from .targets import node_places
from .troubles import plan_troubles


class World:
    """``run()`` once. ``recorder`` then holds what happened; ``calls`` and ``cpu_s`` the processor time it took.
    *server* makes the nodes: a kind of one's own, for what scenarios cannot say."""

    def __init__(
        self,
        scenario: Scenario,
        arrivals: Arrivals,
        make: Callable[[], Policy],
        seed: int,
        *,
        server: Callable[..., Server] = Server,
    ) -> None:
        self.scenario = scenario
        self.kernel = Kernel()
        self.cpu_s = 0.0
        self._arrivals = arrivals
        self._seed = seed
        self.servers = [
            server(self.kernel, group, number, stream(seed, "server", group.name, number).random)
            for group in scenario.nodes
            for number in range(group.count)
        ]
        self._mark_watched()
        self.recorder = Recorder(self.kernel, self.servers)
        by_identity = {server.node.identity: server for server in self.servers}
        self.clients = [
            Client(self.kernel, make(), by_identity, self.recorder, scenario.consumers, stream(seed, "client", number))
            for number in range(scenario.consumers.count)
        ]
        self.arrive = self._arrivals_of(arrivals)
        self._subsets = [self._subset(number) for number in range(scenario.consumers.count)]
        reporters = [
            Reporter(self.kernel, server, self.clients, scenario.reports, stream(seed, "reports", place))
            for place, server in enumerate(self.servers)
        ]
        later = [group.joins_later for group in scenario.nodes for _ in range(group.count)]
        self._present = [not is_later for is_later in later]
        for place, client in enumerate(self.clients):
            self._tell(place)
            phase_s = scenario.consumers.period_s * stream(seed, "phase", place).random()
            self.kernel.every(scenario.consumers.period_s, phase_s, client.tick)
        plan_troubles(scenario, self.kernel, self.servers, reporters, self._set_present, seed)
        self._plan_placing()
        self._prepare_probing()

    @property
    def calls(self) -> int:
        return len(self.recorder.over_at_s)

    def run(self) -> None:
        """All of the scenario's seconds."""
        started_s = process_time()
        if self.scenario.traffic.closed is not None:
            _ClosedLoop(self, self.scenario.traffic.closed, self._seed).start()
        # The last second's snapshot falls on the end itself.
        self.kernel.run(self.scenario.seconds + 1e-9, self._arrivals.at_s, self.arrive)
        self.cpu_s = process_time() - started_s

    def _arrivals_of(self, arrivals: Arrivals) -> Callable[[int], None]:
        """``arrive(number)``: call *number* of the drawn ones begins now. They are asked for in their order, so the
        columns are read by iterators that make the calls in C."""
        kernel, closed = self.kernel, self.scenario.traffic.closed is not None
        keys, hashes, priorities = arrivals.key, arrivals.hashes, arrivals.priority
        calls = map(
            Call,
            map(self.clients.__getitem__, arrivals.consumer),
            arrivals.at_s,
            arrivals.at_s,
            arrivals.work_s,
            repeat(-1) if keys is None else keys,
            repeat(None) if keys is None else map(hashes.__getitem__, keys),
            repeat(1) if priorities is None else priorities,
        )

        def arrive(_: int) -> None:
            call = next(calls)
            call.client.begin(call)

        def arrive_now(_: int) -> None:
            call = next(calls)
            call.began_at_s = call.sent_at_s = kernel.now_s
            call.client.begin(call)

        return arrive_now if closed else arrive

    # --- the registry -------------------------------------------------------------------------------------------

    def _set_present(self, place: int, is_there: bool) -> None:
        self._present[place] = is_there
        now_s, delay_s = self.kernel.now_s, self.scenario.consumers.registry_delay_s
        for number in range(len(self.clients)):
            late_s = delay_s * stream(self._seed, "registry", number, place).random()
            self.kernel.at(now_s + late_s, self._tell, number)

    def _tell(self, number: int) -> None:
        nodes = [
            server.node
            for place, server in enumerate(self.servers)
            if self._present[place] and place in self._subsets[number]
        ]
        self.clients[number].policy.set_nodes(nodes, self.kernel.now_s)

    def _subset(self, number: int) -> frozenset[int]:
        places = list(range(len(self.servers)))
        size = self.scenario.consumers.subset
        if size is None or size >= len(places):
            return frozenset(places)
        chance = stream(self._seed, "subset", number)
        return frozenset(sorted(places, key=lambda _: chance.random())[:size])

    # --- what is watched ----------------------------------------------------------------------------------------

    def _mark_watched(self) -> None:
        scenario = self.scenario
        targets = scenario.measure.watch or [
            target
            for fault in scenario.faults
            for target in ([fault.nodes] if isinstance(fault.nodes, str) else fault.nodes)
        ]
        for place in node_places(scenario.nodes, targets) if targets else ():
            self.servers[place].watched = True

    def _plan_placing(self) -> None:
        """Two stretches in which it is noted where keys go: the last before the disturbance, and the last of all."""
        if not self.scenario.traffic.keys and self.scenario.traffic.trace is None:
            return
        middle_s, end_s = self.scenario.measure.disturbed_at_s, self.scenario.seconds
        for stop_s in (middle_s, end_s):
            if stop_s > 0:
                stretch_s = min(self.scenario.measure.moved_s, stop_s)
                self.kernel.at(stop_s - stretch_s, self.recorder.start_placing)
        if middle_s > 0:
            self.kernel.at(middle_s, self.recorder.stop_placing)

    def _prepare_probing(self) -> None:
        if any(hasattr(client.policy, "probes") for client in self.clients):
            for server in self.servers:
                server.latencies = LatencyByLoad()


class _ClosedLoop:
    """Callers that wait for their answer, think, and call again. They take the drawn calls in turn."""

    def __init__(self, world: World, callers: int, seed: int) -> None:
        self._world = world
        self._callers = callers
        self._random = stream(seed, "think").random
        self._next = 0
        for client in world.clients:
            client.on_over = self._think

    def start(self) -> None:
        for _ in range(self._callers):
            self._later()

    def _think(self, _: Call) -> None:
        self._later()

    def _later(self) -> None:
        traffic = self._world.scenario.traffic
        self._world.kernel.at(self._world.kernel.now_s + traffic.think_s * 2.0 * self._random(), self._begin)

    def _begin(self, _: object) -> None:
        if self._next < len(self._world._arrivals.at_s):
            number, self._next = self._next, self._next + 1
            self._world.arrive(number)
