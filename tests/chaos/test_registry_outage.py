"""A real ZooKeeper that dies, comes back, loses its leader or its data, while calls go on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from support.load import Load
from support.processes import provider_process
from support.shop import Shop
from support.zookeeper import Ensemble, ZooKeeperServer

from steelyard import Consumer, RegistryUnavailable
from steelyard.consumer import reference_of

pytestmark = pytest.mark.zookeeper

LIVENESS_S = 40.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def providers(stack: AsyncExitStack, url: str, count: int = 3) -> list[Any]:
    starting = (stack.enter_async_context(provider_process(url, name=f"shop-{at}")) for at in range(count))
    return [await each for each in starting]


async def refer(stack: AsyncExitStack, url: str, nodes: int) -> tuple[Consumer, Shop]:
    consumer = await stack.enter_async_context(Consumer(url))
    shop = consumer.refer(Shop)
    await consumer.ready(shop, nodes=nodes, wait_s=LIVENESS_S)
    return consumer, shop


def calls(shop: Shop, per_second: float) -> Load:
    """Not declared idempotent, and without a fallback: nothing but a clean reply counts."""
    return Load(lambda _: shop.attachments(), per_second=per_second)


def snapshot(shop: Shop) -> Any:
    return reference_of(shop).directory.snapshot


async def until(truth: Any) -> None:
    async with asyncio.timeout(LIVENESS_S):
        while not truth():
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_the_leader_is_killed_under_load(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Three servers, 2,000 calls a second asked for: none fails, and afterwards changes are seen again."""
    ensemble = stack.enter_context(Ensemble(tmp_path / "ensemble"))
    url = ensemble.url(session_timeout_s=4)
    await providers(stack, url, 2)
    _, shop = await refer(stack, url, 2)
    async with calls(shop, 2000) as load:
        await asyncio.sleep(1)
        leader = await asyncio.to_thread(lambda: ensemble.leader)
        await asyncio.to_thread(leader.kill)
        await asyncio.sleep(3)
        await providers(stack, url, 1)  # registers with the new leader, and is seen
        await until(lambda: len(snapshot(shop).nodes) == 3 and not snapshot(shop).is_stale)
    print(load)
    assert not load.failures, load.failures[:3]
    assert load.done > 1000


@pytest.mark.parametrize(
    "down_s",
    [
        pytest.param(10.0, marks=pytest.mark.slow),
        pytest.param(60.0, marks=[pytest.mark.slow, pytest.mark.timeout(200)]),
    ],
)
async def test_zookeeper_is_down_entirely_under_load(
    stack: AsyncExitStack, server: ZooKeeperServer, caplog: pytest.LogCaptureFixture, down_s: float
) -> None:
    """Longer than the sessions live. No call to a living provider fails, and a fresh consumer starts from its cache."""
    url = server.url(session_timeout_s=2)
    await providers(stack, url)
    _, shop = await refer(stack, url, 3)
    await asyncio.sleep(1.5)  # lists are written to disk shortly after they have changed
    async with calls(shop, 200) as load:
        await asyncio.to_thread(server.kill)
        await until(lambda: snapshot(shop).is_stale)
        await asyncio.sleep(down_s / 2)
        with caplog.at_level(logging.WARNING):
            fresh = await stack.enter_async_context(Consumer(url))
            other = fresh.refer(Shop)
            await fresh.ready(other, nodes=3)
            assert {await other.blocking(0.0) for _ in range(60)} == {"shop-0", "shop-1", "shop-2"}
        assert "starting from the lists that were kept on disk" in caplog.text
        assert "3 nodes of test.Shop:1.0.0 from the list that was kept" in caplog.text
        assert snapshot(other).is_stale
        await asyncio.sleep(down_s / 2)
        await asyncio.to_thread(server.start)
        for each in (shop, other):
            await until(lambda each=each: len(snapshot(each).nodes) == 3 and not snapshot(each).is_stale)
    print(load)
    assert not load.failures, load.failures[:3]
    assert load.done > 100 * down_s / 2


async def test_without_a_cache_a_consumer_says_that_the_registry_is_away(tmp_path: Path) -> None:
    absent = ZooKeeperServer(tmp_path / "absent")
    with pytest.raises(RegistryUnavailable, match="no ZooKeeper answered"):
        await Consumer(absent.url(), registry_wait_s=0.5).open()


@pytest.mark.slow
async def test_a_provider_is_killed_while_zookeeper_is_away(stack: AsyncExitStack, server: ZooKeeperServer) -> None:
    """The registry cannot say so, the connection can: out of picks at once; started again, it is back in them."""
    url = server.url(session_timeout_s=2)
    processes = await providers(stack, url)
    _, shop = await refer(stack, url, 3)
    directory = reference_of(shop).directory
    await until(lambda: not directory.out)
    await asyncio.to_thread(server.kill)
    async with Load(lambda key: shop.echo(key, b"x"), per_second=200) as load:
        await asyncio.sleep(0.5)
        killed = processes[0]
        killed.kill()
        await until(lambda: not directory.takes_calls(killed.address))
        assert len(directory.nodes) == 3  # nobody vouches for its end
        await asyncio.sleep(1)
    assert not load.failures, load.failures[:3]
    await asyncio.to_thread(server.start)
    # The killed one's entry went with its session, and so does the node; the two that live are registered anew.
    await until(lambda: len(directory.nodes) == 2 and not snapshot(shop).is_stale)


@pytest.mark.parametrize("flaps", [1, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(400)])])
async def test_down_up_again_and_again_under_load(stack: AsyncExitStack, server: ZooKeeperServer, flaps: int) -> None:
    """After k flaps everything is registered and watched, and no call has failed on the way."""
    url = server.url(session_timeout_s=2)
    await providers(stack, url, 2)
    _, shop = await refer(stack, url, 2)
    async with calls(shop, 100) as load:
        for flap in range(flaps):
            await asyncio.to_thread(server.kill if flap % 2 else server.stop)
            await asyncio.sleep((0.1, 0.7, 2.5)[flap % 3])  # shorter and longer than a session lives
            await asyncio.to_thread(server.start)
            await asyncio.sleep((0.1, 1.0)[flap % 2])
        await providers(stack, url, 1)
        await until(lambda: len(snapshot(shop).nodes) == 3 and not snapshot(shop).is_stale)
    print(load)
    assert not load.failures, load.failures[:3]
    with server.client() as operator:
        folder = "/dubbo/test.Shop/providers"
        await until(lambda: len(operator.get_children(folder)) == 3)
        owners = {operator.exists(f"{folder}/{name}").ephemeralOwner for name in operator.get_children(folder)}
    assert len(owners) == 3
