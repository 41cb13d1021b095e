"""grpc-js at the other end, and nginx and Envoy in between: for plain gRPC and for our own wire."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import grpc.aio
import pytest
from support.interop.contract import Ask, Echo, EchoModel
from support.interop.peers import answer_of, envoy, js, nginx, running
from support.wires import until

from steelyard import Consumer, DeadlineExceeded, Overloaded, Provider, Unavailable, method, service, with_options
from steelyard.model import Invocation
from steelyard.wire import Channel, ChannelState, LaneConnector, WireLimits

Proxy = Callable[..., AbstractAsyncContextManager[str]]


class NoSuchThing(Exception):
    pass


@service("interop.Things")
class Things:
    """Bodies of our own kind."""

    @method(raises=NoSuchThing)
    async def find(self, name: str, tags: dict[str, int]) -> list[tuple[str, int]]:
        if name == "none":
            raise NoSuchThing(name)
        return sorted((name + key, value) for key, value in tags.items())

    @method
    async def count(self, n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    @method
    async def total(self, start: int, numbers: AsyncIterator[int]) -> int:
        return start + sum([number async for number in numbers])


def asked(text: str, times: int = 1) -> Any:
    return Ask(text=text, times=times)


async def asks(*texts: str) -> AsyncIterator[Any]:
    for text in texts:
        yield asked(text)


async def each(*numbers: int) -> AsyncIterator[int]:
    for number in numbers:
        yield number


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with Provider("memory://", host="127.0.0.1") as one:
        await one.export(EchoModel(), contract=Echo)
        await one.export(Things())
        yield one


async def test_a_grpc_js_client_calls_ours(provider: Provider) -> None:
    await until_reporting(provider)
    command, env = js()
    told = json.loads(await answer_of(*command, "call", provider.address, env=env))
    assert (told["say"]["text"], told["say"]["heard"]["tenant"]) == ("abab", "blue")
    assert "endpoint-load-metrics-bin" in told["say"]["trailers"]
    assert (told["count"], told["sum"], told["chat"]) == (["n0", "n1", "n2"], "abc", ["xx", "yy"])
    assert (told["busy"]["code"], told["busy"]["details"]) == (8, "come back later")
    assert {"grpc-status-details-bin", "endpoint-load-metrics-bin"} <= set(told["busy"]["trailers"])
    assert told["late"]["code"] == 4


async def until_reporting(provider: Provider) -> None:
    async with grpc.aio.insecure_channel(provider.address) as channel:
        pushed = channel.unary_stream("/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics")(b"")
        async with asyncio.timeout(30):
            while not await pushed.read():
                pass
        pushed.cancel()


async def test_a_grpc_js_server_called_by_us() -> None:
    command, env = js()
    async with running(*command, "serve", until="port", env=env) as (process, line):
        address = f"127.0.0.1:{line.split()[1]}"
        async with Consumer(f"static://{address}") as consumer:
            echo = consumer.refer(Echo, version="1.0")
            told = await with_options(echo, attachments={"tenant": "blue"}).Say(asked("ab", 2))
            assert (told.text, told.heard["tenant"], told.heard["tri-service-version"]) == ("abab", "blue", "1.0")
            assert [told.text async for told in echo.Count(asked("n", 2))] == ["n0", "n1"]
            assert (await echo.Sum(asks("a", "b"))).text == "ab"
            assert [told.text async for told in echo.Chat(asks("x", "y"))] == ["x", "y"]
            with pytest.raises(Overloaded, match="as told"):
                await echo.Say(asked("fail RESOURCE_EXHAUSTED"))
            with pytest.raises(DeadlineExceeded):
                await with_options(echo, timeout_s=0.5).Say(asked("wait"))
            assert process.stdout is not None
            async with asyncio.timeout(30):
                assert await process.stdout.readline() == b"cancelled\n"


async def test_a_server_that_stops_without_a_word_is_out_and_comes_back() -> None:
    """SIGSTOP: its connection stands, and only silence tells. It is noticed while calls wait for it."""
    command, env = js()
    limits = WireLimits(heartbeat_interval_s=0.3, connect_timeout_s=1.0, backoff_base_s=0.05, backoff_max_s=0.1)
    async with (
        running(*command, "serve", until="port", env=env) as (process, line),
        Channel(f"127.0.0.1:{line.split()[1]}", limits=limits, connector=LaneConnector()) as channel,
    ):
        call = Invocation(service="interop.Echo", method="Say", body=asked("x").SerializeToString())
        assert (await channel(call)).body
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(Unavailable, match="nothing was heard for three heartbeats") as raised:
            await channel(call)
        assert raised.value.may_have_run is True
        await until(lambda: channel.state is ChannelState.UNREACHABLE)
        process.send_signal(signal.SIGCONT)
        await until(lambda: channel.state is ChannelState.READY)
        assert (await channel(call)).body


@pytest.mark.parametrize("proxy", [nginx, envoy], ids=["nginx", "envoy"])
async def test_our_wire_through_a_proxy(provider: Provider, proxy: Proxy) -> None:
    async with proxy(provider.address) as address, Consumer(f"static://{address}") as consumer:
        things = consumer.refer(Things)
        answers = await asyncio.gather(*(things.find("a", {"b": number}) for number in range(100)))
        assert answers == [[("ab", number)] for number in range(100)]
        assert [number async for number in things.count(3)] == [0, 1, 2]
        assert await things.total(1, each(2, 3)) == 6
        assert consumer._channels is not None
        assert consumer._channels.carriers() == {address: "grpc"}
        large = asked("x" * 1_000_000)
        assert len((await consumer.refer(Echo).Say(large)).text) == 1_000_000


@pytest.mark.parametrize("proxy", [nginx, envoy], ids=["nginx", "envoy"])
async def test_a_proxy_that_lets_only_the_services_through(provider: Provider, proxy: Proxy) -> None:
    """Our own stream has no way through, and calls are plain ones: bodies, streams, declared exceptions and all."""
    async with proxy(provider.address, "/interop.") as address, Consumer(f"static://{address}") as consumer:
        things = consumer.refer(Things)
        assert await things.find("a", {"b": 1}) == [("ab", 1)]
        assert [number async for number in things.count(3)] == [0, 1, 2]
        assert await things.total(1, each(2, 3)) == 6
        with pytest.raises(NoSuchThing, match="none"):
            await things.find("none", {})
        assert consumer._channels is not None
        assert consumer._channels.carriers() == {address: "plain"}
        echo = consumer.refer(Echo)
        with pytest.raises(Overloaded) as raised:
            await echo.Say(asked("busy"))
        assert (raised.value.retry_after_s, raised.value.may_have_run) == (1.5, True)
        with pytest.raises(DeadlineExceeded):
            await with_options(echo, timeout_s=0.2).Say(asked("wait"))


@pytest.mark.slow
@pytest.mark.parametrize("proxy", [nginx, envoy], ids=["nginx", "envoy"])
async def test_plain_clients_through_a_proxy(provider: Provider, proxy: Proxy) -> None:
    command, env = js()
    async with proxy(provider.address) as address:
        told = json.loads(await answer_of(*command, "call", address, env=env))
    assert (told["say"]["text"], told["count"], told["sum"]) == ("abab", ["n0", "n1", "n2"], "abc")
    assert (told["chat"], told["busy"]["code"], told["late"]["code"]) == (["xx", "yy"], 8, 4)


async def test_envoy_goes_by_our_health() -> None:
    gate = asyncio.Event()

    async def warm_up() -> None:
        await gate.wait()

    async with Provider("memory://", host="127.0.0.1") as provider:
        exporting = asyncio.ensure_future(provider.export(EchoModel(), contract=Echo, warm_up=warm_up))
        await until(lambda: "interop.Echo" in provider.states)
        async with (
            envoy(provider.address, health_of="interop.Echo") as address,
            grpc.aio.insecure_channel(address) as channel,
        ):
            say = channel.unary_unary("/interop.Echo/Say")

            async def status() -> grpc.StatusCode:
                try:
                    await say(asked("x").SerializeToString(), timeout=20)
                except grpc.aio.AioRpcError as error:
                    return error.code()  # type: ignore[no-any-return]
                return grpc.StatusCode.OK

            assert await status() is grpc.StatusCode.UNAVAILABLE
            gate.set()
            await exporting
            async with asyncio.timeout(30):
                while await status() is not grpc.StatusCode.OK:
                    await asyncio.sleep(0.05)
