"""A trace in real time over loopback sockets, and how far its shares may be from those of the simulator."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import NormalDist, fmean

from support.twin import KEY, STEP, Heard, Told, simulated

from steelyard.balance import Policy
from steelyard.cluster import ChannelPool, ClusterInvoker, Directory, Failover, control_loop
from steelyard.model import Invocation, LoadReport, Reply
from steelyard.sim import Arrivals, Scenario
from steelyard.testing import EmulatedDevice
from steelyard.wire import Listener
from steelyard_registry import Node

REPORT_EVERY_S = 1.0


async def timed_counts(scenario: Scenario, arrivals: Arrivals, make: Callable[[], Policy]) -> list[int]:
    """Calls that each node of *scenario* got (serial devices at their speeds), all of *arrivals* in real time."""
    devices = [_Device(scenario.work.mean_s / group.speed) for group in scenario.nodes for _ in range(group.count)]
    policy, registry, pool = make(), Told(), ChannelPool()
    directory = Directory(registry, KEY, pool, lambda nodes: policy.set_nodes(nodes, time.monotonic()))
    pool.listen(lambda address, report: policy.report(address, report, time.monotonic()))
    invoker = ClusterInvoker(
        directory, policy, clock=time.monotonic, dice=random.random, failover=Failover(hedge_after=0)
    )
    for device in devices:
        await device.listener.start()
    registry.feed.publish(tuple(device.node for device in devices))
    loops = [
        asyncio.ensure_future(directory.run()),
        asyncio.ensure_future(control_loop(policy, clock=time.monotonic, dice=random.random)),
        *(asyncio.ensure_future(device.report()) for device in devices),
    ]
    try:
        async with asyncio.timeout(10):
            while len(directory.nodes) < len(devices) or directory.out:
                await asyncio.sleep(0.01)
        await _play(arrivals.at_s, invoker)
        return [device.calls for device in devices]
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await invoker.close()
        directory.close()
        await pool.close()
        for device in devices:
            await device.listener.close()


async def _play(at_s: Sequence[float], invoker: ClusterInvoker) -> None:
    begun_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for due_s in at_s:
            await asyncio.sleep(max(0.0, begun_s + due_s - time.monotonic()))
            group.create_task(invoker(Invocation(str(KEY), "step", body=b"", spec=STEP)))


class _Device:
    def __init__(self, service_s: float) -> None:
        self.calls = 0
        self._device = EmulatedDevice(service_s)
        self.listener = Listener(self)

    @property
    def node(self) -> Node:
        return Node(interface=KEY.interface, host="127.0.0.1", port=self.listener.port)

    async def __call__(self, invocation: Invocation) -> Reply:
        self.calls += 1
        await self._device.run()
        return Reply(body=b"")

    async def report(self) -> None:
        await asyncio.sleep(REPORT_EVERY_S * random.random())
        while True:
            share = self._device.busy_share()
            self.listener.publish_load(LoadReport({"cpu": share}, in_flight=self.listener.in_flight))
            await asyncio.sleep(REPORT_EVERY_S)


def expected_counts(
    scenario: Scenario, arrivals: Arrivals, make: Callable[[], Policy], *, runs: int = 16, error: float = 1e-4
) -> tuple[list[float], float]:
    """Mean counts over *runs* of the simulator, whose seeds move the dice and the phases of loops and reports, and the
    chi-square that one more run exceeds with probability *error*.

    The spread of the runs over that of independent draws scales the bound, where it is larger; a law that spreads more
    evenly than draws still has the sampling error of draws to itself.
    """
    counts = [_simulated_counts(simulated(scenario, arrivals, make, seed)) for seed in range(1, runs + 1)]
    expected = [fmean(column) for column in zip(*counts, strict=True)]
    freedom = len(expected) - 1
    # The mean is fitted to the same runs, which takes a part of 1 / runs from each run's distance.
    spread = fmean(chi_square(row, expected) for row in counts) / freedom / (1 - 1 / runs)
    # A new run is compared with a mean that has an error of its own.
    return expected, max(1.0, spread) * (1 + 1 / runs) * chi_square_quantile(freedom, 1 - error)


def _simulated_counts(log: Sequence[Heard]) -> list[int]:
    nodes = next(heard.what for heard in log if heard.kind == "nodes")
    found = Counter(heard.what[2] for heard in log if heard.kind == "pick")
    return [found[node.identity] for node in nodes]


def chi_square(counts: Sequence[float], expected: Sequence[float]) -> float:
    """Pearson's distance, with *expected* scaled to the same sum."""
    scale = sum(counts) / sum(expected)
    return sum((count - scale * mean) ** 2 / (scale * mean) for count, mean in zip(counts, expected, strict=True))


def chi_square_quantile(freedom: int, level: float) -> float:
    """Wilson and Hilferty's approximation (1931), right to 2 % from three degrees of freedom on."""
    part = 2.0 / (9.0 * freedom)
    return freedom * (1.0 - part + NormalDist().inv_cdf(level) * part**0.5) ** 3
