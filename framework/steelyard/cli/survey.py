"""Survey: what is registered, how busy each node says it is, and where a balancer would put it.

An observer is not a consumer: it sends no calls, so it knows nothing of availability and cannot see the lists of the
consumers that do. What it can show truthfully is what the same law makes of the loads that are reported right now, one
control step after it first saw them. (To let the law run on in ``--watch`` would be wrong: its steps are meant to
change the loads, and an observer changes nothing, so its weights would only run into their bounds.)
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

import msgspec

from steelyard.balance import NodeStatistics, Policy, PolicyBase, make_policy
from steelyard.errors import RpcError
from steelyard.model import LoadReport, Outcome
from steelyard.security import Credentials, Tls, checked_credentials
from steelyard.wire import Channel, ChannelState, LaneConnector, read_offer
from steelyard_registry import Node, Registry, ServiceKey, Subscription

# Providers report once a second on every connection; a third more for connecting and for a busy machine.
REPORT_WAIT_S = 1.5
CONNECTING_AT_ONCE = 64
# The law takes a step on the evidence of two periods; with one it would still show every node as neutral.
PERIODS = 2


class Reach(StrEnum):
    """REPORTED: it told its load. SILENT: connected, but no report yet. UNREACHABLE: no connection."""

    REPORTED = "reported"
    SILENT = "no report"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``report`` is there when ``reach`` is REPORTED; ``age_s`` counts from the measurement; ``reason`` says why there
    is no connection."""

    reach: Reach
    report: LoadReport | None = None
    age_s: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One node. ``law`` is None when it takes no part in balancing (filtered out of the service's view)."""

    node: Node
    load: Load
    law: NodeStatistics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSight:
    """One service key and its nodes. ``is_stale`` and ``skipped`` are the registry's words (Snapshot)."""

    service: str
    nodes: tuple[Sight, ...]
    is_stale: bool = False
    skipped: int = 0
    load_ref: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Everything seen at one moment."""

    registry: str
    policy: str
    observed_at: datetime.datetime
    services: tuple[ServiceSight, ...]

    @property
    def nodes(self) -> int:
        return sum(len(service.nodes) for service in self.services)


class Observer:
    """Watches an open registry. ``async with Observer(registry) as observer: await observer.look()``

    *service* limits it to one interface or one service key, *keep* to the nodes that pass.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        service: str | None = None,
        keep: Callable[[Node], bool] | None = None,
        policy: str = "dual",
        credentials: Credentials | None = None,
    ) -> None:
        found = checked_credentials("credentials", credentials)
        if found is not None:
            found.check_for_consumer()
        self._tls = None if found is None else Tls(found)
        self._registry = registry
        self._asked = service
        self._keep = keep
        self._policy = policy
        self._subscriptions: dict[str, Subscription] = {}
        self._watches: dict[str, _Watch] = {}
        self._connecting = asyncio.Semaphore(CONNECTING_AT_ONCE)

    async def look(self, wait_s: float = REPORT_WAIT_S) -> Survey:
        """One survey; waits at most *wait_s* for the loads of nodes that have not told any."""
        await self._subscribe()
        found = self._found()
        await self._connect({node.address: node for _, _, nodes in found for node in nodes}, wait_s)
        now_s = time.monotonic()
        return Survey(
            registry=self._registry.url,
            policy=self._policy,
            observed_at=datetime.datetime.now(datetime.UTC),
            services=tuple(self._sight(key, subscription, nodes, now_s) for key, subscription, nodes in found),
        )

    async def close(self) -> None:
        watches, self._watches = self._watches, {}
        subscriptions, self._subscriptions = self._subscriptions, {}
        await asyncio.gather(*(watch.close() for watch in watches.values()))
        await asyncio.gather(*(each.close() for each in subscriptions.values()), return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _subscribe(self) -> None:
        wanted = [ServiceKey.parse(self._asked).interface] if self._asked else await self._registry.services()
        for interface in wanted:
            if interface not in self._subscriptions:
                key = ServiceKey(interface=interface, version="*", group="*")
                self._subscriptions[interface] = await self._registry.subscribe(key)

    def _found(self) -> list[tuple[str, Subscription, list[Node]]]:
        """The nodes by service key, in order, of those services and nodes that were asked for."""
        found: dict[str, tuple[str, Subscription, list[Node]]] = {}
        for subscription in self._subscriptions.values():
            for node in subscription.snapshot.nodes:
                key = node.service_key
                if self._asked in (None, key, node.interface) and (self._keep is None or self._keep(node)):
                    found.setdefault(key, (key, subscription, []))[2].append(node)
        return [found[key] for key in sorted(found)]

    async def _connect(self, wanted: Mapping[str, Node], wait_s: float) -> None:
        gone = [self._watches.pop(address) for address in self._watches.keys() - wanted.keys()]
        for address in wanted.keys() - self._watches.keys():
            connector = LaneConnector("grpc", read_offer(wanted[address].tags), self._tls)
            self._watches[address] = _Watch(address, self._connecting, connector)
        waiting = [asyncio.ensure_future(watch.first()) for watch in self._watches.values()]
        try:
            if waiting:
                await asyncio.wait(waiting, timeout=wait_s)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, *(watch.close() for watch in gone), return_exceptions=True)

    def _sight(self, key: str, subscription: Subscription, nodes: Sequence[Node], now_s: float) -> ServiceSight:
        policy = make_policy(self._policy)
        policy.set_nodes(nodes, now_s)
        loads = {address: self._watches[address].load(now_s) for address in {node.address for node in nodes}}
        for period in range(PERIODS):
            at_s = now_s + period
            _answered(policy, at_s)
            for address, load in loads.items():
                if load.report is not None:
                    policy.report(address, load.report, at_s)
            policy.tick(at_s + 1.0)
        statistics = policy.statistics(now_s + PERIODS)
        laws = {each.identity: each for each in statistics.nodes}
        return ServiceSight(
            service=key,
            nodes=tuple(
                Sight(node=node, load=loads[node.address], law=laws.get(node.identity))
                for node in sorted(nodes, key=lambda node: (node.host, node.port))
            ),
            is_stale=subscription.snapshot.is_stale,
            skipped=subscription.snapshot.skipped,
            load_ref=statistics.load_ref,
        )


