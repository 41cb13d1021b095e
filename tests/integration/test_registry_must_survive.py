"""Lines of "what a registry must survive" (docs/registry.md) that no other test is about, against a real ZooKeeper."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from support.zookeeper import shared_zookeeper, zookeeper_root

from steelyard import Consumer, Provider, method, service, with_options
from steelyard.wire import ChannelState
from steelyard_registry import Node, NodeState, Registration, Registry, ServiceKey, Subscription, open_registry

pytestmark = pytest.mark.zookeeper
LIVENESS_S = 40.0


@service("survive.Inner")
class Inner:
    @method
    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "inner"


@service("survive.Outer")
class Outer:
    """Answers with the help of another service."""

    def __init__(self, inner: Any = None) -> None:
        self._inner = inner
        self.begun = asyncio.Event()

    @method
    async def wait(self, seconds: float) -> str:
        self.begun.set()
        await asyncio.sleep(seconds)
        return f"outer and {await self._inner.wait(0.0)}"


@pytest.fixture
def url() -> Iterator[str]:
    with zookeeper_root(empty_grace_s=1) as url:
        yield url


@pytest.fixture
def operator() -> Iterator[KazooClient]:
    with shared_zookeeper().client() as client:
        yield client


async def until(truth: Callable[[], object]) -> None:
    async with asyncio.timeout(LIVENESS_S):
        while not truth():
            await asyncio.sleep(0.005)


class Witness(Registry):
    """A real registry, and what was true at each moment at which the provider spoke to it."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.accepted: list[bool] = []
        self.withdrawn: list[bool] = []
        self.at_withdrawal: Callable[[], Awaitable[bool]]

    url = property(lambda self: self._registry.url)

    async def open(self, wait_s: float | None = 10.0, *, from_cache: bool = False) -> None:
        await self._registry.open(wait_s)

    async def register(self, node: Node) -> Registration:
        with socket.create_connection((node.host, node.port), timeout=5):
            self.accepted.append(node.state is NodeState.READY)
        entry = await self._registry.register(node)
        withdraw = entry.withdraw

        async def witnessed() -> None:
            self.withdrawn.append(await self.at_withdrawal())
            await withdraw()

        entry.withdraw = witnessed  # type: ignore[method-assign]
        return entry

    async def subscribe(self, service: ServiceKey) -> Subscription:
        return await self._registry.subscribe(service)

    async def services(self) -> tuple[str, ...]:
        return await self._registry.services()

    async def close(self) -> None:
        await self._registry.close()


async def test_registered_after_the_port_accepts_and_drained_before_it_is_withdrawn(url: str) -> None:
    """DRAIN on the connections, then out of the registry, then the calls under way, then the end."""
    async with open_registry(url) as real:
        witness = Witness(real)
        async with Consumer(url) as consumer:
            provider = Provider(witness, host="127.0.0.1", drain_s=20.0)
            await provider.open()
            await provider.export(Inner())
            assert witness.accepted == [True]
            inner = with_options(consumer.refer(Inner), timeout_s=20.0)
            await consumer.ready(inner)
            under_way = asyncio.ensure_future(inner.wait(1.0))
            states = consumer._channels.states
            await until(lambda: ChannelState.READY in states().values())
            await asyncio.sleep(0.2)

            async def drains() -> bool:
                await until(lambda: ChannelState.DRAINING in states().values())
                return not under_way.done()

            witness.at_withdrawal = drains  # would wait for ever if DRAIN came after the withdrawal
            await provider.close()
            assert witness.withdrawn == [True]
            assert under_way.done()
            assert await under_way == "inner"  # withdrawn first, and still answered


async def test_a_node_that_is_consumer_and_provider_drains_inbound_first(url: str) -> None:
    """Its accepted calls still make calls of their own while it drains; the outbound end closes after that."""
    async with Provider(url, host="127.0.0.1") as below, Consumer(url) as caller:
        await below.export(Inner())
        async with Consumer(url) as outbound:
            inner = outbound.refer(Inner)
            await outbound.ready(inner)
            model = Outer(inner)
            inbound = Provider(url, host="127.0.0.1", drain_s=20.0)
            await inbound.open()
            await inbound.export(model)
            outer = with_options(caller.refer(Outer), timeout_s=20.0)
            await caller.ready(outer)
            under_way = asyncio.ensure_future(outer.wait(0.5))
            await asyncio.wait_for(model.begun.wait(), LIVENESS_S)
            await inbound.close()
            assert await under_way == "outer and inner"


async def test_an_audit_finds_the_own_node_missing_although_no_watch_told(url: str, operator: KazooClient) -> None:
    async with open_registry(url) as registry:
        entry = await registry.register(Node(interface="ads.Ctr", host="10.0.0.1", port=1))
        placement = entry._placement  # type: ignore[attr-defined]
        placement._arrived = lambda kind: None
        placement._unfollow()
        folder = "/" + url.rpartition("/")[2].partition("?")[0] + "/ads.Ctr/providers"
        (name,) = operator.get_children(folder)
        created = operator.exists(f"{folder}/{name}").czxid
        operator.delete(f"{folder}/{name}")

        def is_back() -> bool:
            stat = operator.exists(f"{folder}/{name}")
            return stat is not None and stat.czxid != created

        await until(is_back)
