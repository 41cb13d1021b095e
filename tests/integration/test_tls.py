"""TLS from one Credentials value over every way in: who is let in, what the others are told, and rotation."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from support.pki import Pki, from_now, shared_pki
from support.wires import until

from steelyard import BlockingConsumer, Consumer, Provider, current_call, method, service, with_options
from steelyard.errors import ConfigError, RpcError, Unavailable
from steelyard.security import Credentials

CARRIERS = ["grpc", "tcp", "uds"]


@service("test.Who")
class Who:
    @method(timeout_s=10.0, idempotent=True)
    async def am_i(self) -> list[str]:
        call = current_call()
        return list(call.caller.names) if call is not None and call.caller is not None else []

    @method(timeout_s=60.0)
    async def ticks(self) -> AsyncIterator[int]:
        number = 0
        while True:
            yield number
            number += 1
            await asyncio.sleep(0.02)


@pytest.fixture
def registry(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return f"embedded://{tmp_path}/registry.db"


@pytest.fixture
def pki() -> Pki:
    return shared_pki()


@contextlib.asynccontextmanager
async def serving(registry: str, credentials: Credentials | None, **settings: Any) -> AsyncIterator[Provider]:
    async with Provider(registry, host="127.0.0.1", credentials=credentials, **settings) as provider:
        await provider.export(Who())
        yield provider


@contextlib.asynccontextmanager
async def calling(registry: str, credentials: Credentials | None, carrier: str) -> AsyncIterator[Any]:
    async with Consumer(registry, credentials=credentials, carrier=carrier) as consumer:
        who = consumer.refer(Who)
        await consumer.ready(who)
        yield who


async def refusal(registry: str, credentials: Credentials | None, carrier: str) -> str:
    async with calling(registry, credentials, carrier) as who:
        with pytest.raises(Unavailable) as raised:
            await with_options(who, timeout_s=5.0).am_i()
        assert raised.value.may_have_run is False
        return raised.value.message


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_the_handler_knows_the_callers_certificate_on_every_carrier(
    registry: str, pki: Pki, carrier: str
) -> None:
    names = ["dns:api.test", "ip:10.1.2.3"]
    async with (
        serving(registry, pki.provider(mutual=True)) as provider,
        calling(registry, pki.consumer(*names), carrier) as who,
    ):
        assert provider.nodes[0].tags["tls"] == "mutual"
        assert await who.am_i() == names


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_without_a_client_certificate_there_is_tls_and_no_name(registry: str, pki: Pki, carrier: str) -> None:
    async with serving(registry, pki.provider()) as provider, calling(registry, pki.consumer(), carrier) as who:
        assert provider.nodes[0].tags["tls"] == "server"
        names = await who.am_i()
        # The Unix socket stays plain: the kernel knows who is at its ends, and says so.
        assert names == [] if carrier != "uds" else names[0].startswith("uid:")


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_consumer_without_credentials_is_told_what_to_do(registry: str, pki: Pki, carrier: str) -> None:
    async with serving(registry, pki.provider()):
        message = await refusal(registry, None, carrier)
    assert "speaks TLS only" in message
    assert "--tls-ca" in message


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_consumer_without_a_certificate_is_told_what_to_do(registry: str, pki: Pki, carrier: str) -> None:
    async with serving(registry, pki.provider(mutual=True)):
        message = await refusal(registry, pki.consumer(), carrier)
    assert "asks its callers for a certificate" in message
    assert "--tls-key" in message


@pytest.mark.parametrize("carrier", ["grpc", "tcp"])
async def test_a_provider_of_another_authority_is_not_believed(registry: str, pki: Pki, carrier: str) -> None:
    async with serving(registry, Pki().provider()):
        message = await refusal(registry, pki.consumer(), carrier)
    assert "certificate" in message.lower()


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_consumer_of_another_authority_is_turned_away(registry: str, pki: Pki, carrier: str) -> None:
    stranger = Pki().consumer("dns:api.test")
    mixed = Credentials(ca=pki.ca, certificate=stranger.certificate, key=stranger.key)
    async with serving(registry, pki.provider(mutual=True)):
        assert await refusal(registry, mixed, carrier)


@pytest.mark.parametrize("carrier", ["grpc", "tcp"])
async def test_the_certificate_must_be_that_of_the_address(registry: str, pki: Pki, carrier: str) -> None:
    async with serving(registry, pki.provider("dns:ads.test")):
        assert await refusal(registry, pki.consumer(), carrier)
        async with calling(registry, pki.consumer(server_name="ads.test"), carrier) as who:
            assert await who.am_i() == []


@pytest.mark.parametrize("carrier", ["grpc", "tcp"])
async def test_a_consumer_with_credentials_does_not_speak_in_the_clear(registry: str, pki: Pki, carrier: str) -> None:
    async with serving(registry, None):
        message = await refusal(registry, pki.consumer(), carrier)
        assert "does not say that it speaks TLS" in message
        async with calling(registry, pki.consumer(allow_plaintext=True), carrier) as who:
            assert await who.am_i() == []


async def test_the_uds_lane_of_another_user_is_not_believed(
    registry: str, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(registry, pki.provider()):
        monkeypatch.setattr("steelyard.wire.lane.os.getuid", lambda: 54_321)
        assert "belongs to another user" in await refusal(registry, pki.consumer(), "uds")


async def test_lanes_are_not_needed(registry: str, pki: Pki) -> None:
    async with (
        serving(registry, pki.provider(mutual=True), lane_port=None) as provider,
        calling(registry, pki.consumer("dns:api.test"), "auto") as who,
    ):
        assert "lane" not in provider.nodes[0].tags
        assert await who.am_i() == ["dns:api.test"]


@pytest.mark.parametrize("mutual", [False, True])
async def test_plain_grpc_clients_come_in_by_the_same_credentials(registry: str, pki: Pki, mutual: bool) -> None:
    certificate, key = pki.pair("dns:plain.test")
    credentials = grpc.ssl_channel_credentials(pki.ca, *((key, certificate) if mutual else (None, None)))
    async with serving(registry, pki.provider(mutual=mutual)) as provider:
        async with grpc.aio.secure_channel(provider.address, credentials) as channel:
            answer = await channel.unary_unary("/test.Who/am_i")(b"\x90", timeout=10)
        assert (b"dns:plain.test" in answer) is mutual
        async with grpc.aio.insecure_channel(provider.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await channel.unary_unary("/test.Who/am_i")(b"\x90", timeout=5)


def test_the_environment_says_it_for_both_sides(
    tmp_path: Path, registry: str, pki: Pki, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, path in pki.write(tmp_path, "ip:127.0.0.1").items():
        monkeypatch.setenv(f"STEELYARD_TLS_{name.upper()}", str(path))
    monkeypatch.setenv("STEELYARD_TLS_REQUIRE_CLIENT_CERTIFICATE", "1")

    async def run() -> None:
        async with serving(registry, None):
            await asyncio.to_thread(call)

    def call() -> None:
        with BlockingConsumer(registry, carrier="tcp") as consumer:
            who = consumer.refer(Who)
            consumer.ready(who)
            assert who.am_i() == ["ip:127.0.0.1"]

    asyncio.run(run())


async def test_a_side_that_cannot_use_its_credentials_says_so_at_once(registry: str, pki: Pki) -> None:
    with pytest.raises(ConfigError, match=r"Credentials\.certificate: a provider proves itself"):
        Provider(registry, credentials=pki.consumer())
    with pytest.raises(ConfigError, match=r"Credentials\.ca: a consumer has to know"):
        Consumer(registry, credentials=pki.provider())


# Rotation and expiry.


def of(paths: dict[str, Path], **facts: Any) -> Credentials:
    return Credentials(**{name: str(path) for name, path in paths.items()}, **facts)


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_rotation_fails_no_call_and_new_connections_take_the_new_pair(
    registry: str, tmp_path: Path, pki: Pki, carrier: str
) -> None:
    paths = pki.write(tmp_path, "127.0.0.1", "dns:old.test")
    credentials = of(paths, require_client_certificate=True)
    failed: list[RpcError] = []
    is_over = False

    async def caller(who: Any) -> int:
        count = 0
        while not is_over:
            try:
                await who.am_i()
                count += 1
            except RpcError as error:
                failed.append(error)
            await asyncio.sleep(0)
        return count

    async with serving(registry, credentials), calling(registry, credentials, carrier) as who:
        before = await who.am_i()
        callers = [asyncio.ensure_future(caller(who)) for _ in range(4)]
        for round_ in range(3):
            name = f"dns:new{round_}.test"
            pki.write(tmp_path, "127.0.0.1", name)
            async with calling(registry, credentials, carrier) as another:
                assert name in await another.am_i(), "a new connection shows the new pair"
        assert "dns:old.test" in before
        assert before == await who.am_i(), "a connection that stands keeps what it began with"
        is_over = True
        counts = await asyncio.gather(*callers)
    assert not failed
    assert min(counts) > 0


@pytest.mark.parametrize("carrier", ["grpc", "tcp"])
async def test_a_half_written_rotation_leaves_the_old_pair_in_use(
    registry: str, tmp_path: Path, pki: Pki, carrier: str, caplog: pytest.LogCaptureFixture
) -> None:
    paths = pki.write(tmp_path)
    certificate, key = pki.pair("127.0.0.1")
    async with serving(registry, of(paths)):
        paths["key"].write_bytes(key)  # the certificate that belongs to it has not come yet
        with caplog.at_level(logging.WARNING):
            async with calling(registry, pki.consumer(), carrier) as who:
                assert await who.am_i() == []
        assert "the last good ones stay in use" in caplog.text
        assert "PRIVATE" not in caplog.text
        paths["certificate"].write_bytes(certificate)
        async with calling(registry, pki.consumer(), carrier) as who:
            assert await who.am_i() == []


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_stream_outlives_the_certificate_that_it_began_with(
    registry: str, tmp_path: Path, pki: Pki, carrier: str
) -> None:
    expires = from_now(2.0)
    paths = pki.write(tmp_path, "127.0.0.1", not_after=expires)
    credentials = of(paths, require_client_certificate=True)
    async with serving(registry, credentials), calling(registry, credentials, carrier) as who:
        ticks = who.ticks()
        assert await anext(ticks) == 0
        while from_now(0) <= expires + (from_now(0.5) - from_now(0)):
            await anext(ticks)
        message = await refusal(registry, credentials, carrier)
        assert "certificate" in message.lower() or "expired" in message.lower() or "handshake" in message.lower()
        pki.write(tmp_path)
        async with calling(registry, credentials, carrier) as another:
            assert await another.am_i() == ["ip:127.0.0.1"]
        assert await anext(ticks) > 0, "the stream has never stopped"
        await ticks.aclose()


# Who says nothing.


async def quiet_connections(provider: Provider, count: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    lane = dict(part.split(":", 1) for part in provider.nodes[0].tags["lane"].split(","))
    return [await asyncio.open_connection("127.0.0.1", int(lane["tcp"])) for _ in range(count)]


@pytest.mark.parametrize("is_secured", [False, True])
async def test_those_who_connect_and_say_nothing_keep_nobody_out(registry: str, pki: Pki, is_secured: bool) -> None:
    from steelyard.wire import WireLimits

    limits = WireLimits(strangers=8, connect_timeout_s=1.0)
    credentials = pki.provider() if is_secured else None
    async with serving(registry, credentials, limits=limits) as provider:
        quiet = await quiet_connections(provider, 40)
        await asyncio.sleep(0.3)  # the oldest have had their fair time
        async with calling(registry, pki.consumer() if is_secured else None, "tcp") as who:
            assert await who.am_i() == []
            # Each of them is ended, whether its place was needed or its time is over.
            for reader, writer in quiet:
                with contextlib.suppress(OSError):
                    async with asyncio.timeout(10):
                        await reader.read()
                writer.close()
            assert await who.am_i() == []
            await until(lambda: provider._listener is not None and provider._listener.connections == 1)


async def test_a_peer_that_speaks_no_tls_is_turned_away_and_costs_nothing(registry: str, pki: Pki) -> None:
    async with serving(registry, pki.provider()) as provider:
        for word in (b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 300, b"\x16\x03\x01\xff\xff" + b"x" * 70_000):
            ((reader, writer),) = await quiet_connections(provider, 1)
            writer.write(word)
            with contextlib.suppress(OSError):
                async with asyncio.timeout(10):
                    await reader.read()
            writer.close()
        async with calling(registry, pki.consumer(), "tcp") as who:
            assert await who.am_i() == []


async def test_older_tls_is_not_spoken(registry: str, pki: Pki) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=pki.ca.decode())
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(registry, pki.provider()) as provider:
        lane = dict(part.split(":", 1) for part in provider.nodes[0].tags["lane"].split(","))
        with pytest.raises(OSError):  # an alert, or the end of the connection if that is seen first
            await asyncio.open_connection("127.0.0.1", int(lane["tcp"]), ssl=context)


def test_uvloop_speaks_it_as_well(registry: str, pki: Pki) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def run() -> None:
        for carrier in CARRIERS:
            async with (
                serving(registry, pki.provider(mutual=True)),
                calling(registry, pki.consumer("dns:api.test"), carrier) as who,
            ):
                assert await who.am_i() == ["dns:api.test"]

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())
