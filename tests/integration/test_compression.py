"""Compression per method, over every carrier and shape: smaller on the way, the same at both ends."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import random
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgpack
import pytest

from steelyard import Consumer, InvalidArgument, Provider, method, service
from steelyard.errors import ConfigError
from steelyard.model import Invocation, Packed, Reply
from steelyard.service import service_spec
from steelyard.wire import Channel, LaneConnector

DICE = random.Random(1)
WORDS = ["".join(DICE.choices("etaoinshrdlu", k=DICE.randint(2, 9))) for _ in range(2000)]
TEXT = " ".join(DICE.choices(WORDS, k=60_000))[:300_000]
NOISE = random.Random(1).randbytes(100_000)


@service("test.Squeeze")
class Squeeze:
    @method(timeout_s=20.0, compress="zstd")
    async def echo(self, text: str) -> str:
        return text

    @method(timeout_s=20.0, compress="lz4")
    async def quick(self, body: bytes) -> bytes:
        return body

    @method(timeout_s=20.0, compress="zstd")
    async def repeat(self, text: str, times: int) -> AsyncIterator[str]:
        for _ in range(times):
            yield text

    @method(timeout_s=20.0, compress="zstd")
    async def count(self, texts: AsyncIterator[str]) -> int:
        return sum([len(text) async for text in texts])

    @method(timeout_s=20.0)
    async def plain(self, text: str) -> str:
        return text


class Seen:
    """What crosses the wire, by looking over the core's shoulder: sizes of bodies, and whether they were packed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.packed: list[Packed] = []
        for name in ("consumer", "provider"):
            module = import_module(f"steelyard.wire.mux.{name}")
            monkeypatch.setattr(module, "sent", self._looking(module.sent))

    def _looking(self, sent: Any) -> Any:
        def look(body: Packed) -> Any:
            self.packed.append(body)
            return sent(body)

        return look

    def take(self) -> list[Packed]:
        taken, self.packed = self.packed, []
        return taken


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


@contextlib.asynccontextmanager
async def both(tmp_path: Path, carrier: str) -> AsyncIterator[tuple[Provider, Any]]:
    tmp_path.chmod(0o700)
    registry = f"embedded://{tmp_path}/registry.db"
    async with Provider(registry, host="127.0.0.1") as provider, Consumer(registry, carrier=carrier) as consumer:
        await provider.export(Squeeze())
        squeeze = consumer.refer(Squeeze)
        await consumer.ready(squeeze)
        yield provider, squeeze


@pytest.mark.parametrize("carrier", ["grpc", "tcp", "uds"])
async def test_every_shape_travels_small_and_arrives_whole(tmp_path: Path, carrier: str, seen: Seen) -> None:
    async with both(tmp_path, carrier) as (_, squeeze):
        assert await squeeze.echo(TEXT) == TEXT
        there, back = seen.take()
        assert (there.how, back.how) == ("zstd", "zstd")
        assert len(there) < 0.6 * there.raw_bytes
        assert len(back) > 65_536, "it is so large that it travels in parts"

        assert await squeeze.quick(TEXT.encode()) == TEXT.encode()
        assert [each.how for each in seen.take()] == ["lz4", "lz4"]

        assert [text async for text in squeeze.repeat(TEXT[:20_000], 5)] == [TEXT[:20_000]] * 5
        assert len(seen.take()) == 6

        async def texts() -> AsyncIterator[str]:
            for size in (10, 20_000, 300_000):
                yield TEXT[:size]

        assert await squeeze.count(texts()) == 320_010
        assert [each.raw_bytes > 19_000 for each in seen.take()] == [True, True], "the small one is left as it is"


async def test_what_does_not_pay_is_left_as_it_is(tmp_path: Path, seen: Seen) -> None:
    async with both(tmp_path, "tcp") as (_, squeeze):
        assert await squeeze.echo("short") == "short"
        assert await squeeze.quick(NOISE) == NOISE
        assert await squeeze.plain(TEXT) == TEXT
        assert seen.take() == []


