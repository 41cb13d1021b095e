"""The observer: what is registered, how busy it is, and what the law makes of that."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator

import pytest
from support.shop import ShopModel

from steelyard.cli.survey import Observer, Reach, Survey
from steelyard.cluster import where
from steelyard.testing import LocalCluster
from steelyard_registry import Node, Registry, open_registry

NAME = "test.Shop"
KEY = "test.Shop:1.0.0"


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    async with open_registry(f"memory://{uuid.uuid4().hex}") as registry:
        yield registry


def node(port: int, **facts: object) -> Node:
    return Node(**{"interface": NAME, "version": "1.0.0", "host": "127.0.0.1", "port": port, **facts})


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def look(registry: Registry, wait_s: float = 0.5, **settings: object) -> Survey:
    async with Observer(registry, **settings) as observer:
        return await observer.look(wait_s)


async def test_nodes_tell_their_load(cluster: LocalCluster) -> None:
    provider = await cluster.provide(ShopModel(), tags={"pool": "ads"})
    seen = await look(cluster.consumer.registry, wait_s=10)
    (service,) = seen.services
    (sight,) = service.nodes
    assert service.service == KEY
    assert sight.node == provider.nodes[0]
    assert sight.load.reach is Reach.REPORTED
    assert sight.load.report is not None
    assert sight.load.report.in_flight == 0
    assert sight.load.age_s is not None
    assert sight.law is not None
    assert (sight.law.share, sight.law.flow_ratio) == (1.0, 1.0)


async def test_the_law_sees_the_loads(cluster: LocalCluster) -> None:
    """Two nodes, one at 90 % and one at 10 %: the observer's own lists say where calls should go."""
    busy = await cluster.provide(ShopModel(), utilization={"gpu": lambda: 0.9})
    await cluster.provide(ShopModel(), utilization={"gpu": lambda: 0.1})
    async with Observer(cluster.consumer.registry) as observer, asyncio.timeout(20):
        while True:
            (service,) = (await observer.look(5)).services
            reports = [sight.load.report for sight in service.nodes]
            if all(report is not None and "gpu" in report.utilization for report in reports):
                break
            await asyncio.sleep(0.2)
    lists = {sight.node.address: sight.law.list.value for sight in service.nodes if sight.law}
    assert lists.pop(busy.address) == "refuse"
    assert list(lists.values()) == ["accept"]
    assert service.load_ref == pytest.approx(0.5, abs=0.05)


async def test_nobody_there_is_unreachable(registry: Registry) -> None:
    await registry.register(node(closed_port()))
    (service,) = (await look(registry)).services
    load = service.nodes[0].load
    assert (load.reach, load.report, load.age_s) == (Reach.UNREACHABLE, None, None)
    assert "refused" in load.reason


async def test_somebody_who_says_nothing_does_not_hold_the_survey_up(registry: Registry) -> None:
    """A port that accepts and stays silent: the survey's own wait ends it, not the connection's."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        await registry.register(node(silent.getsockname()[1]))
        async with asyncio.timeout(2.5):  # half the time that connecting would take
            (service,) = (await look(registry, wait_s=0.2)).services
    assert service.nodes[0].load.reach is Reach.UNREACHABLE
    assert service.nodes[0].load.reason


async def test_services_and_keys_and_filters(registry: Registry) -> None:
    port = closed_port()
    await registry.register(node(port))
    await registry.register(node(port, version="2.0.0", zone="b"))
    await registry.register(node(port, interface="other.Service", version=""))

    async def keys(**settings: object) -> list[str]:
        return [service.service for service in (await look(registry, **settings)).services]

    assert await keys() == ["other.Service", KEY, f"{NAME}:2.0.0"]
    assert await keys(service=NAME) == [KEY, f"{NAME}:2.0.0"]
    assert await keys(service=f"{NAME}:2.0.0") == [f"{NAME}:2.0.0"]
    assert await keys(service="no.Such") == []
    assert await keys(keep=where("zone == 'b'")) == [f"{NAME}:2.0.0"]


async def test_a_second_look_follows_the_registry(registry: Registry) -> None:
    registration = await registry.register(node(closed_port()))
    async with Observer(registry) as observer:
        assert (await observer.look(0.2)).nodes == 1
        await registry.register(node(closed_port(), interface="later.Service"))
        assert (await observer.look(0.2)).nodes == 2
        await registration.withdraw()
        async with asyncio.timeout(5):
            while (await observer.look(0.2)).nodes != 1:
                await asyncio.sleep(0.02)


async def test_nodes_without_traffic_are_shown_too(registry: Registry) -> None:
    await registry.register(node(closed_port(), weight=0))
    (service,) = (await look(registry)).services
    assert service.nodes[0].law is not None
    assert service.nodes[0].law.base_share == 0.0
