"""Protection and switches as a user of Consumer meets them."""

from __future__ import annotations

import pytest
from support.shop import Shop, ShopModel

from steelyard import ConfigError, Degraded, Unavailable, with_options
from steelyard.guard import Level, ProtectionSettings
from steelyard.testing import LocalCluster


async def test_switches_act_at_once_and_are_shown() -> None:
    async with LocalCluster() as cluster:
        model = ShopModel()
        await cluster.provide(model)
        consumer, shop = cluster.consumer, cluster.consumer.refer(Shop)
        await consumer.ready(shop)
        assert await shop.echo(1, b"x") == b"x"
        consumer.switch(shop, "force", "echo")
        with pytest.raises(Degraded, match="switched to force"):
            await shop.echo(2, b"x")
        assert model.calls == 1
        consumer.switch(shop, "force", "echo", answer=lambda key, body: body.upper())
        assert await with_options(shop, priority=0).echo(3, b"x") == b"X"
        assert consumer.statistics(shop).switches == {"echo": "force"}
        consumer.switch(shop, None, "echo")
        assert await shop.echo(4, b"x") == b"x"
        assert await shop.with_value(True) == -1
        consumer.switch(shop, "off", "with_value")
        with pytest.raises(Exception, match="cannot"):
            await shop.with_value(True)
        with pytest.raises(ConfigError, match="no method"):
            consumer.switch(shop, "force", "nothing")


async def test_a_switch_works_while_there_is_nobody_to_call() -> None:
    async with LocalCluster() as cluster:
        shop = cluster.consumer.refer(Shop)
        with pytest.raises(Unavailable):
            await shop.echo(1, b"x")
        cluster.consumer.switch(shop, "fail", answer=b"fallback")
        assert await shop.echo(1, b"x") == b"fallback"


async def test_statistics_show_protection_and_attempts() -> None:
    async with LocalCluster() as cluster:
        await cluster.provide(ShopModel())
        shop = cluster.consumer.refer(Shop)
        await cluster.consumer.ready(shop)
        for key in range(10):
            await shop.echo(key, b"x")
        shown = cluster.consumer.statistics(shop)
        assert shown.protection is not None
        assert shown.protection.level is Level.NONE
        assert shown.protection.asked == 10
        assert shown.protection.waits["echo"].in_flight == 0
        assert shown.failover is not None
        assert (shown.failover.calls, shown.failover.attempts, shown.failover.retries) == (10, 10, 0)


async def test_the_two_positions_stand_where_they_say_and_can_be_switched_off() -> None:
    seen: list[tuple[str, ...]] = []

    def look(stack):
        seen.append(stack.names)
        return stack

    async with LocalCluster() as cluster:
        cluster.consumer.refer(Shop, stack=look)
        cluster.consumer.refer(Shop, stack=look, protection=None)
        cluster.consumer.refer(Shop, stack=look, protection=ProtectionSettings(k=1.5))
    assert seen[0][-3:] == ("codec", "degrade", "recover")
    assert seen[1][-2:] == ("codec", "degrade")
    assert seen[2] == seen[0]


async def test_retries_of_zero_are_none_at_all() -> None:
    async with LocalCluster() as cluster:
        models = [ShopModel(str(at)) for at in range(3)]
        for model in models:
            model.is_failing = True
            await cluster.provide(model)
        shop = cluster.consumer.refer(Shop, retries=0)
        await cluster.consumer.ready(shop, nodes=3)
        for key in range(20):
            with pytest.raises(Exception, match="sick"):
                await shop.echo(key, b"x")
        assert sum(model.calls for model in models) == 20
        shown = cluster.consumer.statistics(shop).failover
        assert shown is not None
        assert (shown.attempts, shown.retries, shown.hedges) == (20, 0, 0)