@pytest.mark.parametrize("old", ["consumer", "provider"])
async def test_with_a_peer_that_knows_nothing_of_it(
    tmp_path: Path, seen: Seen, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One end's HELLO does not offer anything, as one from before did not."""
    side: Any = getattr(import_module(f"steelyard.wire.mux.{old}"), f"{old.title()}Side")
    made = side.__init__

    def silent(self: Any, *args: Any, **facts: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("steelyard.wire.mux.side.packings", lambda: ())
            made(self, *args, **facts)

    monkeypatch.setattr(side, "__init__", silent)
    async with both(tmp_path, "tcp") as (_, squeeze):
        assert await squeeze.echo(TEXT) == TEXT
        there_or_back = seen.take()
    # What has offered nothing is sent nothing compressed; it may still send what the other can read.
    assert len(there_or_back) == 1


async def test_without_the_library_it_travels_as_it_is_and_is_told_once(
    tmp_path: Path, seen: Seen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("steelyard.wire.mux.side.packings", lambda: ())
    monkeypatch.setattr("steelyard.codec.choose.packings", lambda: ())
    with caplog.at_level(logging.WARNING):
        async with both(tmp_path, "tcp") as (_, squeeze):
            assert await squeeze.echo(TEXT) == TEXT
    assert seen.take() == []
    assert "pip install 'steelyard[compression]'" in caplog.text


async def test_a_body_that_cannot_be_unpacked_is_the_callers_fault(tmp_path: Path) -> None:
    async with both(tmp_path, "tcp") as (provider, squeeze), Channel(provider.address) as channel:
        for body in (Packed("zstd", 5000, b"nonsense"), Packed("lz4", 5000, b"\xff" * 50)):
            with pytest.raises(InvalidArgument, match="a compressed body") as raised:
                await channel(Invocation("test.Squeeze", "echo", body=body))  # type: ignore[arg-type]
            assert raised.value.is_remote
        assert await squeeze.echo(TEXT) == TEXT, "the connection is none the worse"


async def test_many_at_once(tmp_path: Path) -> None:
    async with both(tmp_path, "tcp") as (provider, squeeze):
        texts = [TEXT[n : n + 5000 * (n % 40)] for n in range(200)]
        assert await asyncio.gather(*(squeeze.echo(text) for text in texts)) == texts
        assert provider.in_flight == 0


async def test_a_plain_grpc_client_gets_grpcs_own(tmp_path: Path) -> None:
    async with both(tmp_path, "tcp") as (provider, _):
        body = msgpack.packb([TEXT])
        async with grpc.aio.insecure_channel(provider.address) as channel:
            call = channel.unary_unary("/test.Squeeze/echo")(body, timeout=20, compression=grpc.Compression.Gzip)
            assert msgpack.unpackb(await call) == TEXT
            metadata = dict(await call.initial_metadata())
        assert metadata.get("grpc-encoding", "gzip") == "gzip"
        assert len(gzip.compress(body)) < len(body)


async def test_a_foreign_server_is_sent_grpcs_own() -> None:
    came: list[bytes] = []

    async def echo(body: bytes, _: Any) -> bytes:
        return body

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, seen: list[bytes]) -> None:
            while data := await source.read(65536):
                seen.append(data)
                sink.write(data)
            sink.close()

        await asyncio.gather(pump(reader, onward_writer, came), pump(onward_reader, writer, []))

    server = grpc.aio.server()
    methods = ("echo", "plain")
    handlers = {name: grpc.unary_unary_rpc_method_handler(echo) for name in methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Squeeze", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    between = await asyncio.start_server(relay, "127.0.0.1", 0)
    address = f"127.0.0.1:{between.sockets[0].getsockname()[1]}"
    specs = {name: service_spec(Squeeze).methods[name] for name in methods}
    channel = Channel(address, connector=LaneConnector(is_foreign=True))
    try:
        body, sizes = msgpack.packb([TEXT]), {}
        for name, spec in specs.items():
            came.clear()
            reply = await channel(Invocation(service="test.Squeeze", method=name, body=body, spec=spec))
            assert reply.body == body
            sizes[name] = sum(map(len, came))
        assert sizes["echo"] < len(body) // 2 < len(body) < sizes["plain"]
    finally:
        await channel.close()
        await server.stop(0)
        between.close()


def test_only_what_is_known() -> None:
    with pytest.raises(ConfigError, match="compress must be 'zstd', 'lz4' or None, not 'brotli'"):
        method(compress="brotli")


def test_a_reply_says_nothing_by_itself() -> None:
    assert Reply().packing == ""
