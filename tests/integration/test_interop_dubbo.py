"""Apache Dubbo for Python, directly and through the same ZooKeeper: it finds and calls us, and we find and call it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.interop.contract import Ask, Echo, EchoModel
from support.interop.peers import answer_of, dubbo_python, running
from support.zookeeper import ZooKeeperServer, free_port

from steelyard import Consumer, DeadlineExceeded, Provider, with_options
from steelyard.errors import InternalError

pytestmark = pytest.mark.zookeeper

PEER = str(Path(__file__).parents[1] / "support" / "interop" / "dubbo_peer.py")
BROKEN = (
    "%zz",
    quote("dubbo://10.0.0.2:1/interop.Echo", safe=""),
    quote("tri://nowhere", safe=""),
    quote("tri://127.0.0.1:1/interop.Echo?weight=heavy", safe=""),
)


def asked(text: str, times: int = 1) -> Any:
    return Ask(text=text, times=times)


async def asks(*texts: str) -> AsyncIterator[Any]:
    for text in texts:
        yield asked(text)


async def calls_from_dubbo(source: str) -> Any:
    return json.loads((await answer_of(dubbo_python(), PEER, "call", "interop.Echo", source)).splitlines()[-1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Dubbo's root is not to be chosen there, so it has a server of its own."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(autouse=True)
def clean(server: ZooKeeperServer) -> Iterator[None]:
    yield
    with server.client() as operator:
        operator.delete("/dubbo", recursive=True)


async def test_its_client_calls_ours_directly() -> None:
    async with Provider("memory://", host="127.0.0.1") as provider:
        await provider.export(EchoModel(), contract=Echo)
        told = await calls_from_dubbo(f"tri://{provider.address}")
    assert (told["say"], told["count"]) == ("hellohello", ["n0", "n1", "n2"])
    assert "RESOURCE_EXHAUSTED come back later" in told["busy"]


async def test_we_call_its_server_directly() -> None:
    port = free_port()
    async with (
        running(dubbo_python(), PEER, "serve", str(port), "interop.Echo", until="serving"),
        Consumer(f"static://127.0.0.1:{port}") as consumer,
    ):
        echo = consumer.refer(Echo)
        assert (await echo.Say(asked("x"))).text == "x"
        assert [told.text async for told in echo.Count(asked("n"))] == ["n0", "n1", "n2"]
        assert (await echo.Sum(asks("a", "b"))).text == "ab"
        assert [told.text async for told in echo.Chat(asks("a", "b"))] == ["a", "b"]
        with pytest.raises(InternalError, match="broken"):
            await echo.Say(asked("break"))
        with pytest.raises(DeadlineExceeded):
            await with_options(echo, timeout_s=0.3).Say(asked("wait"))


async def test_its_consumer_finds_and_calls_our_provider(server: ZooKeeperServer) -> None:
    async with Provider(server.url(), host="127.0.0.1") as provider:
        await provider.export(EchoModel(), contract=Echo)
        told = await calls_from_dubbo(f"zookeeper://{server.hosts}")
    assert (told["say"], told["count"]) == ("hellohello", ["n0", "n1", "n2"])


async def test_we_find_and_call_its_provider_beside_ours_and_broken_ones(server: ZooKeeperServer) -> None:
    port = free_port()
    theirs = f"127.0.0.1:{port}"
    command = (dubbo_python(), PEER, "serve", str(port), "interop.Echo", f"zookeeper://{server.hosts}")
    async with (
        running(*command, until="serving") as (process, _),
        Provider(server.url(), host="127.0.0.1") as provider,
        Consumer(server.url()) as consumer,
    ):
        await provider.export(EchoModel(), contract=Echo)
        with server.client() as operator:
            for broken in BROKEN:
                operator.create(f"/dubbo/interop.Echo/providers/{broken}", ephemeral=True)
            echo = consumer.refer(Echo, policy="round_robin", retries=0)
            await consumer.ready(echo, nodes=2)
            await until_all_connected(consumer, 2)
            assert consumer.statistics(echo).snapshot.skipped == len(BROKEN)
            assert consumer._channels is not None
            carriers = consumer._channels.carriers()
            assert carriers[theirs] == "plain"
            assert carriers[provider.address] in ("uds", "tcp"), "ours speaks our wire"
            # Theirs says it once, whatever it is asked; ours as often as it is asked to.
            answers = [(await echo.Say(asked("x", 2))).text for _ in range(20)]
            assert (answers.count("x"), answers.count("xx")) == (10, 10)
            # Its entry lives until its session ends; its connection tells at once.
            process.kill()
            await process.wait()
            await until_all_connected(consumer, 1)
            assert {(await echo.Say(asked("x", 2))).text for _ in range(20)} == {"xx"}
            assert {node.address for node in consumer.statistics(echo).snapshot.nodes} == {theirs, provider.address}


async def until_all_connected(consumer: Consumer, number: int) -> None:
    assert consumer._channels is not None
    async with asyncio.timeout(30):
        while [state.value for state in consumer._channels.states().values()].count("ready") != number:
            await asyncio.sleep(0.02)
