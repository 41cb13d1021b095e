"""The whole way of a call: proxy, filters, cluster, wire, dispatch, method, and back; over real sockets."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import uuid
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from support.shop import Colour, Item, NoSuchUser, Shop, ShopModel

from steelyard import (
    ConfigError,
    DeadlineExceeded,
    InvalidArgument,
    NoProvider,
    RemoteError,
    RpcError,
    Status,
    method,
    service,
    with_options,
)
from steelyard.testing import LocalCluster


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        yield cluster


async def shop_of(cluster: LocalCluster, **settings: object) -> tuple[Shop, ShopModel]:
    model = ShopModel()
    await cluster.provide(model, **settings)
    shop = cluster.consumer.refer(Shop)
    await cluster.consumer.ready(shop)
    return shop, model


async def until(fact) -> None:
    async with asyncio.timeout(5):
        while not fact():
            await asyncio.sleep(0.005)


async def test_an_echo(cluster: LocalCluster) -> None:
    shop, _ = await shop_of(cluster)
    assert await shop.echo(7, b"hello") == b"hello"
    assert await shop.echo(body=b"by name", key=8) == b"by name"


async def test_arrays_and_defaults(cluster: LocalCluster) -> None:
    shop, _ = await shop_of(cluster)
    features = np.arange(12, dtype=np.float32).reshape(3, 4)
    scaled = await shop.scale(features)
    np.testing.assert_array_equal(scaled, features * 2)
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(await shop.scale(features, by=3.0), features * 3)


async def test_records_are_rebuilt_by_annotation(cluster: LocalCluster) -> None:
    shop, _ = await shop_of(cluster)
    item = Item("lamp", decimal.Decimal("12.50"), Colour.RED, ["new"])
    at = datetime.datetime(2024, 2, 29, 12, 30, tzinfo=datetime.UTC)
    assert await shop.order(item, at, uuid.uuid4(), {"gift": [1]}) == Item(
        "LAMP", decimal.Decimal("25.00"), Colour.BLUE, ["new", "gift"]
    )


async def test_a_blocking_method_runs_beside_the_loop(cluster: LocalCluster) -> None:
    shop, _ = await shop_of(cluster, threads=4)
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert await asyncio.gather(*(shop.blocking(0.2) for _ in range(4))) == ["shop"] * 4
    assert loop.time() - started < 0.7  # four in a row would take 0.8 s


async def test_a_full_handler_pool_sends_the_call_elsewhere_and_not_back() -> None:
    """It has not run there, so any method may be repeated: this one is not idempotent."""
    async with LocalCluster() as cluster:
        full, free = [await cluster.provide(ShopModel(name), threads=1, queue=0, tags={"name": name}) for name in "ab"]
        shop = cluster.consumer.refer(Shop)
        at_full = cluster.consumer.refer(Shop, where="tag.name == 'a'")
        await cluster.consumer.ready(shop, nodes=2)
        await cluster.consumer.ready(at_full)
        held = asyncio.ensure_future(at_full.blocking(1.0))
        await until(lambda: full.in_flight == 1)
        assert [await shop.blocking(0.0) for _ in range(12)] == ["b"] * 12
        assert free.in_flight == 0
        assert await held == "a"


async def test_any_version_may_be_asked_for(cluster: LocalCluster) -> None:
    await cluster.provide(ShopModel())
    for wanted in ({"version": "*"}, {"group": "*"}, {"version": "*", "group": "*"}):
        shop = cluster.consumer.refer(Shop, **wanted)
        await cluster.consumer.ready(shop)
        assert await shop.echo(7, b"any") == b"any"


async def test_streams(cluster: LocalCluster) -> None:
    shop, model = await shop_of(cluster)
    assert [number async for number in shop.count(5)] == [0, 1, 2, 3, 4]
    assert [number async for number in await shop.count(3)] == [0, 1, 2]
    assert [number async for number in shop.count(0)] == []
    assert [number async for number in shop.blocking_count(4)] == [0, 1, 2, 3]
    await until(lambda: model.closed_streams == 3)


async def test_leaving_a_stream_closes_it_at_the_provider(cluster: LocalCluster) -> None:
    shop, model = await shop_of(cluster)
    stream = shop.count(10**9)
    assert await anext(stream) == 0
    await stream.aclose()
    await until(lambda: model.closed_streams == 1)
    await until(lambda: cluster.providers[0].in_flight == 0)


async def test_a_declared_exception_arrives_as_itself(cluster: LocalCluster) -> None:
    shop, _ = await shop_of(cluster)
    assert await shop.user(7) == "seven"
    with pytest.raises(NoSuchUser) as caught:
        await shop.user(8)
    assert caught.value.args == (8,)


async def test_any_other_exception_arrives_with_type_and_message(cluster: LocalCluster) -> None:
    shop, _ = await shop_of(cluster)
    with pytest.raises(RemoteError, match="UNKNOWN: ValueError: boom") as caught:
        await shop.broken()
    assert caught.value.may_have_run
    assert caught.value.node == f"test.Shop:1.0.0@{cluster.providers[0].address}"


async def test_a_handler_may_choose_the_status(cluster: LocalCluster) -> None:
    shop, _ = await shop_of(cluster)
    with pytest.raises(InvalidArgument, match="not on a Sunday"):
        await shop.refuses()


async def test_the_deadline_ends_the_call_and_the_handler(cluster: LocalCluster) -> None:
    shop, model = await shop_of(cluster)
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(DeadlineExceeded):
        await shop.slow(30)
    assert loop.time() - started < 5
    await until(lambda: model.cancelled == 1)
    with pytest.raises(DeadlineExceeded):
        await with_options(shop, timeout_s=0.05).slow(30)
    await until(lambda: model.cancelled == 2)
    await until(lambda: cluster.providers[0].in_flight == 0)


async def test_cancelling_the_caller_cancels_the_handler(cluster: LocalCluster) -> None:
    shop, model = await shop_of(cluster)
    call = asyncio.ensure_future(with_options(shop, timeout_s=30).slow(30))
    await until(lambda: model.calls == 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: model.cancelled == 1)
    statistics = cluster.consumer.statistics(shop)
    assert sum(node.in_flight for node in statistics.balance.nodes) == 0


async def test_attachments_travel(cluster: LocalCluster) -> None:
    shop, _ = await shop_of(cluster)
    got = await with_options(shop, attachments={"tenant": "blue"}).attachments()
    assert got["tenant"] == "blue"


async def test_fallbacks_answer_and_step_back(cluster: LocalCluster) -> None:
    shop, model = await shop_of(cluster)
    assert [await shop.with_value(True), await shop.with_value(False)] == [-1, 1]
    assert await shop.remembered("four") == 4
    model.is_failing = True
    assert await shop.remembered("four") == 4
    with pytest.raises(RemoteError):
        await shop.remembered("another question")
    model.is_failing = False
    assert await shop.remembered("another question") == 16


async def test_failing_nodes_are_replaced_and_then_avoided() -> None:
    async with LocalCluster() as cluster:
        models = [ShopModel(str(at)) for at in range(4)]
        for model in models:
            await cluster.provide(model)
        shop = cluster.consumer.refer(Shop)
        await cluster.consumer.ready(shop, nodes=4)
        models[0].is_failing = True

        async def load(seconds: float) -> int:
            """Some 200 calls a second, none of which may fail; how many there were."""
            done, until = 0, asyncio.get_running_loop().time() + seconds
            while asyncio.get_running_loop().time() < until:
                assert await shop.echo(done, b"x") == b"x"
                done += 1
                await asyncio.sleep(0.005)
            return done

        await load(4.0)
        before = models[0].calls
        done = await load(1.5)
        assert models[0].calls - before < done / 4 / 2


async def test_where_and_no_provider_explain_themselves() -> None:
    async with LocalCluster() as cluster:
        shop = cluster.consumer.refer(Shop)
        with pytest.raises(
            NoProvider, match=r"no provider of test\.Shop:1\.0\.0 is registered at memory://.*steelyard serve"
        ):
            await shop.echo(1, b"")
        await cluster.provide(ShopModel("small"), tags={"pool": "ads"}, hardware={"kind": "cpu"})
        await cluster.provide(ShopModel("big"), tags={"pool": "ads"}, hardware={"kind": "gpu"})
        big = cluster.consumer.refer(Shop, where="hw.kind == 'gpu' and tag.pool == 'ads'")
        await cluster.consumer.ready(big)
        assert {await big.blocking(0) for _ in range(8)} == {"big"}
        none = cluster.consumer.refer(Shop, where="hw.kind == 'tpu'")
        await asyncio.sleep(0.1)
        with pytest.raises(
            NoProvider, match=r"2 nodes provide test\.Shop:1\.0\.0 .* none fits where=\"hw.kind == 'tpu'\""
        ):
            await none.echo(1, b"")


async def test_arguments_are_checked_on_both_sides(cluster: LocalCluster) -> None:
    shop, _ = await shop_of(cluster)
    with pytest.raises(InvalidArgument, match="missing"):
        await shop.echo(7)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="'surprise'"):
        await shop.echo(7, b"", surprise=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match=r"'key'.*int.*str"):
        await shop.echo("seven", b"")  # type: ignore[arg-type]


async def test_a_result_that_cannot_be_sent_is_an_internal_error(cluster: LocalCluster) -> None:
    shop, _ = await shop_of(cluster)
    with pytest.raises(RpcError, match="object") as caught:
        await shop.unsendable()
    assert caught.value.status is Status.INTERNAL


async def test_nested_calls_inherit_the_deadline() -> None:
    from support.relay import Relay, RelayModel

    async with LocalCluster() as cluster:
        model = ShopModel()
        await cluster.provide(model)
        shop = cluster.consumer.refer(Shop)
        await cluster.provide(RelayModel(with_options(shop, timeout_s=30)))
        relay = with_options(cluster.consumer.refer(Relay), timeout_s=0.3)
        with pytest.raises(DeadlineExceeded):
            await relay.relay(30)
        await until(lambda: model.cancelled == 1)


@service("test.Later")
class Later:
    """Answers at once, and goes on working after that."""

    def __init__(self, shop: Any) -> None:
        self._shop = shop
        self.tasks: list[asyncio.Task[Any]] = []
        self.answered = asyncio.Event()

    @method
    async def begin(self) -> str:
        self.tasks.append(asyncio.ensure_future(self._work(self.answered)))
        return "begun"

    @method
    async def count(self, n: int) -> AsyncIterator[int]:
        self.tasks.append(asyncio.ensure_future(self._work(self.answered)))
        for number in range(n):
            yield number

    @method
    async def together(self) -> str:
        await asyncio.gather(self._shop.slow(30), self._shop.slow(30))
        return "never"

    async def _work(self, begin: asyncio.Event) -> Any:
        await begin.wait()
        await asyncio.sleep(0.15)  # until the deadline of the call that began it has passed
        return await self._shop.echo(1, b"later")


async def test_a_task_that_outlives_its_call_does_not_have_its_deadline() -> None:
    async with LocalCluster() as cluster:
        model = ShopModel()
        await cluster.provide(model)
        work = Later(with_options(cluster.consumer.refer(Shop), timeout_s=30))
        await cluster.provide(work)
        later = with_options(cluster.consumer.refer(Later), timeout_s=0.3)
        assert await later.begin() == "begun"
        assert [item async for item in later.count(2)] == [0, 1]
        await asyncio.sleep(0.3)
        work.answered.set()
        assert await asyncio.gather(*work.tasks) == [b"later", b"later"]
        with pytest.raises(DeadlineExceeded):  # while the call is served, its tasks are the call's
            await later.together()
        await until(lambda: model.cancelled == 2)


async def test_a_consumer_that_is_not_open_says_so() -> None:
    from steelyard import Consumer

    with pytest.raises(ConfigError, match="the consumer is not open: use `async with Consumer"):
        Consumer("memory://x").refer(Shop)


async def test_referring_for_each_call_is_named_once(cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    await cluster.provide(ShopModel())
    for _ in range(40):
        cluster.consumer.refer(Shop)
    told = [record for record in caplog.records if "refer to it once and keep the proxy" in record.getMessage()]
    assert len(told) == 1


async def test_in_flight_returns_to_zero_after_any_mix_of_endings(cluster: LocalCluster) -> None:
    shop, _ = await shop_of(cluster)
    calls = [
        *(shop.echo(at, b"x" * at) for at in range(50)),
        *(shop.broken() for _ in range(10)),
        *(with_options(shop, timeout_s=0.02).slow(1) for _ in range(10)),
        *(shop.user(at) for at in range(10)),
    ]
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    for task in tasks[::7]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await until(lambda: cluster.providers[0].in_flight == 0)
    assert sum(node.in_flight for node in cluster.consumer.statistics(shop).balance.nodes) == 0


async def test_a_call_that_is_over_before_it_is_sent_is_no_nodes_failure(cluster: LocalCluster) -> None:
    shop, model = await shop_of(cluster)
    hasty = with_options(shop, timeout_s=1e-9)
    for key in range(50):
        with pytest.raises(DeadlineExceeded, match="before the call was sent"):
            await hasty.echo(key, b"")
    assert await shop.echo(1, b"x") == b"x"
    (node,) = cluster.consumer.statistics(shop).balance.nodes
    assert (node.ok, node.failed, model.calls) == (1, 0, 1)
