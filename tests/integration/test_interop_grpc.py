"""grpcio's own servers and clients: we call servers that know nothing of us, and they call ours."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from support.interop.contract import Ask, Echo, EchoModel, Told
from support.interop.grpc_python import AsyncEcho, async_server, blocking_server
from support.interop.orca import OrcaLoadReport
from support.pki import Pki, shared_pki
from support.wires import until
from support.zookeeper import free_port

from steelyard import (
    Consumer,
    DeadlineExceeded,
    NoProvider,
    Overloaded,
    Provider,
    RemoteError,
    Status,
    Unavailable,
    Unimplemented,
    with_options,
)
from steelyard.balance import steering_load
from steelyard.errors import InternalError
from steelyard.wire import Channel, ChannelState, LaneConnector, WireLimits


def asked(text: str, times: int = 1) -> Any:
    return Ask(text=text, times=times)


async def asks(*texts: str) -> AsyncIterator[Any]:
    for text in texts:
        yield asked(text)


# We call.


@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_every_shape_of_call_to_a_server_that_knows_nothing_of_us(kind: str) -> None:
    async with (
        async_server(AsyncEcho()) if kind == "async" else blocking_server() as address,
        Consumer(f"static://{address}") as consumer,
    ):
        echo = consumer.refer(Echo)
        assert (await echo.Say(asked("ab", 2))).text == "abab"
        assert [told.text async for told in echo.Count(asked("n", 3))] == ["n0", "n1", "n2"]
        assert (await echo.Sum(asks("a", "b", "c"))).text == "abc"
        assert [told.text async for told in echo.Chat(asks("a", "b"))] == ["a", "b"]
        assert consumer._channels is not None
        assert consumer._channels.carriers() == {address: "plain"}
        with pytest.raises(Unimplemented):
            await consumer.refer(Echo, version="1.0").Say(asked("fail UNIMPLEMENTED"))


async def test_a_server_that_says_ok_and_nothing_else_has_failed() -> None:
    class Nothing(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            async def nothing(sent: Any, context: Any) -> None:
                return None

            return grpc.stream_stream_rpc_method_handler(nothing) if "Echo" in details.method else None

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Nothing(),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with Consumer(f"static://{address}") as consumer:
            echo = consumer.refer(Echo)
            for call in (echo.Say(asked("a")), echo.Sum(asks("a", "b"))):
                with pytest.raises(InternalError, match="sent no reply") as caught:
                    await call
                assert caught.value.may_have_run
                assert caught.value.node
            assert [told async for told in echo.Count(asked("n", 3))] == []
            assert all(node.in_flight == 0 for node in consumer.statistics(echo).balance.nodes)
    finally:
        await server.stop(None)


async def test_a_node_that_says_that_it_is_foreign_is_not_asked_first() -> None:
    asked_for: list[str] = []

    class Recorder(grpc.aio.ServerInterceptor):  # type: ignore[misc]
        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            asked_for.append(details.method)
            return await continuation(details)

    server = grpc.aio.server(interceptors=(Recorder(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with Consumer(f"static://127.0.0.1:{port}?protocol=grpc") as consumer:
            with pytest.raises(Unimplemented):
                await consumer.refer(Echo).Say(asked("x"))
    finally:
        await server.stop(None)
    assert "/interop.Echo/Say" in asked_for
    assert not any("steelyard" in path for path in asked_for)


async def test_what_travels_with_a_call() -> None:
    async with async_server(AsyncEcho()) as address, Consumer(f"static://{address}", application="shop") as consumer:
        echo = consumer.refer(Echo, version="1.2", group="blue")
        told = await with_options(echo, timeout_s=7, attachments={"Tenant": "a b", "where": "Zürich"}).Say(asked("x"))
    heard = dict(told.heard)
    assert heard["tri-service-version"] == "1.2"
    assert heard["tri-service-group"] == "blue"
    assert heard["tri-consumer-appname"] == "shop"
    assert heard["tenant"] == "a b"
    assert 6.0 < float(heard["remaining"]) <= 7.0


@pytest.mark.parametrize(
    ("code", "kind", "status"),
    [
        ("INVALID_ARGUMENT", "InvalidArgument", Status.INVALID_ARGUMENT),
        ("UNAVAILABLE", "Unavailable", Status.UNAVAILABLE),
        ("PERMISSION_DENIED", "PermissionDenied", Status.PERMISSION_DENIED),
        ("UNAUTHENTICATED", "Unauthenticated", Status.UNAUTHENTICATED),
        ("CANCELLED", "CallCancelled", Status.CANCELLED),
        ("NOT_FOUND", "RemoteError", Status.UNKNOWN),
        ("INTERNAL", "InternalError", Status.INTERNAL),
    ],
)
async def test_errors_come_by_the_one_table(code: str, kind: str, status: Status) -> None:
    async with async_server(AsyncEcho()) as address, Consumer(f"static://{address}") as consumer:
        with pytest.raises(Exception, match="as told") as raised:
            await consumer.refer(Echo, retries=0).Say(asked(f"fail {code}"))
    error: Any = raised.value
    assert (type(error).__name__, error.status, error.is_remote) == (kind, status, True)
    assert error.may_have_run is True, "a foreign server does not say that it has not"


async def test_overload_brings_its_hint() -> None:
    async with async_server(AsyncEcho()) as address, Consumer(f"static://{address}") as consumer:
        with pytest.raises(Overloaded) as raised:
            await consumer.refer(Echo).Say(asked("fail RESOURCE_EXHAUSTED"))
    assert raised.value.retry_after_s == 0.25


async def test_deadlines_and_cancels_reach_the_server() -> None:
    theirs = AsyncEcho()
    async with async_server(theirs) as address, Consumer(f"static://{address}") as consumer:
        echo = consumer.refer(Echo)
        await echo.Say(asked("first"))
        with pytest.raises(DeadlineExceeded) as raised:
            await with_options(echo, timeout_s=0.5).Say(asked("wait"))
        assert raised.value.may_have_run is True
        await until(lambda: theirs.cancelled == 1)
        waiting = asyncio.ensure_future(echo.Say(asked("wait")))
        await until(lambda: theirs.calls == 3)
        waiting.cancel()
        await until(lambda: theirs.cancelled == 2)
        stream = echo.Count(asked("wait", 1))
        assert (await anext(stream)).text == "wait0"
        await stream.aclose()  # type: ignore[attr-defined]
        await until(lambda: theirs.cancelled == 3)
        statistics = consumer.statistics(echo)
        assert sum(node.in_flight for node in statistics.balance.nodes) == 0


async def test_a_stream_that_fails_gives_its_items_first() -> None:
    async with async_server(AsyncEcho()) as address, Consumer(f"static://{address}") as consumer:
        stream = consumer.refer(Echo).Count(asked("break", 2))
        assert [(await anext(stream)).text, (await anext(stream)).text] == ["break0", "break1"]
        with pytest.raises(RemoteError, match="DATA_LOSS: broken"):
            await anext(stream)


async def test_what_the_callers_own_stream_raises_is_the_callers() -> None:
    async def broken() -> AsyncIterator[Any]:
        yield asked("a")
        raise KeyError("mine")

    async with async_server(AsyncEcho()) as address, Consumer(f"static://{address}") as consumer:
        with pytest.raises(KeyError, match="mine"):
            await consumer.refer(Echo).Sum(broken())


async def test_reported_load_is_read_and_none_is_unknown() -> None:
    async with (
        async_server(AsyncEcho(pushes=0.7)) as pushes,
        async_server(AsyncEcho(header="TEXT cpu_utilization=0.4,utilization.gpu=0.6")) as adds,
        async_server(AsyncEcho()) as silent,
        Consumer(f"static://{pushes},{adds},{silent}") as consumer,
    ):
        echo = consumer.refer(Echo, policy="round_robin")
        loads: dict[str, float] = {}
        consumer._channels.listen(lambda address, report: loads.update({address: steering_load(report)}))  # type: ignore
        await consumer.ready(echo, nodes=3)
        until_s = time.monotonic() + 20
        while len(loads) < 2 and time.monotonic() < until_s:
            await echo.Say(asked("x"))
        assert loads == {pushes: pytest.approx(0.7), adds: pytest.approx(0.6)}


async def test_a_server_that_ends_in_an_orderly_way_is_not_kept_by_us() -> None:
    theirs = AsyncEcho(pushes=0.5)
    async with contextlib.AsyncExitStack() as serving:
        address = await serving.enter_async_context(async_server(theirs, grace_s=60))
        async with Consumer(f"static://{address}") as consumer:
            echo = consumer.refer(Echo)
            await until_answered(echo)
            await until(lambda: theirs.load_streams == 1)
            async with asyncio.timeout(30):
                await serving.aclose()
            await until(lambda: theirs.load_streams == 0)


async def test_a_foreign_server_over_tls() -> None:
    pki = shared_pki()
    async with (
        async_server(AsyncEcho(), certificate=pki.pair("127.0.0.1")) as address,
        Consumer(f"static://{address}", credentials=pki.consumer()) as trusting,
        Consumer(f"static://{address}", credentials=Pki().consumer()) as stranger,
    ):
        assert (await trusting.refer(Echo).Say(asked("x"))).text == "x"
        assert trusting._channels is not None
        assert trusting._channels.carriers() == {address: "plain"}
        with pytest.raises(Unavailable):
            await stranger.refer(Echo, retries=0).Say(asked("x"))


async def test_a_server_that_dies_is_out_of_picks_and_comes_back() -> None:
    port = free_port()
    channel = Channel(
        f"127.0.0.1:{port}", connector=LaneConnector(), limits=WireLimits(backoff_base_s=0.05, backoff_max_s=0.1)
    )
    try:
        async with async_server(AsyncEcho(), port):
            await channel.connect()
            assert channel.state is ChannelState.READY
        await until(lambda: channel.state is ChannelState.UNREACHABLE)
        async with async_server(AsyncEcho(), port):
            await until(lambda: channel.state is ChannelState.READY)
    finally:
        await channel.close()


async def test_calls_to_a_server_that_dies_may_have_run_and_others_certainly_not() -> None:
    theirs = AsyncEcho()
    port = free_port()
    async with Consumer(f"static://127.0.0.1:{port}") as consumer:
        echo = consumer.refer(Echo, retries=0)
        with pytest.raises(Unavailable) as raised:
            await echo.Say(asked("nobody is there"))
        assert raised.value.may_have_run is False
        async with async_server(theirs, port):
            await until_answered(echo)
            waiting = asyncio.ensure_future(echo.Say(asked("wait")))
            await until(lambda: theirs.calls == 2)
        with pytest.raises(Unavailable) as raised:
            await waiting
        assert raised.value.may_have_run is True


async def until_answered(echo: Any) -> None:
    until_s = time.monotonic() + 30
    while True:
        try:
            await echo.Say(asked("x"))
            return
        except (Unavailable, NoProvider):
            assert time.monotonic() < until_s
            await asyncio.sleep(0.05)


async def test_calls_that_are_given_up_or_dropped_leave_nothing() -> None:
    theirs = AsyncEcho()
    async with async_server(theirs) as address, Consumer(f"static://{address}") as consumer:
        echo = consumer.refer(Echo)
        await until_answered(echo)
        assert consumer._channels is not None
        channel = consumer._channels._channels[address]
        before = len(asyncio.all_tasks())
        for round_ in range(60):
            waiting = [asyncio.ensure_future(echo.Say(asked("wait"))) for _ in range(5)]
            stream = echo.Count(asked("wait", 1))
            await anext(stream)
            for each in waiting[round_ % 2 :]:
                each.cancel()
            await asyncio.gather(*waiting[round_ % 2 :], return_exceptions=True)
            if round_ % 2:
                waiting[0].cancel()
            del stream  # unread, and not closed
        await until(lambda: channel.open_calls == 0)
        await until(lambda: len(asyncio.all_tasks()) <= before + 1)
        assert sum(node.in_flight for node in consumer.statistics(echo).balance.nodes) == 0
        assert (await echo.Say(asked("x"))).text == "x"


async def test_rotated_connections_cost_no_call() -> None:
    """Servers end connections by age, with a GOAWAY; gRPC's default grace lets calls finish."""
    options = (("grpc.max_connection_age_ms", 100), ("grpc.max_connection_age_grace_ms", 10_000))
    theirs = AsyncEcho()
    async with async_server(theirs, options=options) as address, Consumer(f"static://{address}") as consumer:
        echo = consumer.refer(Echo, retries=0)
        await until_answered(echo)
        until_s = time.monotonic() + 1.5
        while time.monotonic() < until_s:
            assert (await echo.Say(asked("x"))).text == "x"
            await asyncio.sleep(0.005)