def _answered(policy: Policy, now_s: float) -> None:
    """One good answer from each node: a law that has never called a node does not believe that it is idle."""
    if isinstance(policy, PolicyBase):
        for candidate in policy.candidates.values():
            policy.started(candidate, now_s)
            policy.ended(candidate, Outcome.OK, now_s, latency_s=0.0)


class _Watch:
    """One address: a connection that is only listened to."""

    def __init__(self, address: str, connecting: asyncio.Semaphore, connector: LaneConnector) -> None:
        self._channel = Channel(address, on_load=self._take, identity="steelyard-nodes", connector=connector)
        self._told = asyncio.Event()
        self._report: LoadReport | None = None
        self._at_s = 0.0
        self._task = asyncio.ensure_future(self._connect(connecting))

    async def first(self) -> None:
        """Returns when there is a report, or when it is clear that there will be none."""
        await asyncio.shield(self._task)
        if self._channel.state is ChannelState.READY:
            await self._told.wait()

    def load(self, now_s: float) -> Load:
        state = self._channel.state
        if state not in (ChannelState.READY, ChannelState.DRAINING):
            reason = "no connection yet" if state is ChannelState.CONNECTING else self._channel.reason
            return Load(reach=Reach.UNREACHABLE, reason=reason)
        if self._report is None:
            return Load(reach=Reach.SILENT)
        age_s = self._report.age_s + (now_s - self._at_s)
        return Load(reach=Reach.REPORTED, report=msgspec.structs.replace(self._report, age_s=age_s), age_s=age_s)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.close()

    async def _connect(self, connecting: asyncio.Semaphore) -> None:
        async with connecting:
            try:
                await self._channel.connect()
            except RpcError:
                pass  # the channel's state and reason say so; it goes on trying by itself

    def _take(self, report: LoadReport) -> None:
        self._report, self._at_s = report, time.monotonic()
        self._told.set()
