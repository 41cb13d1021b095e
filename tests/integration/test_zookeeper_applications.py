"""Dubbo 3's application-level discovery against a real ZooKeeper: ours, and what Dubbo's own clients write.

The recorded forms are those of Dubbo Java 3.1 (ZookeeperInstance through Curator) and dubbo-go 3.0 (the same, and the
service metadata of its metadata report), as they stand in their repositories and issue threads; addresses are changed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from kazoo.client import KazooClient
from support.zookeeper import shared_zookeeper, zookeeper_root

from steelyard_registry import (
    Hardware,
    MalformedUrl,
    Node,
    NodeState,
    Registry,
    ServiceKey,
    Snapshot,
    Subscription,
    open_registry,
)

pytestmark = pytest.mark.zookeeper

LIVENESS_S = 60.0
CTR = ServiceKey(interface="ads.Ctr", version="1.0.0")
NODE = Node(
    interface="ads.Ctr",
    version="1.0.0",
    host="10.0.0.1",
    port=20880,
    application="ads",
    methods=("predict",),
    started_at_ms=1700000000000,
    zone="a",
    hardware=Hardware(kind="gpu", model="T4, 16 GB", cores=8, quota=2.5),
    tags={"pool": "ads 100 %"},
)


class World:
    def __init__(self, root: str, operator: KazooClient) -> None:
        self.root, self.operator = root, operator
        self.services = f"{root}/services"

    def url(self, discovery: str, **options: object) -> str:
        options = {"empty_grace_s": 0.3, "own_session": "true", "cache": "off", **options}
        query = "&".join(f"{key}={value}" for key, value in options.items())
        base = f"{shared_zookeeper().hosts}{self.root}"
        return f"zookeeper://{base}?discovery={discovery}&services_root={self.services}&{query}"

    def map(self, interface: str, *applications: str) -> None:
        self.put(f"{self.root}/mapping/{interface}", ",".join(applications).encode())

    def put(self, path: str, body: bytes, **options: Any) -> None:
        if self.operator.exists(path):
            self.operator.set(path, body)
        else:
            self.operator.create(path, body, makepath=True, **options)

    def instance(self, application: str, address: str, body: object) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.put(f"{self.services}/{application}/{address}", raw, ephemeral=True)


@pytest.fixture
def world() -> Iterator[World]:
    with zookeeper_root() as url, shared_zookeeper().client() as operator:
        yield World("/" + url.rpartition("/")[2], operator)


@pytest.fixture
async def consumer(world: World) -> AsyncIterator[Registry]:
    async with open_registry(world.url("application")) as registry:
        yield registry


async def until(view: Subscription, wanted: Callable[[Snapshot], object]) -> Snapshot:
    async with asyncio.timeout(LIVENESS_S):
        while not wanted(view.snapshot):
            await view.changed(view.snapshot.version)
    return view.snapshot


def java(address: str = "10.0.0.7", **facts: str) -> dict[str, Any]:
    """As Dubbo Java 3.1 writes it."""
    metadata = {
        "dubbo.endpoints": '[{"port":50051,"protocol":"tri"}]',
        "dubbo.metadata-service.url-params": '{"connections":"1","version":"1.0.0","dubbo":"2.0.2","release":"3.1.0",'
        '"side":"provider","port":"20880","protocol":"dubbo"}',
        "dubbo.metadata.revision": "f82a9a864c1312de23931f28cdff177b",
        "dubbo.metadata.storage-type": "local",
        "timestamp": "1674997954786",
    }
    return {
        "name": "provider",
        "id": f"{address}:50051",
        "address": address,
        "port": 50051,
        "sslPort": None,
        "payload": {
            "@class": "org.apache.dubbo.registry.zookeeper.ZookeeperInstance",
            "id": f"{address}:50051",
            "name": "provider",
            "metadata": {**metadata, **facts},
        },
        "registrationTimeUTC": 1674997956090,
        "serviceType": "DYNAMIC",
        "uriSpec": None,
    }


GO_METADATA = {
    "app": "dubbo.io",
    "revision": "4647984502",
    "services": {
        "dubbo-go/ads.Ctr:3.0.1:tri": {
            "name": "ads.Ctr",
            "group": "dubbo-go",
            "version": "3.0.1",
            "protocol": "tri",
            "path": "ads.Ctr",
            "params": {
                "application": "dubbo.io",
                "cluster": "failover",
                "group": "dubbo-go",
                "loadbalance": "random",
                "release": "dubbo-golang-3.0.4",
                "timestamp": "1695208370",
                "version": "3.0.1",
                "weight": "50",
                "note": "100 % + more",
            },
        },
        "ads.Ctr:2.0.0:dubbo": {"name": "ads.Ctr", "version": "2.0.0", "protocol": "dubbo", "params": {}},
        "ads.Other:tri": {"name": "ads.Other", "protocol": "tri", "params": {}},
    },
}


async def test_a_java_instance_with_local_metadata_is_what_the_mapping_says(world: World, consumer: Registry) -> None:
    world.map("ads.Ctr", "provider")
    world.instance("provider", "10.0.0.7:50051", java())
    view = await consumer.subscribe(CTR)
    found = (await until(view, lambda found: found.nodes)).nodes
    assert [(node.service_key, node.address, node.application) for node in found] == [
        ("ads.Ctr:1.0.0", "10.0.0.7:50051", "provider")
    ]
    assert found[0].started_at_ms == 1674997954786
    assert view.snapshot.skipped == 0
    assert (await consumer.subscribe(ServiceKey(interface="ads.Unknown"))).snapshot.nodes == ()


async def test_a_go_instance_with_remote_metadata_has_what_the_revision_says(world: World, consumer: Registry) -> None:
    world.map("ads.Ctr", "other-app", "dubbo.io")
    facts = {"dubbo.metadata.revision": "4647984502", "dubbo.metadata.storage-type": "remote"}
    world.instance("dubbo.io", "10.0.0.8:20000", java("10.0.0.8", **facts))
    view = await consumer.subscribe(ServiceKey(interface="ads.Ctr", version="*", group="*"))
    world.put(f"{world.root}/metadata/dubbo.io/4647984502", json.dumps(GO_METADATA).encode())
    world.instance("dubbo.io", "10.0.0.8:20000", java("10.0.0.8", **facts, touched="1"))
    (node,) = (await until(view, lambda found: any(node.version for node in found.nodes))).nodes
    assert (node.service_key, node.weight) == ("dubbo-go/ads.Ctr:3.0.1", 50)
    assert node.tags["note"] == "100 % + more"
    assert node.tags["release"] == "dubbo-golang-3.0.4"


async def test_an_application_without_triple_is_not_called(world: World, consumer: Registry) -> None:
    world.map("ads.Ctr", "provider")
    endpoints = '[{"port":20880,"protocol":"dubbo"}]'
    world.instance("provider", "10.0.0.7:20880", java(**{"dubbo.endpoints": endpoints}))
    world.instance("provider", "10.0.0.8:50051", java("10.0.0.8"))
    view = await consumer.subscribe(CTR)
    await until(view, lambda found: [node.host for node in found.nodes] == ["10.0.0.8"])


BROKEN: dict[str, object] = {
    "no JSON": b"{",
    "no UTF-8": b"\xff\xfe{}",
    "no object": b"[]",
    "empty": b"",
    "deep": b"[" * 100_000,
    "no address": {**java(), "address": None},
    "a port too many": {**java(), "port": 99999},
    "a payload that is none": {**java(), "payload": "x"},
    "a weight that is none": java(weight="heavy"),
    "our URLs that are none": java(**{"steelyard.urls": "[1]"}),
    "our URLs that are broken": java(**{"steelyard.urls": '["tri://"]'}),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_instance_is_skipped_and_counted(world: World, consumer: Registry, kind: str) -> None:
    world.map("ads.Ctr", "provider")
    world.instance("provider", "10.0.0.7:50051", BROKEN[kind])
    world.instance("provider", "10.0.0.8:50051", java("10.0.0.8"))
    view = await consumer.subscribe(CTR)
    assert [node.host for node in view.snapshot.nodes] == ["10.0.0.8"]
    assert view.snapshot.skipped == 1
    world.instance("provider", "10.0.0.7:50051", java())  # mended, and the watch is alive
    await until(view, lambda found: len(found.nodes) == 2 and not found.skipped)
    world.operator.delete(f"{world.services}/provider/10.0.0.8:50051")
    await until(view, lambda found: [node.host for node in found.nodes] == ["10.0.0.7"])


async def test_a_mapping_that_comes_and_grows_is_followed(world: World, consumer: Registry) -> None:
    world.instance("one", "10.0.0.1:1", java("10.0.0.1"))
    world.instance("two", "10.0.0.2:1", java("10.0.0.2"))
    view = await consumer.subscribe(CTR)
    assert view.snapshot.nodes == ()
    world.map("ads.Ctr", "one")
    await until(view, lambda found: [node.host for node in found.nodes] == ["10.0.0.1"])
    world.map("ads.Ctr", "one", "two", "nobody", "", "bad/name")
    await until(view, lambda found: len(found.nodes) == 2)


async def test_ours_is_read_back_as_it_was(world: World, consumer: Registry) -> None:
    async with open_registry(world.url("application")) as provider:
        entry = await provider.register(NODE)
        other = await provider.register(replace(NODE, interface="ads.Other"))
        view = await consumer.subscribe(CTR)
        assert view.snapshot.nodes == (NODE,)
        warming = replace(NODE, state=NodeState.WARMING, weight=7)
        await entry.update(warming)
        await until(view, lambda found: found.nodes == (warming,))
        body = json.loads(world.operator.get(f"{world.services}/ads/10.0.0.1:20880")[0])
        facts = body["payload"]["metadata"]
        assert json.loads(facts["dubbo.endpoints"]) == [{"port": 20880, "protocol": "tri"}]
        document = json.loads(world.operator.get(f"{world.root}/metadata/ads/{facts['dubbo.metadata.revision']}")[0])
        assert set(document["services"]) == {"ads.Ctr:1.0.0:tri", "ads.Other:1.0.0:tri"}
        assert await provider.services() == ("ads.Ctr", "ads.Other")
        await other.withdraw()
        await until(view, lambda found: found.nodes == (warming,))
        await entry.withdraw()
        await until(view, lambda found: not found.nodes and not found.is_stale)
        assert world.operator.get_children(f"{world.services}/ads") == []


async def test_two_applications_do_not_take_each_others_mapping(world: World) -> None:
    async with open_registry(world.url("application")) as first, open_registry(world.url("application")) as second:
        await asyncio.gather(
            *(first.register(replace(NODE, application="a", interface=f"ads.S{at}")) for at in range(8)),
            *(second.register(replace(NODE, application="b", port=2, interface=f"ads.S{at}")) for at in range(8)),
        )
        for at in range(8):
            assert set(world.operator.get(f"{world.root}/mapping/ads.S{at}")[0].split(b",")) == {b"a", b"b"}


async def test_an_instance_comes_back_with_a_new_session(world: World, consumer: Registry) -> None:
    async with open_registry(world.url("application", session_timeout_s=2)) as provider:
        await provider.register(NODE)
        view = await consumer.subscribe(CTR)
        path = f"{world.services}/ads/10.0.0.1:20880"
        world.operator.delete(path)
        async with asyncio.timeout(LIVENESS_S):
            while not world.operator.exists(path):
                await asyncio.sleep(0.05)
        client = provider._lease.session._client  # type: ignore[attr-defined]
        impostor = KazooClient(hosts=shared_zookeeper().hosts, client_id=client.client_id)
        await asyncio.to_thread(impostor.start)
        await asyncio.to_thread(impostor.stop)
        await until(view, lambda found: found.nodes == (NODE,) and not found.is_stale)


async def test_registering_both_ways_is_seen_both_ways_and_once(world: World, consumer: Registry) -> None:
    async with open_registry(world.url("both")) as provider, open_registry(world.url("interface")) as old:
        entry = await provider.register(NODE)
        for registry in (provider, old, consumer):
            view = await registry.subscribe(CTR)
            await until(view, lambda found: found.nodes == (NODE,))
        views = [await registry.subscribe(CTR) for registry in (provider, old, consumer)]
        await entry.update(replace(NODE, weight=3))
        for view in views:
            await until(view, lambda found: found.nodes == (replace(NODE, weight=3),))
        await entry.withdraw()
        for view in views:
            await until(view, lambda found: not found.nodes and not found.is_stale)


async def test_a_node_without_an_application_is_refused_with_words(world: World, consumer: Registry) -> None:
    with pytest.raises(MalformedUrl, match="needs the name of an application"):
        await consumer.register(replace(NODE, application=""))


def test_an_unknown_way_of_discovery_is_named() -> None:
    with pytest.raises(MalformedUrl, match="discovery='all' is none of interface, application, both"):
        open_registry("zookeeper://127.0.0.1?discovery=all")
