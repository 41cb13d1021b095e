"""A cluster in one process ends whole, and its parts in the order that cuts off no call."""

from __future__ import annotations

import asyncio

import pytest
from support.shop import Shop, ShopModel

from steelyard import ConfigError
from steelyard.testing import LocalCluster


async def test_its_providers_end_even_when_its_consumer_ends_badly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise OSError("no end")

    cluster = LocalCluster()
    await cluster.__aenter__()
    provider = await cluster.provide(ShopModel())
    close = cluster.consumer.close
    monkeypatch.setattr(cluster.consumer, "close", fail)
    with pytest.raises(OSError, match="no end"):
        await cluster.__aexit__(None, None, None)
    with pytest.raises(ConfigError, match="has been closed"):
        await provider.open()
    await close()


async def test_two_clusters_do_not_meet() -> None:
    async with LocalCluster() as one, LocalCluster() as other:
        await one.provide(ShopModel("one"))
        await other.provide(ShopModel("other"))
        for cluster, name in ((one, "one"), (other, "other")):
            shop = cluster.consumer.refer(Shop)
            await cluster.consumer.ready(shop)
            assert await asyncio.gather(*(shop.blocking(0) for _ in range(3))) == [name] * 3
