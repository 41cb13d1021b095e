"""The same port for everyone else: grpcio's own clients, and clients of the Exchange stream that misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from support.wires import Handler, call, until

from steelyard.wire import Channel, Listener, WireLimits

EXCHANGE = "/steelyard.v1.Wire/Exchange"
QUICK = WireLimits(heartbeat_interval_s=100.0, message_bytes=10_000, attachments=4, in_flight=2)


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
async def listener(handler: Handler) -> AsyncIterator[Listener]:
    async with Listener(handler, limits=QUICK) as one:
        yield one


@pytest.fixture
async def plain(listener: Listener) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(listener.address) as one:
        yield one


def unary(channel: Any, method: str) -> Any:
    return channel.unary_unary(f"/test.Echo/{method}")


async def test_a_unary_call(plain: grpc.aio.Channel, handler: Handler) -> None:
    assert await unary(plain, "echo")(b"ping") == b"ping"
    (seen,) = handler.started
    assert (seen.service, seen.method, seen.body) == ("test.Echo", "echo", b"ping")
    assert seen.deadline_at == float("inf")


async def test_a_blocking_client(listener: Listener) -> None:
    def blocking() -> bytes:
        with grpc.insecure_channel(listener.address) as channel:
            return unary(channel, "echo")(b"ping", timeout=20)  # type: ignore[no-any-return]

    assert await asyncio.to_thread(blocking) == b"ping"


async def test_a_server_stream(plain: grpc.aio.Channel, handler: Handler) -> None:
    stream = plain.unary_stream("/test.Echo/count")(b"100")
    assert [body async for body in stream] == [b"%d" % number for number in range(100)]
    assert handler.closed_streams == 1


async def test_dubbo_headers_make_the_service_key_and_the_rest_are_attachments(
    plain: grpc.aio.Channel, handler: Handler
) -> None:
    metadata = (
        ("tri-service-version", "1.0.0"),
        ("tri-service-group", "blue"),
        ("traceparent", "00-abc"),
        ("token-bin", b"\x00"),
    )
    pending = unary(plain, "echo")(b"x", metadata=metadata, timeout=30)
    await pending
    (seen,) = handler.started
    assert seen.service == "blue/test.Echo:1.0.0"
    assert dict(seen.attachments) == {"traceparent": "00-abc"}
    assert ("traceparent", "00-abc") in tuple(await pending.initial_metadata()), "the reply's attachments are headers"
    assert seen.deadline_at < float("inf")


async def failure(pending: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await pending
    return raised.value


async def test_errors_are_grpc_statuses(plain: grpc.aio.Channel) -> None:
    error = await failure(unary(plain, "fail")(json.dumps({"status": 12, "may_have_run": False}).encode()))
    assert (error.code(), error.details()) == (grpc.StatusCode.UNIMPLEMENTED, "as told")
    error = await failure(unary(plain, "crash")(b""))
    assert (error.code(), error.details()) == (grpc.StatusCode.UNKNOWN, "ValueError: no such thing")
    error = await failure(unary(plain, "nothing")(b""))
    assert error.code() is grpc.StatusCode.INTERNAL


async def test_a_path_that_names_no_method(plain: grpc.aio.Channel) -> None:
    error = await failure(plain.unary_unary("/nothing")(b""))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_stream_that_fails_gives_its_items_first(plain: grpc.aio.Channel) -> None:
    stream = plain.unary_stream("/test.Echo/count_and_crash")(b"2")
    assert [await stream.read(), await stream.read()] == [b"0", b"1"]
    error = await failure(stream.read())
    assert (error.code(), error.details()) == (grpc.StatusCode.UNKNOWN, "ValueError: the well is dry")


async def test_a_deadline_cancels_the_handler(plain: grpc.aio.Channel, handler: Handler) -> None:
    error = await failure(unary(plain, "wait")(b"", timeout=0.5))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: handler.cancelled == 1)


async def test_cancelling_cancels_the_handler(plain: grpc.aio.Channel, handler: Handler, listener: Listener) -> None:
    pending = unary(plain, "wait")(b"")
    await until(lambda: handler.started)
    assert listener.in_flight == 1
    pending.cancel()
    await until(lambda: handler.cancelled == 1)
    await until(lambda: listener.in_flight == 0)


async def test_bounds(plain: grpc.aio.Channel, handler: Handler) -> None:
    exhausted = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (await failure(unary(plain, "echo")(bytes(10_001)))).code() is exhausted
    assert (await failure(unary(plain, "large")(b"10001"))).code() is exhausted
    many = tuple((f"key-{number}", "x") for number in range(5))
    assert "attachments=4" in str((await failure(unary(plain, "echo")(b"", metadata=many))).details())
    waiting = [asyncio.ensure_future(_ended(unary(plain, "wait")(b""))) for _ in range(2)]
    await until(lambda: len(handler.started) == 3)
    assert (await failure(unary(plain, "echo")(b""))).code() is exhausted
    handler.gate.set()
    assert await asyncio.gather(*waiting) == [b"waited", b"waited"]
    assert await unary(plain, "echo")(b"x") == b"x"


async def _ended(pending: Any) -> Any:
    return await pending


async def test_drain_finishes_plain_calls_and_refuses_new_ones(
    plain: grpc.aio.Channel, handler: Handler, listener: Listener
) -> None:
    waiting = asyncio.ensure_future(_ended(unary(plain, "wait")(b"")))
    await until(lambda: handler.started)
    draining = asyncio.ensure_future(listener.drain(600))
    await asyncio.sleep(0)
    assert (await failure(unary(plain, "echo")(b""))).code() is grpc.StatusCode.UNAVAILABLE
    assert not draining.done()
    handler.gate.set()
    assert await waiting == b"waited"
    async with asyncio.timeout(20):
        assert await draining is True


async def test_further_handlers_on_the_same_port(handler: Handler) -> None:
    async def check(body: bytes, _: Any) -> bytes:
        return b"healthy:" + body

    health = grpc.method_handlers_generic_handler("my.Health", {"Check": grpc.unary_unary_rpc_method_handler(check)})
    async with (
        Listener(handler, handlers=(health,)) as listener,
        grpc.aio.insecure_channel(listener.address) as plain,
        Channel(listener.address) as ours,
    ):
        assert await plain.unary_unary("/my.Health/Check")(b"x") == b"healthy:x"
        assert await unary(plain, "echo")(b"x") == b"x"
        assert (await ours(call(body=b"x"))).body == b"x"


# The Exchange stream, badly used.


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", b"\x91\x91\x0b", b"\xdd\xff\xff\xff\xff", b"\x91\x99\x00\x09\xa4evil\x01\x01\x01\x01\x01\x01"],
    ids=["nothing", "nonsense", "no HELLO", "a bomb", "another version"],
)
async def test_whoever_breaks_the_protocol_is_told_and_let_go(
    listener: Listener, plain: grpc.aio.Channel, data: bytes
) -> None:
    stream = plain.stream_stream(EXCHANGE)()
    await stream.write(data)
    heard = []
    async with asyncio.timeout(20):
        while (packet := await stream.read()) is not grpc.aio.EOF:
            heard.append(packet)
    assert b"this side speaks wire version 1" in heard[-1]
    await until(lambda: listener.connections == 0)


async def test_a_client_that_connects_and_says_nothing_is_let_go(handler: Handler) -> None:
    async with (
        Listener(handler, limits=WireLimits(heartbeat_interval_s=0.1)) as listener,
        grpc.aio.insecure_channel(listener.address) as plain,
    ):
        stream = plain.stream_stream(EXCHANGE)()
        await stream.wait_for_connection()
        await until(lambda: listener.connections == 1)
        async with asyncio.timeout(20):
            await _read_all(stream)
        assert listener.connections == 0


async def test_a_packet_beyond_all_bounds_ends_its_connection_only(listener: Listener, plain: grpc.aio.Channel) -> None:
    stream = plain.stream_stream(EXCHANGE)()
    async with Channel(listener.address) as ours:
        await ours.connect()
        await stream.write(bytes(8 * 1024 * 1024))
        error = await failure(_read_all(stream))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await ours(call())).body == b"hi"


async def _read_all(stream: Any) -> None:
    while await stream.read() is not grpc.aio.EOF:
        pass
