"""``dns://`` against a real name server: addresses, SRV records, changes, outages and empty answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.dns import NameServer

from steelyard_registry import (
    MalformedUrl,
    Node,
    RegistryError,
    RegistryUnreachable,
    ServiceKey,
    Snapshot,
    Subscription,
    open_registry,
)

LIVENESS_S = 20.0
CTR = ServiceKey(interface="ads.Ctr", version="1.0.0")
QUICK = "min_ttl_s=0.1&max_ttl_s=0.2"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NameServer]:
    with NameServer(tmp_path) as server:
        yield server


async def until(view: Subscription, wanted: Callable[[Snapshot], object]) -> Snapshot:
    async with asyncio.timeout(LIVENESS_S):
        while not wanted(view.snapshot):
            await view.changed(view.snapshot.version)
    return view.snapshot


def addresses(snapshot: Snapshot) -> list[str]:
    return [node.address for node in snapshot.nodes]


async def test_addresses_of_both_families_on_one_port(server: NameServer) -> None:
    server.say("host-record=ctr.test,10.0.0.1", "host-record=ctr.test,fd00::7", "host-record=ctr.test,10.0.0.2")
    async with open_registry(f"dns://127.0.0.1:{server.port}/ctr.test:20880?zone=a&hw.kind=gpu&pool=ads") as registry:
        assert registry.url == f"dns://127.0.0.1:{server.port}/ctr.test:20880"
        snapshot = (await registry.subscribe(CTR)).snapshot
        assert addresses(snapshot) == ["10.0.0.1:20880", "10.0.0.2:20880", "[fd00::7]:20880"]
        node = snapshot.nodes[0]
        assert (node.service_key, node.zone, node.hardware.kind, node.weight) == ("ads.Ctr:1.0.0", "a", "gpu", 100)
        assert dict(node.tags) == {"pool": "ads"}
        assert not snapshot.is_stale


async def test_changes_are_seen_when_the_answer_has_run_out(server: NameServer) -> None:
    server.addresses("10.0.0.1")
    async with open_registry(f"dns://127.0.0.1:{server.port}/ctr.test:1?{QUICK}") as registry:
        view = await registry.subscribe(CTR)
        assert addresses(view.snapshot) == ["10.0.0.1:1"]
        server.addresses("10.0.0.1", "10.0.0.2")
        await until(view, lambda found: addresses(found) == ["10.0.0.1:1", "10.0.0.2:1"] and not found.is_stale)


async def test_an_answer_holds_for_its_ttl(server: NameServer) -> None:
    server.say("host-record=ctr.test,10.0.0.1,600")
    async with open_registry(f"dns://127.0.0.1:{server.port}/ctr.test:1?min_ttl_s=0.05&max_ttl_s=600") as registry:
        view = await registry.subscribe(CTR)
        server.say("host-record=ctr.test,10.0.0.2,600")
        await asyncio.sleep(1.0)
        assert addresses(view.snapshot) == ["10.0.0.1:1"]


async def test_srv_records_bring_ports_weights_and_priorities(server: NameServer) -> None:
    records = [("a.test", 1001, 10, 30), ("b.test", 1002, 10, 0), ("c.test", 1003, 20, 100)]
    server.services(records, {"a.test": "10.0.0.1", "b.test": "10.0.0.2", "c.test": "10.0.0.3"})
    async with open_registry(f"dns://127.0.0.1:{server.port}/_tri._tcp.ctr.test?{QUICK}") as registry:
        view = await registry.subscribe(CTR)
        assert [(node.address, node.weight) for node in view.snapshot.nodes] == [
            ("10.0.0.1:1001", 30),
            ("10.0.0.2:1002", 1),
        ]
        server.services(records[2:], {"c.test": "10.0.0.3"})
        await until(view, lambda found: addresses(found) == ["10.0.0.3:1003"] and not found.is_stale)


async def test_a_server_that_is_silent_changes_nothing(server: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard_registry.dns._ASK_S", 0.5)
    monkeypatch.setattr("steelyard_registry.dns._FAILED_S", 0.2)
    server.addresses("10.0.0.1")
    async with open_registry(f"dns://127.0.0.1:{server.port}/ctr.test:1?{QUICK}") as registry:
        view = await registry.subscribe(CTR)
        server.stop()
        stale = await until(view, lambda found: found.is_stale)
        assert addresses(stale) == ["10.0.0.1:1"]
        server.addresses("10.0.0.2")
        await until(view, lambda found: addresses(found) == ["10.0.0.2:1"] and not found.is_stale)


async def test_a_name_that_lost_its_records_keeps_the_last_for_a_while(server: NameServer) -> None:
    server.addresses("10.0.0.1")
    async with open_registry(f"dns://127.0.0.1:{server.port}/ctr.test:1?{QUICK}&empty_grace_s=1") as registry:
        view = await registry.subscribe(CTR)
        server.say()
        doubted = await until(view, lambda found: found.is_stale)
        assert addresses(doubted) == ["10.0.0.1:1"]
        await until(view, lambda found: not found.nodes and not found.is_stale)


async def test_a_name_that_is_not_there_yet(server: NameServer) -> None:
    server.say()
    async with open_registry(f"dns://127.0.0.1:{server.port}/ctr.test:1?{QUICK}") as registry:
        view = await registry.subscribe(CTR)
        assert (view.snapshot.nodes, view.snapshot.is_stale) == ((), False)
        entry = await registry.register(Node(interface="ads.Ctr", host="10.0.0.9", port=1))
        await entry.withdraw()
        server.addresses("10.0.0.1")
        await until(view, lambda found: addresses(found) == ["10.0.0.1:1"])


async def test_no_server_at_the_start_is_an_error(server: NameServer) -> None:
    with pytest.raises(RegistryUnreachable, match="no name server answered within"):
        await open_registry(f"dns://127.0.0.1:{server.port}/ctr.test:1").open(wait_s=0.5)


async def test_a_literal_address_asks_nobody() -> None:
    async with open_registry("dns://127.0.0.1:1/10.0.0.7:20880") as registry:
        assert addresses((await registry.subscribe(CTR)).snapshot) == ["10.0.0.7:20880"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("dns://", "needs a name"),
        ("dns://ctr.test", "names of SRV records begin with '_'"),
        ("dns://ctr.test:0", "needs a port"),
        ("dns://_x y", "SRV|host part|not a name"),
        ("dns://u:p@ctr.test:1", "takes no user"),
        ("dns://ctr.test:1?version=2", "answers every version"),
        ("dns://ctr.test:1?min_ttl_s=no", "min_ttl_s"),
        ("dns://ctr.test:1?weight=heavy", "weight"),
    ],
)
def test_urls_that_cannot_be_understood(url: str, words: str) -> None:
    with pytest.raises(MalformedUrl, match=words):
        open_registry(url)


async def test_a_name_server_is_named_by_its_address() -> None:
    with pytest.raises((MalformedUrl, RegistryError), match="has to be an IP address"):
        await open_registry("dns://ns.test/ctr.test:1").open(wait_s=1)