# They call.


@pytest.fixture
async def provider() -> AsyncIterator[tuple[Provider, EchoModel]]:
    model = EchoModel()
    async with Provider("memory://", host="127.0.0.1") as one:
        await one.export(model, contract=Echo)
        yield one, model


async def test_every_shape_of_call_from_a_client_that_knows_nothing_of_us(
    provider: tuple[Provider, EchoModel],
) -> None:
    facts = {"request_serializer": Ask.SerializeToString, "response_deserializer": Told.FromString}
    async with grpc.aio.insecure_channel(provider[0].address) as channel:
        say = channel.unary_unary("/interop.Echo/Say", **facts)
        assert (await say(asked("ab", 2), timeout=20)).text == "abab"
        count = channel.unary_stream("/interop.Echo/Count", **facts)
        assert [told.text async for told in count(asked("n", 2), timeout=20)] == ["n0", "n1"]
        add = channel.stream_unary("/interop.Echo/Sum", **facts)
        assert (await add(asks("a", "b"), timeout=20)).text == "ab"
        chat = channel.stream_stream("/interop.Echo/Chat", **facts)
        assert [told.text async for told in chat(asks("a", "b"), timeout=20)] == ["a", "b"]


async def test_a_blocking_client_and_its_deadline(provider: tuple[Provider, EchoModel]) -> None:
    def blocking() -> None:
        with grpc.insecure_channel(provider[0].address) as channel:
            say = channel.unary_unary("/interop.Echo/Say", Ask.SerializeToString, Told.FromString)
            assert say(asked("x"), timeout=20).text == "x"
            with pytest.raises(grpc.RpcError) as raised:
                say(asked("wait"), timeout=0.5)
            assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

    await asyncio.to_thread(blocking)
    await until(lambda: provider[1].cancelled == 1)


