"""The play: fleet up, traffic on, the switch of policies, the fault, the healing, and the notes taken meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from steelyard.balance import NodeStatistics
from steelyard.consumer import Consumer

from .contract import Digits
from .fleet import Fleet
from .measure import ConsumerWindow, Counters, NodeWindow, consumer_window, load_spread, node_windows
from .model import Trained
from .node import REPORT_EVERY_S
from .plan import RATE_PER_S, USERS, WARM_UP_S, Phase, Schedule
from .traffic import Traffic

PLAIN_POLICY = "consistent_hash"
NOTE_EVERY_S = 1.0
LOOK_EVERY_S = 0.5
GLIMPSE_S = 2.0
SEED = 20260801

BalancerView = Mapping[str, NodeStatistics]


@dataclass(frozen=True, slots=True)
class Glimpse:
    """The last two seconds that are known of, for the screen; at first what there is of them. ``start_s`` and ``end_s``
    are its window, ``load_std`` the spread of load in it."""

    at_s: float
    start_s: float
    end_s: float
    phase: Phase
    policy: str
    nodes: Sequence[NodeWindow]
    balancer: BalancerView
    consumer: ConsumerWindow
    hardware: Mapping[str, str]
    load_std: float


@dataclass(frozen=True, slots=True)
class Note:
    """What the balancer thought at one moment; ``at_s`` counts from the first counted call."""

    at_s: float
    policy: str
    balancer: BalancerView


class Stage:
    """One run. ``open`` yields it ready to ``play``; afterwards ``counters``, ``traffic`` and ``notes`` hold what
    happened and ``start_at`` says when it began."""

    def __init__(self, fleet: Fleet, consumer: Consumer, traffic: Traffic, schedule: Schedule, where: str) -> None:
        self.fleet = fleet
        self.traffic = traffic
        self.schedule = schedule
        self.notes: list[Note] = []
        self.start_at = 0.0
        self._consumer = consumer
        self._where = where
        self._policy = PLAIN_POLICY
        self._names = {node.address: node.plan.name for node in fleet.nodes}

    @classmethod
    @asynccontextmanager
    async def open(
        cls, fleet: Fleet, registry: str, trained: Trained, schedule: Schedule, run: str
    ) -> AsyncIterator[Stage]:
        """A consumer that sees every node of this run, and nobody else's (a shared registry may hold other runs)."""
        where = f"tag.run == {run!r}"
        async with Consumer(registry, application="steelyard-demo") as consumer:
            plain = consumer.refer(Digits, policy=PLAIN_POLICY, where=where)
            await consumer.ready(plain, nodes=len(fleet.nodes))
            labels = trained.labels.tolist()
            traffic = Traffic(plain, trained.rows, labels, rate_per_s=RATE_PER_S, users=USERS, seed=SEED)
            try:
                yield cls(fleet, consumer, traffic, schedule, where)
            finally:
                await traffic.abandon()

    async def play(self, look: Callable[[Glimpse], None]) -> None:
        """Runs the schedule. *look* is called twice a second. Raises FleetError when a node ends by itself."""
        sending = asyncio.create_task(self.traffic.run())
        try:
            await asyncio.sleep(WARM_UP_S)
            self.start_at = time.monotonic()
            looking = asyncio.create_task(self._look(look))
            try:
                await self._act()
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        await self.traffic.finish()
        await asyncio.sleep(1.5 * REPORT_EVERY_S)  # the nodes' last pulses are on their way
        self.fleet.check()

    @property
    def counters(self) -> list[Counters]:
        return [Counters.of(node.plan, node.pulses) for node in self.fleet.nodes]

    async def _act(self) -> None:
        schedule = self.schedule
        await self._until(schedule.switch_s)
        balanced = self._consumer.refer(Digits, policy=schedule.policy, where=self._where)
        await self._consumer.ready(balanced, nodes=len(self.fleet.nodes))
        self.traffic.target, self._policy = balanced, schedule.policy
        if schedule.has_fault:
            await self._until(schedule.fault_s)
            await self.fleet.set_sick(True)
            await self._until(schedule.heal_s)
            await self.fleet.set_sick(False)
        await self._until(schedule.seconds)
        self._note(schedule.seconds)

    async def _until(self, at_s: float) -> None:
        """Sleeps until then, taking a note every second and looking after the fleet."""
        while (now_s := time.monotonic() - self.start_at) < at_s:
            if now_s >= len(self.notes) * NOTE_EVERY_S:
                self._note(now_s)
            self.fleet.check()
            self.traffic.check()
            await asyncio.sleep(min(0.1, at_s - now_s))

    def _note(self, at_s: float) -> None:
        self.notes.append(Note(at_s, self._policy, self._balancer()))

    async def _look(self, look: Callable[[Glimpse], None]) -> None:
        while True:
            look(self._glimpse())
            await asyncio.sleep(LOOK_EVERY_S)

    def _glimpse(self) -> Glimpse:
        now = time.monotonic()
        # Pulses are up to a beat old: the window ends where all are known. It does not reach back into the warm-up.
        end = max(now - LOOK_EVERY_S, self.start_at + LOOK_EVERY_S)
        start = max(end - GLIMPSE_S, self.start_at)
        at_s = now - self.start_at
        nodes = node_windows(self.counters, start, end)
        return Glimpse(
            at_s=at_s,
            start_s=start - self.start_at,
            end_s=end - self.start_at,
            phase=self.schedule.phase_at(at_s),
            policy=self._policy,
            nodes=nodes,
            balancer=self._balancer(),
            consumer=consumer_window(self.traffic.calls, start, end),
            hardware={node.plan.name: hardware_words(node.hardware) for node in self.fleet.nodes},
            load_std=load_spread(nodes),
        )

    def _balancer(self) -> BalancerView:
        statistics = self._consumer.statistics(self.traffic.target).balance
        return {self._names[node.node.address]: node for node in statistics.nodes if node.node.address in self._names}


def hardware_words(hardware: Mapping[str, Any]) -> str:
    """A node's hardware as it registered it, in a few words."""
    if hardware.get("kind") == "gpu":
        return f"GPU, {', '.join(hardware.get('accelerators', ()))}"
    quota = hardware.get("quota")
    return f"{quota:.0%} of a core" if quota else f"{hardware.get('cores')} cores"
