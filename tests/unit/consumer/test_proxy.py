"""What ``refer`` gives, in the hands of a user: errors that help, copies, options; and the end of its consumer."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import pydoc
from collections.abc import AsyncIterator

import pytest
from support.shop import Shop, ShopModel

from steelyard import (
    BlockingConsumer,
    ConfigError,
    Consumer,
    ContractError,
    NoProvider,
    Provider,
    Unavailable,
    with_options,
)
from steelyard.model import MethodSpec, Parameter
from steelyard.testing import LocalCluster


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        yield cluster


async def test_a_misspelt_method_is_answered_with_those_there_are(cluster: LocalCluster) -> None:
    shop = cluster.consumer.refer(Shop)
    with pytest.raises(AttributeError, match=r"test\.Shop:1\.0\.0 has no method 'ecco'; it has: .*echo, order"):
        shop.ecco  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"did you mean blocking_count\?$"):
        shop.blocking_cuont  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"user, with_value$"):
        shop.zebra  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(shop, "_private")


async def test_a_copy_is_the_proxy_itself_and_it_stays_in_its_process(cluster: LocalCluster) -> None:
    shop = cluster.consumer.refer(Shop)
    assert copy.copy(shop) is shop
    assert copy.deepcopy({"shop": [shop]})["shop"][0] is shop
    with pytest.raises(
        TypeError, match=r"<proxy of test\.Shop.* cannot be pickled: it belongs to the consumer of this"
    ):
        pickle.dumps(shop)


async def test_help_shows_the_contract(cluster: LocalCluster) -> None:
    shop = cluster.consumer.refer(Shop)
    assert str(inspect.signature(shop.scale)) == "(features: 'np.ndarray', by: 'float' = 2.0) -> 'np.ndarray'"
    assert inspect.iscoroutinefunction(shop.echo)
    assert shop.echo.__doc__ == "What came in."
    assert shop.scale.__doc__ == "scale of test.Shop:1.0.0, wherever it is served."
    assert "async scale(features: 'np.ndarray', by: 'float' = 2.0)" in pydoc.render_doc(
        shop.scale, renderer=pydoc.plaintext
    )
    spec = MethodSpec(
        name="rank", parameters=(Parameter("user", int), Parameter("top", default=3, is_keyword_only=True))
    )
    generic = cluster.consumer.generic("test.Other", [spec])
    assert str(inspect.signature(generic.rank)) == "(user: int, *, top=3)"


@pytest.mark.parametrize("end", [Consumer, Provider])
def test_with_says_async_with(end: type[Consumer] | type[Provider]) -> None:
    with pytest.raises(TypeError, match=rf"write `async with {end.__name__}\(\.\.\.\)`"), end("memory://"):
        pass


async def test_options_are_checked_where_they_are_given(cluster: LocalCluster) -> None:
    shop = cluster.consumer.refer(Shop)
    for wrong, message in (
        ({"timeout_s": 0}, "timeout_s: more than 0 seconds, not 0"),
        ({"timeout_s": float("nan")}, "timeout_s: more than 0 seconds, not nan"),
        ({"priority": -1}, "priority: a whole number from 0 to 255, not -1"),
        ({"attachments": {"tenant": 7}}, "attachments: a mapping of text by text, not {'tenant': 7}"),
    ):
        with pytest.raises(ConfigError, match=message):
            with_options(shop, **wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'; did you mean timeout_s\\?"):
        with_options(shop, timeout=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="with_options takes what refer\\(\\) gave, not ShopModel"):
        with_options(ShopModel(), timeout_s=1)
    with pytest.raises(ConfigError, match="refer: timeout_s: more than 0 seconds, not -1"):
        cluster.consumer.refer(Shop, timeout_s=-1)
    with pytest.raises(ContractError, match="is no service"):
        cluster.consumer.refer(int)


async def test_attachments_are_those_of_the_moment_they_were_given(cluster: LocalCluster) -> None:
    await cluster.provide(ShopModel())
    given = {"tenant": "blue"}
    shop = with_options(cluster.consumer.refer(Shop), attachments=given)
    await cluster.consumer.ready(shop)
    given["tenant"] = "red"
    assert (await shop.attachments())["tenant"] == "blue"
    assert (await with_options(shop, timeout_s=5).attachments())["tenant"] == "blue"


async def test_too_few_nodes_are_counted(cluster: LocalCluster) -> None:
    await cluster.provide(ShopModel())
    shop = cluster.consumer.refer(Shop)
    await cluster.consumer.ready(shop)
    with pytest.raises(NoProvider, match=r"1 of the 3 wanted nodes of test\.Shop:1\.0\.0 are known"):
        await cluster.consumer.ready(shop, nodes=3, wait_s=0.05)


async def test_calls_under_way_end_with_their_consumer(cluster: LocalCluster) -> None:
    await cluster.provide(ShopModel())
    shop = cluster.consumer.refer(Shop)
    await cluster.consumer.ready(shop)
    calls = [asyncio.ensure_future(with_options(shop, timeout_s=30).slow(30)) for _ in range(3)]
    stream = shop.count(10**9)
    assert await anext(stream) == 0
    while cluster.providers[0].in_flight < 4:
        await asyncio.sleep(0.005)
    first, second = (asyncio.ensure_future(cluster.consumer.close()) for _ in range(2))
    await second
    assert first.done() or not await first
    async with asyncio.timeout(5):
        for call in calls:
            with pytest.raises(Unavailable):
                await call
        with pytest.raises(Unavailable):
            async for _ in stream:
                pass
    with pytest.raises(ConfigError, match="the consumer is not open"):
        cluster.consumer.refer(Shop)


async def test_closing_goes_on_when_the_one_who_asked_for_it_is_cancelled(cluster: LocalCluster) -> None:
    consumer = Consumer(cluster.registry_url)
    await consumer.open()
    consumer.refer(Shop)
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await consumer.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith(("directory", "control"))]


def test_the_blocking_twin_shows_the_settings_that_it_takes() -> None:
    assert inspect.signature(BlockingConsumer) == inspect.signature(Consumer)