async def test_triples_own_timeout_is_a_deadline_too(provider: tuple[Provider, EchoModel]) -> None:
    async with grpc.aio.insecure_channel(provider[0].address) as channel:
        say = channel.unary_unary("/interop.Echo/Say")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await say(asked("wait").SerializeToString(), metadata=(("tri-service-timeout", "500"),))
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: provider[1].cancelled == 1)


async def test_a_body_over_the_bound_is_refused_before_it_has_come() -> None:
    """By the size that is announced before it, in gRPC's core. It used to be received whole first, up to 34 MiB."""
    async with Provider("memory://", host="127.0.0.1", limits=WireLimits(message_bytes=1024 * 1024)) as provider:
        await provider.export(EchoModel(), contract=Echo)
        async with grpc.aio.insecure_channel(provider.address) as channel:
            say = channel.unary_unary("/interop.Echo/Say")
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await say(bytes(4 * 1024 * 1024), timeout=20)
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "Received message larger than max" in str(raised.value.details())
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await say(bytes(1024 * 1024 + 1), timeout=20)
            assert "the bound is 1048576" in str(raised.value.details())


async def test_overload_tells_plain_clients_when_to_come_back(provider: tuple[Provider, EchoModel]) -> None:
    async with grpc.aio.insecure_channel(provider[0].address) as channel:
        say = channel.unary_unary("/interop.Echo/Say")
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await say(asked("busy").SerializeToString(), timeout=20)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers = dict(raised.value.trailing_metadata() or ())
    assert trailers["grpc-retry-pushback-ms"] == "1500"
    from google.rpc import error_details_pb2, status_pb2

    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    hint = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(hint)
    assert (status.code, status.message, hint.retry_delay.ToTimedelta().total_seconds()) == (8, "come back later", 1.5)


async def test_the_load_is_pushed_out_of_band(provider: tuple[Provider, EchoModel]) -> None:
    """grpcio hides the trailer from Python; that it is there, grpc-js sees (test_interop_peers)."""
    async with grpc.aio.insecure_channel(provider[0].address) as channel:
        pushed = channel.unary_stream("/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics")(b"\x0a\x00")
        seen = [await pushed.read() for _ in range(3)]
        pushed.cancel()
    told = OrcaLoadReport.FromString(seen[-1])
    assert 0 <= told.cpu_utilization < 1.5
    assert told.named_metrics["steelyard.in_flight"] == 0
