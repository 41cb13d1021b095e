"""Each kind of bad input and broken peer, with its exact error."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import closing

import msgpack
import pytest
from support.processes import provider_process
from support.shop import Shop, ShopModel

from steelyard import (
    ConfigError,
    Consumer,
    DeadlineExceeded,
    InvalidArgument,
    NoProvider,
    Overloaded,
    Provider,
    RegistryUnavailable,
    RemoteError,
    RpcError,
    SteelyardError,
    Unavailable,
    Unimplemented,
    with_options,
)
from steelyard.model import Invocation
from steelyard.testing import LocalCluster
from steelyard.wire import Channel, WireLimits


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with LocalCluster() as cluster:
        yield await cluster.provide(ShopModel())


@pytest.fixture
async def channel(provider: Provider) -> AsyncIterator[Channel]:
    """Past the proxy and its checks: what a foreign or an older consumer could send."""
    channel = Channel(provider.address)
    yield channel
    await channel.close()


def call(method: str = "echo", body: bytes | None = None, service: str = "test.Shop:1.0.0") -> Invocation:
    packed = msgpack.packb([7, b"x"]) if body is None else body
    return Invocation(service, method, (), packed, deadline_at=time.monotonic() + 5)


async def test_unknown_method(channel: Channel) -> None:
    with pytest.raises(Unimplemented, match=r"test\.Shop:1\.0\.0 has no method 'ech'; it has: attachments, blocking"):
        await channel(call("ech"))


async def test_unknown_service(channel: Channel) -> None:
    with pytest.raises(Unimplemented, match=r"no service 'test.Shap' here; exported: test\.Shop:1\.0\.0"):
        await channel(call(service="test.Shap"))


async def test_a_bare_interface_is_enough_while_it_is_unique(channel: Channel) -> None:
    reply = await channel(call(service="test.Shop"))
    assert reply.body == msgpack.packb(b"x")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([7], r"test\.Shop.*echo.*'body'"),
        ([7, b"x", 3], r"echo.*3.*2|echo.*2.*3"),
        (["seven", b"x"], r"echo: argument 'key': .*int.*str"),
        ([7, {"a": 1}], r"echo: argument 'body': "),
        ([True, b"x"], r"echo: argument 'key': .*int.*bool"),
    ],
)
async def test_wrong_count_or_type_of_arguments(channel: Channel, arguments: list[object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        await channel(call(body=msgpack.packb(arguments)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x92\x07",
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000 + b"\x01",
        msgpack.packb([7, b"x"]) + b"\x00",
        b"\xa5hello",
    ],
    ids=["empty", "reserved byte", "truncated", "huge length", "deep", "trailing", "not a list"],
)
async def test_undecodable_bytes(channel: Channel, body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        await channel(call(body=body))
    assert (await channel(call())).body == msgpack.packb(b"x")  # the connection lives on


async def test_oversized_arguments_and_replies() -> None:
    limits = WireLimits(message_bytes=64 * 1024)
    async with LocalCluster(limits=limits) as cluster:
        await cluster.provide(ShopModel(), limits=limits)
        shop = cluster.consumer.refer(Shop)
        await cluster.consumer.ready(shop)
        with pytest.raises(Overloaded, match=r"65536|64 KiB|65,536"):
            await shop.echo(1, b"x" * 100_000)
        assert await shop.echo(1, b"x" * 1000) == b"x" * 1000


async def test_a_providers_own_bound_refuses_and_the_connection_lives_on() -> None:
    async with LocalCluster() as cluster:
        await cluster.provide(ShopModel(), limits=WireLimits(message_bytes=64 * 1024))
        shop = cluster.consumer.refer(Shop)
        await cluster.consumer.ready(shop)
        with pytest.raises(Overloaded, match=r"65536|64 KiB|65,536"):
            await shop.echo(1, b"x" * 100_000)
        assert await shop.echo(1, b"fine") == b"fine"


async def test_a_handler_that_raises(channel: Channel) -> None:
    with pytest.raises(RemoteError, match="ValueError: boom") as caught:
        await channel(call("broken", msgpack.packb([])))
    assert (caught.value.is_remote, caught.value.may_have_run) == (True, True)


async def test_a_handler_that_overruns_its_deadline(channel: Channel) -> None:
    overrun = Invocation("test.Shop:1.0.0", "slow", (), msgpack.packb([30.0]), deadline_at=time.monotonic() + 0.1)
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        await channel(overrun)
    assert time.monotonic() - started < 5


async def test_a_provider_killed_in_mid_call(tmp_path) -> None:
    registry = f"embedded://{tmp_path}/registry.db"
    async with Consumer(registry) as consumer, provider_process(registry) as provider:
        shop = consumer.refer(Shop)
        await consumer.ready(shop)
        calling = asyncio.ensure_future(with_options(shop, timeout_s=30).slow(30))
        await asyncio.sleep(0.5)
        provider.kill()
        with pytest.raises(Unavailable) as caught:
            async with asyncio.timeout(10):
                await calling
        assert caught.value.may_have_run
        assert provider.address in str(caught.value)


async def test_idempotent_calls_survive_a_kill(tmp_path) -> None:
    registry = f"embedded://{tmp_path}/registry.db"
    async with (
        Consumer(registry) as consumer,
        provider_process(registry, name="a") as victim,
        provider_process(registry, name="b"),
        provider_process(registry, name="c"),
    ):
        shop = consumer.refer(Shop)
        await consumer.ready(shop, nodes=3)
        failed = 0
        done = 0

        async def caller(number: int) -> None:
            nonlocal failed, done
            for at in range(150):
                try:
                    await shop.echo(number * 1000 + at, b"x")
                except RpcError:
                    failed += 1
                done += 1
                await asyncio.sleep(0.005)

        callers = [asyncio.ensure_future(caller(number)) for number in range(8)]
        await asyncio.sleep(0.3)
        victim.kill()
        await asyncio.gather(*callers)
        assert (done, failed) == (1200, 0)


def a_free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_call_after_its_consumer_was_closed() -> None:
    """Whether or not there were nodes, and for streams too: nobody needs to start a provider."""
    async with LocalCluster() as cluster:
        await cluster.provide(ShopModel())
        consumer = Consumer(cluster.registry_url)
        await consumer.open()
        shop, alone = consumer.refer(Shop), consumer.refer(Shop, version="9")
        await consumer.ready(shop)
        assert await shop.blocking(0.0)
        await consumer.close()
        for proxy in (shop, alone):
            with pytest.raises(NoProvider, match="the consumer is closed"):
                await proxy.blocking(0.0)
            with pytest.raises(NoProvider, match="the consumer is closed"):
                await anext(proxy.count(1))


async def test_two_providers_on_one_port() -> None:
    async with LocalCluster() as cluster:
        first = await cluster.provide(ShopModel())
        port = int(first.address.rpartition(":")[2])
        with pytest.raises(SteelyardError, match=rf"cannot listen on 127\.0\.0\.1:{port}: another process"):
            await cluster.provide(ShopModel(), port=port)


async def test_a_registry_that_is_unreachable_at_start() -> None:
    url = f"zookeeper://127.0.0.1:{a_free_port()}"
    for end in (Consumer(url, registry_wait_s=0.5), Provider(url, registry_wait_s=0.5)):
        started = time.monotonic()
        with pytest.raises(RegistryUnavailable, match=r"127\.0\.0\.1:\d+.*0\.5 s.*open with registry_wait_s=None"):
            await end.open()
        assert time.monotonic() - started < 5


async def test_waiting_for_ever_for_a_registry_can_be_cancelled() -> None:
    consumer = Consumer(f"zookeeper://127.0.0.1:{a_free_port()}", registry_wait_s=None)
    opening = asyncio.ensure_future(consumer.open())
    await asyncio.sleep(1.0)
    assert not opening.done()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(5):
            await opening


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("zookeper://127.0.0.1", "zookeper.*embedded.*zookeeper"),
        ("127.0.0.1:2181", "has no scheme; write for example 'zookeeper://127.0.0.1:2181'"),
        ("zookeeper://", "host"),
        ("zookeeper://127.0.0.1:port", "port"),
        ("static://", "static"),
    ],
)
async def test_a_malformed_registry_url(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await Consumer(url).open()
