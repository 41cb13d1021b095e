"""ZooKeeper away: at the start, again and again, deaf, and back without its data. Each on a private server."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.zookeeper import ZooKeeperServer

from steelyard_registry import (
    Node,
    RegistryClosed,
    RegistryUnreachable,
    ServiceKey,
    Snapshot,
    Subscription,
    open_registry,
)

pytestmark = pytest.mark.zookeeper

LIVENESS_S = 40.0
CTR = ServiceKey(interface="ads.Ctr")
NODE = Node(interface="ads.Ctr", host="10.0.0.1", port=20880, started_at_ms=1700000000000)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield server


async def until(view: Subscription, wanted: Callable[[Snapshot], object]) -> Snapshot:
    async with asyncio.timeout(LIVENESS_S):
        while not wanted(view.snapshot):
            await view.changed(view.snapshot.version)
    return view.snapshot


def shows(*nodes: Node) -> Callable[[Snapshot], bool]:
    wanted = {(node.identity, node.weight) for node in nodes}
    return lambda found: not found.is_stale and {(node.identity, node.weight) for node in found.nodes} == wanted


async def test_unreachable_at_the_start(tmp_path: Path) -> None:
    absent = ZooKeeperServer(tmp_path)
    registry = open_registry(f"zookeeper://127.0.0.1:{absent.port},127.0.0.2:{absent.port}/dubbo")
    started_at = time.monotonic()
    with pytest.raises(RegistryUnreachable) as caught:
        await registry.open(wait_s=0.5)
    assert str(caught.value) == (
        f"no ZooKeeper answered at 127.0.0.1:{absent.port},127.0.0.2:{absent.port} within 0.5 s; check that it "
        "runs and that this machine reaches it, or open with wait_s=None to wait for it"
    )
    assert time.monotonic() - started_at < LIVENESS_S
    with pytest.raises(RegistryClosed):
        await registry.register(NODE)
    with pytest.raises(RegistryUnreachable):  # an open that failed may be tried again
        await registry.open(wait_s=0.2)
    await registry.close()


async def test_a_server_that_accepts_and_stays_silent_costs_the_wait_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no session to end, so closing waits for no goodbye (it was 3 s of waiting for nothing)."""
    monkeypatch.setattr("steelyard_registry.zookeeper.session._STOP_WAIT_S", 1000.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        registry = open_registry(f"zookeeper://127.0.0.1:{silent.getsockname()[1]}")
        async with asyncio.timeout(LIVENESS_S):
            with pytest.raises(RegistryUnreachable, match=r"within 0\.5 s"):
                await registry.open(wait_s=0.5)
            await registry.close()
    assert "goodbye" not in caplog.text


async def test_waiting_for_ever_ends_when_it_comes(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path)
    registry = open_registry(server.url())
    opening = asyncio.create_task(registry.open(wait_s=None))
    await asyncio.sleep(0.5)
    assert not opening.done()
    await asyncio.to_thread(server.start)
    try:
        async with asyncio.timeout(LIVENESS_S):
            await opening
        await registry.register(NODE)
        assert await registry.services() == ("ads.Ctr",)
        await registry.close()
    finally:
        server.kill()


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_waiting_for_ever_can_be_given_up(tmp_path: Path, how: str) -> None:
    registry = open_registry(ZooKeeperServer(tmp_path).url())
    opening = asyncio.create_task(registry.open(wait_s=None))
    await asyncio.sleep(0.2)
    async with asyncio.timeout(LIVENESS_S):
        if how == "cancel":
            opening.cancel()
        else:
            await registry.close()
        (result,) = await asyncio.gather(opening, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError if how == "cancel" else RegistryClosed)
        await registry.close()


async def test_a_host_that_does_not_resolve_is_an_unreachable_one(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RegistryUnreachable, match=r"zk\.invalid:2181"):
        await open_registry("zookeeper://zk.invalid").open(wait_s=1)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_down_up_down_up(server: ZooKeeperServer, caplog: pytest.LogCaptureFixture) -> None:
    """Registrations and subscriptions are alive after every flap, and what was asked meanwhile is done."""
    url = server.url(session_timeout_s=4, empty_grace_s=5)
    async with open_registry(url) as provider, open_registry(url) as consumer:
        kept = await provider.register(NODE)
        leaver = await provider.register(replace(NODE, port=1))
        view = await consumer.subscribe(CTR)
        await until(view, shows(NODE, replace(NODE, port=1)))
        node = NODE
        for flap in range(4):
            await asyncio.to_thread(server.kill if flap % 2 else server.stop)
            stale = await until(view, lambda found: found.is_stale)
            assert NODE.identity in {found.identity for found in stale.nodes}
            node = replace(node, weight=flap)
            waiting = [asyncio.create_task(kept.update(node))]
            if flap == 0:
                await leaver.withdraw()  # returns although nobody is there to be told
            if flap == 1:
                waiting.append(asyncio.create_task(provider.register(replace(NODE, port=2))))
            await asyncio.to_thread(server.start)
            await asyncio.gather(*waiting)
            expected = [node] if flap == 0 else [node, replace(NODE, port=2)]
            await until(view, shows(*expected))
        newcomer = await consumer.subscribe(CTR)
        assert shows(node, replace(NODE, port=2))(newcomer.snapshot)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert errors == []
    told = [record for record in caplog.records if "connection lost" in record.message]
    assert 4 <= len(told) <= 8  # one line an outage and registry, not one a try


async def test_asking_while_it_is_away(server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """register and subscribe return after a bounded wait, and come true when it is back."""
    monkeypatch.setattr("steelyard_registry.zookeeper.registry.ANSWER_WAIT_S", 0.3)
    async with open_registry(server.url(session_timeout_s=2)) as registry:
        await asyncio.to_thread(server.kill)
        entry = await registry.register(NODE)
        view = await registry.subscribe(CTR)
        assert (view.snapshot.nodes, view.snapshot.is_stale) == ((), True)
        await entry.update(replace(NODE, weight=3))
        with pytest.raises(RegistryUnreachable, match="does not answer now"):
            await registry.services()
        await asyncio.to_thread(server.start)
        await until(view, shows(replace(NODE, weight=3)))


async def test_away_entirely_the_last_snapshot_stays(server: ZooKeeperServer) -> None:
    """For longer than the session lives, and for longer than an empty list would be doubted."""
    async with open_registry(server.url(session_timeout_s=1, empty_grace_s=0.5)) as registry:
        await registry.register(NODE)
        view = await registry.subscribe(CTR)
        await asyncio.to_thread(server.kill)
        await until(view, lambda found: found.is_stale)
        await asyncio.sleep(2.5)
        assert view.snapshot.nodes == (NODE,)
        assert view.snapshot.is_stale
    # and closing while it is away ended by itself


async def test_a_deaf_server(server: ZooKeeperServer) -> None:
    """Connections stay open, nothing is answered, longer than the session: noticed, marked, and recovered from."""
    async with open_registry(server.url(session_timeout_s=2)) as registry:
        await registry.register(NODE)
        view = await registry.subscribe(CTR)
        server.pause()
        await until(view, lambda found: found.is_stale)
        await asyncio.sleep(2)
        server.resume()
        await until(view, shows(NODE))
        await registry.register(replace(NODE, port=2))
        await until(view, shows(NODE, replace(NODE, port=2)))


async def test_an_answer_that_does_not_come_makes_the_list_stale(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stands, and one question is not answered in time: a list that is long beyond reason."""
    async with open_registry(server.url(cache="off")) as registry:
        await registry.register(NODE)
        view = await registry.subscribe(CTR)
        session = registry._lease.session  # type: ignore[attr-defined]
        answer = session.call

        async def late(verb: str, path: str, **options: object) -> object:
            if "/providers" in path:
                raise TimeoutError
            return await answer(verb, path, **options)

        monkeypatch.setattr(session, "call", late)
        registry._watches[view][0].wake()  # type: ignore[attr-defined]
        assert (await until(view, lambda found: found.is_stale)).nodes == (NODE,)
        monkeypatch.undo()
        await until(view, shows(NODE))
        await registry.register(replace(NODE, port=2))
        await until(view, shows(NODE, replace(NODE, port=2)))


async def test_closing_on_a_deaf_server_is_bounded(server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard_registry.zookeeper.registry.LEAVE_WAIT_S", 0.5)
    monkeypatch.setattr("steelyard_registry.zookeeper.session._STOP_WAIT_S", 0.5)
    registry = open_registry(server.url(session_timeout_s=30))
    await registry.open()
    entry = await registry.register(NODE)
    server.pause()
    async with asyncio.timeout(LIVENESS_S):
        await entry.withdraw()
        await registry.close()
    server.resume()


async def test_a_server_that_lost_its_data(server: ZooKeeperServer) -> None:
    """It refuses clients that have seen more than it has. They forget, and everything is there again."""
    url = server.url(session_timeout_s=1, empty_grace_s=20)
    async with open_registry(url) as provider, open_registry(url) as consumer:
        for port in range(1, 6):
            await provider.register(replace(NODE, port=port))
        view = await consumer.subscribe(CTR)
        seen = [view.snapshot]

        async def watch() -> None:
            while True:
                seen.append(await view.changed(seen[-1].version))

        watching = asyncio.create_task(watch())
        await asyncio.to_thread(server.kill)
        (server.folder / "data").rename(server.folder / "lost")
        await asyncio.to_thread(server.start)
        await until(view, lambda found: found.is_stale)
        await until(view, lambda found: not found.is_stale and len(found.nodes) == 5)
        watching.cancel()
        assert all(snapshot.nodes for snapshot in seen)


async def test_a_hundred_services_recover_together(server: ZooKeeperServer) -> None:
    """Recovery is bounded: no handler thread blocks, and everything is registered and watched afterwards."""
    url = server.url(session_timeout_s=4)
    nodes = [replace(NODE, interface=f"ads.S{number}") for number in range(120)]
    async with open_registry(url) as provider, open_registry(url) as consumer:
        entries = await asyncio.gather(*(provider.register(node) for node in nodes))
        views = await asyncio.gather(
            *(consumer.subscribe(ServiceKey(interface=node.interface)) for node in nodes),
        )
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        changed = [replace(node, weight=7) for node in nodes]
        await asyncio.gather(*(entry.update(node) for entry, node in zip(entries, changed, strict=True)))
        await asyncio.gather(*(until(view, shows(node)) for view, node in zip(views, changed, strict=True)))
        assert len(await consumer.services()) == len(nodes)
