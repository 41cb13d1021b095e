"""Providers that die, and providers that are restarted one after another, under load and in each kind of registry."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
from support.dns import NameServer
from support.load import Load
from support.processes import provider_process
from support.shop import Shop, ShopModel
from support.zookeeper import free_port, zookeeper_root

from steelyard import Consumer, Provider
from steelyard.cluster import Directory
from steelyard.consumer import reference_of

LIVENESS_S = 40.0
COUNT = 3


async def until(truth: Callable[[], object]) -> float:
    began_s = time.monotonic()
    async with asyncio.timeout(LIVENESS_S):
        while not truth():
            await asyncio.sleep(0.005)
    return time.monotonic() - began_s


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture(
    params=[
        pytest.param("embedded", marks=pytest.mark.slow),
        pytest.param("zookeeper", marks=pytest.mark.zookeeper),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "embedded":
        yield f"embedded://{tmp_path}/registry.db"
    else:
        with zookeeper_root(session_timeout_s=3) as place:
            yield place


def directory_of(shop: Shop) -> Directory:
    return reference_of(shop).directory


async def refer(stack: AsyncExitStack, url: str, nodes: int) -> Shop:
    consumer = await stack.enter_async_context(Consumer(url))
    shop = consumer.refer(Shop)
    await until(lambda: len(directory_of(shop).nodes) == nodes and not directory_of(shop).out)
    return shop


async def test_a_provider_is_killed_under_load(stack: AsyncExitStack, url: str) -> None:
    """No idempotent call fails, and its address is out of picks within a second, while the registry still lists it."""
    processes = [await stack.enter_async_context(provider_process(url, name=f"shop-{at}")) for at in range(COUNT)]
    shop = await refer(stack, url, COUNT)
    directory = directory_of(shop)
    async with Load(lambda key: shop.echo(key, b"x"), per_second=300) as load:
        await asyncio.sleep(1)
        for killed in processes[:2]:
            killed.kill()
            out_s = await until(lambda killed=killed: not directory.takes_calls(killed.address))
            assert any(node.address == killed.address for node in directory.snapshot.nodes)
            await asyncio.sleep(0.5)
            print(f"out of picks after {out_s * 1000:.0f} ms")
            assert out_s < 1.0
    print(load)
    assert not load.failures, load.failures[:3]
    # Gone from the list as well, when the session or the lease is over.
    await until(lambda: len(directory.nodes) == 1)


class Serving:
    """A provider that can be stopped as an operator stops it, in this process (memory) or in one of its own."""

    def __init__(self, url: str, port: int) -> None:
        self._url, self._port = url, port
        self._own = AsyncExitStack()

    async def start(self, name: str) -> None:
        if self._url.startswith("memory"):
            provider = await self._own.enter_async_context(Provider(self._url, host="127.0.0.1", port=self._port))
            await provider.export(ShopModel(name))
            return
        process = await self._own.enter_async_context(provider_process(self._url, port=self._port, name=name))

        async def stop() -> None:
            assert await process.stop() == 0  # SIGTERM: it drains

        self._own.push_async_callback(stop)

    async def stop(self) -> None:
        await self._own.aclose()


KINDS = [
    "memory",
    pytest.param("zookeeper", marks=pytest.mark.zookeeper),
    pytest.param("embedded", marks=pytest.mark.slow),
    pytest.param("static", marks=pytest.mark.slow),
    pytest.param("dns", marks=pytest.mark.slow),
    pytest.param("multi", marks=[pytest.mark.slow, pytest.mark.zookeeper]),
]


def place(kind: str, stack: AsyncExitStack, folder: Path, ports: Sequence[int]) -> str:
    """The URL of a registry of this kind for providers on *ports*."""
    embedded = f"embedded://{folder}/registry.db"
    if kind == "embedded":
        return embedded
    if kind == "memory":
        return "memory://rolling-restart"
    if kind == "static":
        return f"static://{','.join(f'127.0.0.1:{port}' for port in ports)}"
    if kind == "dns":
        server = stack.enter_context(NameServer(folder))
        server.services([("one.test", port, 1, 1) for port in ports], {"one.test": "127.0.0.1"})
        return f"dns://127.0.0.1:{server.port}/_tri._tcp.ctr.test"
    zookeeper = stack.enter_context(zookeeper_root())
    if kind == "multi":
        return f"multi://merge?1={quote(embedded, safe='')}&2={quote(zookeeper, safe='')}"
    return zookeeper


@pytest.mark.parametrize("kind", KINDS)
async def test_providers_are_restarted_one_after_another_under_load(
    stack: AsyncExitStack, tmp_path: Path, kind: str
) -> None:
    """No call fails, idempotent or not: a provider says that it drains before it goes, and has calls when it is
    back."""
    ports = [free_port() for _ in range(COUNT)]
    url = place(kind, stack, tmp_path, ports)
    serving = [Serving(url, port) for port in ports]
    for each in serving:
        await each.start("before")
        stack.push_async_callback(each.stop)
    shop = await refer(stack, url, COUNT)
    directory = directory_of(shop)
    async with Load(lambda _: shop.attachments(), per_second=200) as load:
        for each, port in zip(serving, ports, strict=True):
            await each.stop()
            await asyncio.sleep(0.2)
            await each.start("after")
            await until(lambda port=port: directory.takes_calls(f"127.0.0.1:{port}"))
    print(load)
    assert not load.failures, load.failures[:3]
    assert {await shop.blocking(0.0) for _ in range(60)} == {"after"}
