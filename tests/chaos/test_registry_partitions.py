"""Partitions: every pair of consumer, provider and ZooKeeper cut apart, with packets that vanish instead of resets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from support.load import Load
from support.netns import Cables, Machine
from support.processes import ProviderProcess, provider_process
from support.shop import Shop
from support.zookeeper import LOCAL_SESSIONS, ZooKeeperServer

from steelyard import Consumer
from steelyard.cluster import Directory
from steelyard.consumer import reference_of
from steelyard_registry import Node, ServiceKey, Snapshot, open_registry

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

LIVENESS_S = 60.0
SESSION_S = 2.0
HEARTBEATS_S = 3 * 3.0


class Cluster:
    """ZooKeeper and two providers on machines of their own, the consumer here."""

    def __init__(self, zookeeper: Machine, providers: list[Machine], server: ZooKeeperServer, cables: Cables) -> None:
        self.zookeeper, self.machines, self.server, self.here = zookeeper, providers, server, cables.here
        self.processes: list[ProviderProcess] = []
        self.shop: Shop

    @property
    def directory(self) -> Directory:
        return reference_of(self.shop).directory

    async def until(self, truth: Callable[[], object]) -> float:
        """How long it took."""
        began_s = time.monotonic()
        async with asyncio.timeout(LIVENESS_S):
            while not truth():
                await asyncio.sleep(0.02)
        return time.monotonic() - began_s

    def load(self, per_second: float = 100) -> Load:
        return Load(lambda _: self.shop.attachments(), per_second=per_second)


@pytest.fixture
def cables() -> Iterator[Cables]:
    with Cables() as cables:
        yield cables


@pytest.fixture
async def cluster(cables: Cables, tmp_path: Path) -> AsyncIterator[Cluster]:
    zookeeper, *machines = (cables.machine(name) for name in ("zk", "p0", "p1"))
    server = ZooKeeperServer(tmp_path / "zookeeper", host=zookeeper.address, prefix=zookeeper.prefix)
    async with AsyncExitStack() as stack:
        stack.enter_context(server)
        cluster = Cluster(zookeeper, machines, server, cables)
        url = server.url(session_timeout_s=int(SESSION_S))
        for number, machine in enumerate(machines):
            process = provider_process(url, name=f"shop-{number}", host=machine.address, prefix=machine.prefix)
            cluster.processes.append(await stack.enter_async_context(process))
        # Machines that are namespaces share their files, and so would be connected by a socket that no cut reaches.
        consumer = await stack.enter_async_context(Consumer(url, carrier="tcp"))
        cluster.shop = consumer.refer(Shop)
        await cluster.until(lambda: len(cluster.directory.nodes) == 2 and not cluster.directory.out)
        yield cluster


async def test_the_consumer_is_cut_from_zookeeper_only(cluster: Cluster) -> None:
    """No call fails, for longer than the session lives, and the list is vouched for again afterwards."""
    async with cluster.load() as load:
        cluster.zookeeper.cut_from(cluster.here)
        await cluster.until(lambda: cluster.directory.snapshot.is_stale)
        await asyncio.sleep(2 * SESSION_S)
        assert len(cluster.directory.nodes) == 2
        cluster.zookeeper.heal()
        await cluster.until(lambda: not cluster.directory.snapshot.is_stale)
    print(load)
    assert not load.failures, load.failures[:3]


async def test_a_provider_is_cut_from_the_consumer_only(cluster: Cluster) -> None:
    """Only the connection can know. Out of picks within three heartbeats, and back within five seconds of healing."""
    lost = cluster.processes[0].address
    async with Load(lambda key: cluster.shop.echo(key, b"x"), per_second=100) as load:
        cluster.machines[0].cut_from(cluster.here)
        out_s = await cluster.until(lambda: not cluster.directory.takes_calls(lost))
        assert len(cluster.directory.snapshot.nodes) == 2  # ZooKeeper sees nothing wrong
        failed = len(load.failures)
        await asyncio.sleep(3)
        assert len(load.failures) == failed, load.failures[-3:]  # nobody is sent there any more
        cluster.machines[0].heal()
        back_s = await cluster.until(lambda: cluster.directory.takes_calls(lost))
    print(f"out after {out_s:.1f} s, back {back_s:.1f} s after healing; {load}")
    assert out_s < HEARTBEATS_S + 2.0
    assert back_s < 5.0


async def test_a_provider_is_cut_from_zookeeper_only(cluster: Cluster) -> None:
    """Its session ends and its entry goes. Its consumers keep it while it answers, and not a moment longer."""
    provider = cluster.processes[0]
    async with cluster.load() as load:
        cluster.zookeeper.cut_from(cluster.machines[0])
        await cluster.until(lambda: len(cluster.directory.snapshot.nodes) == 1)
        await asyncio.sleep(2 * SESSION_S)
        assert len(cluster.directory.nodes) == 2
        names = {await cluster.shop.blocking(0.0) for _ in range(60)}
        assert names == {"shop-0", "shop-1"}
        cluster.zookeeper.heal()
        await cluster.until(lambda: len(cluster.directory.snapshot.nodes) == 2)
        cluster.zookeeper.cut_from(cluster.machines[0])
        await cluster.until(lambda: len(cluster.directory.snapshot.nodes) == 1)
    print(load)
    assert not load.failures, load.failures[:3]
    provider.kill()
    await cluster.until(lambda: len(cluster.directory.nodes) == 1)


async def test_zookeeper_is_cut_from_everybody(cluster: Cluster) -> None:
    """No call fails; sessions end; afterwards both providers are registered under new ones."""
    async with cluster.load() as load:
        for machine in (cluster.here, *cluster.machines):
            cluster.zookeeper.cut_from(machine)
        await cluster.until(lambda: cluster.directory.snapshot.is_stale)
        await asyncio.sleep(2 * SESSION_S)
        cluster.zookeeper.heal()
        await cluster.until(
            lambda: len(cluster.directory.snapshot.nodes) == 2 and not cluster.directory.snapshot.is_stale
        )
    print(load)
    assert not load.failures, load.failures[:3]


async def test_an_observer_leaves_a_server_that_is_cut_from_the_others(cables: Cables, tmp_path: Path) -> None:
    """It may be served by a minority that is read-only, and says so; it goes back to the majority when it can."""
    machines = [cables.machine(f"zk{number}") for number in range(3)]
    peers = "".join(f"server.{number}={machine.address}:2888:3888\n" for number, machine in enumerate(machines))
    extra = f"initLimit=10\nsyncLimit=4\nstandaloneEnabled=false\n{LOCAL_SESSIONS}{peers}"
    async with AsyncExitStack() as stack:
        servers = []
        for number, machine in enumerate(machines):
            data = tmp_path / str(number) / "data"
            data.mkdir(parents=True)
            (data / "myid").write_text(str(number))
            flags = ["-Dreadonlymode.enabled=true"]
            server = ZooKeeperServer(data.parent, host=machine.address, extra=extra, flags=flags, prefix=machine.prefix)
            server.start(waits=False)
            stack.callback(server.kill)
            servers.append(server)
        for server in servers:
            await asyncio.to_thread(server.wait_until_serving)
        url = f"zookeeper://{','.join(server.hosts for server in servers)}/dubbo?session_timeout_s=1"
        provider = await stack.enter_async_context(open_registry(f"{url}&own_session=true"))
        node = Node(interface="ads.Ctr", host="10.0.0.1", port=1)
        entry = await provider.register(node)
        observer = await stack.enter_async_context(open_registry(f"{url}&read_only=true"))
        view = await observer.subscribe(ServiceKey(interface="ads.Ctr"))

        async def until(wanted: Callable[[Snapshot], object]) -> None:
            async with asyncio.timeout(LIVENESS_S):
                while not wanted(view.snapshot):
                    await asyncio.sleep(0.02)

        minority, *majority = machines
        for machine in majority:
            minority.cut_from(machine)
            machine.cut_from(cables.here)
        await until(lambda found: found.is_stale and observer._lease.session.is_read_only)  # type: ignore[attr-defined]
        await asyncio.sleep(2.0)
        assert view.snapshot.nodes == (node,)
        for machine in majority:
            machine.heal()
        began_s = time.monotonic()
        await entry.update(replace(node, weight=7))
        await until(lambda found: not found.is_stale and found.nodes == (replace(node, weight=7),))
        print(f"back at the majority after {time.monotonic() - began_s:.1f} s")
        assert "Mode: read-only" in servers[0].command("srvr")
