"""A server that has lost its quorum and goes on in read-only mode: observers read on, registering waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.zookeeper import LOCAL_SESSIONS, Ensemble, ZooKeeperServer

from steelyard_registry import Node, ServiceKey, Snapshot, Subscription, open_registry

pytestmark = pytest.mark.zookeeper

LIVENESS_S = 60.0
CTR = ServiceKey(interface="ads.Ctr")
NODE = Node(interface="ads.Ctr", host="10.0.0.1", port=20880, started_at_ms=1700000000000)


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    flags = ["-Dreadonlymode.enabled=true"]
    with Ensemble(tmp_path / "ensemble", extra=LOCAL_SESSIONS, flags=flags) as ensemble:
        yield ensemble


async def until(view: Subscription, wanted: Callable[[Snapshot], object]) -> Snapshot:
    async with asyncio.timeout(LIVENESS_S):
        while not wanted(view.snapshot):
            await view.changed(view.snapshot.version)
    return view.snapshot


async def is_read_only(server: ZooKeeperServer) -> None:
    async with asyncio.timeout(LIVENESS_S):
        while "Mode: read-only" not in await asyncio.to_thread(server.command, "srvr"):
            await asyncio.sleep(0.05)


def ports(*numbers: int) -> Callable[[Snapshot], bool]:
    return lambda found: {node.port for node in found.nodes} == set(numbers)


async def test_one_server_of_three_is_left(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    """Observers, old ones and new ones, have the list from it, marked stale: it cannot know better. Who registers or
    does not say that it only reads waits for a quorum, and then everything is there."""
    monkeypatch.setattr("steelyard_registry.zookeeper.registry.ANSWER_WAIT_S", 1.0)
    url = ensemble.url(session_timeout_s=2, own_session="true", cache="off")
    observing = f"{url}&read_only=true"
    async with (
        open_registry(url) as provider,
        open_registry(url) as consumer,
        open_registry(observing) as observer,
        open_registry(observing) as newcomer,
    ):
        await provider.register(NODE)
        held = await consumer.subscribe(CTR)
        view = await observer.subscribe(CTR)
        await until(view, ports(20880))
        first, second, left = ensemble.servers
        first.kill()
        second.kill()
        await is_read_only(left)
        entry = await provider.register(replace(NODE, port=2))  # returns, and is not there
        async with open_registry(observing) as late:
            for each in (observer, newcomer, late):
                fresh = await each.subscribe(CTR)
                assert (await until(fresh, ports(20880))).is_stale
                assert await each.services() == ("ads.Ctr",)
        assert ports(20880)(view.snapshot)
        assert view.snapshot.is_stale
        assert ports(20880)(held.snapshot)
        assert held.snapshot.is_stale
        for server in (first, second):
            server.start(waits=False)
        for each in (view, held):
            await until(each, lambda found: ports(2, 20880)(found) and not found.is_stale)
        await entry.withdraw()
        for each in (view, held):
            await until(each, lambda found: ports(20880)(found) and not found.is_stale)
        for registry in (provider, consumer, observer):
            client = registry._lease.session._client  # type: ignore[attr-defined]
            assert client.handler.socket_thread.is_alive()
            assert all(worker.is_alive() for worker in client.handler._workers)
