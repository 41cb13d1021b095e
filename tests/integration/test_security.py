"""Who is let in, over real connections: service tokens, bearers, rules, rates; and that secrets show nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest
from support.jwts import AUDIENCE, ISSUER, Signer, jwks
from support.pki import Pki, shared_pki

from steelyard import Consumer, Overloaded, Provider, current_call, method, service, with_options
from steelyard.errors import ConfigError, PermissionDenied, RpcError, Unauthenticated, Unimplemented
from steelyard.model import Identity, Invocation
from steelyard.security import Bearer, JwtVerifier, allow, deny

TOKEN = "s3cret-s3cret"


@service("test.Desk")
class Desk:
    def __init__(self) -> None:
        self.decoded: list[Any] = []

    @method(timeout_s=10.0)
    async def who(self) -> list[str]:
        call = current_call()
        assert call is not None
        assert "token" not in call.attachments
        assert "authorization" not in call.attachments
        return [] if call.caller is None else [call.caller.kind, *call.caller.names]

    @method(timeout_s=10.0)
    async def take(self, x: np.ndarray) -> int:
        self.decoded.append(x)
        return int(x.sum())

    @method(timeout_s=10.0)
    async def count(self, last: int) -> AsyncIterator[int]:
        for number in range(last):
            yield number


@pytest.fixture
def registry(tmp_path: Path) -> str:
    tmp_path.chmod(0o700)
    return f"embedded://{tmp_path}/registry.db"


@pytest.fixture
def pki() -> Pki:
    return shared_pki()


@contextlib.asynccontextmanager
async def serving(registry: str, token: Any = None, **settings: Any) -> AsyncIterator[tuple[Provider, Desk]]:
    async with Provider(registry, host="127.0.0.1", **settings) as provider:
        desk = Desk()
        await provider.export(desk, token=token)
        yield provider, desk


@contextlib.asynccontextmanager
async def calling(registry: str, **settings: Any) -> AsyncIterator[Any]:
    async with Consumer(registry, **settings) as consumer:
        desk = consumer.refer(Desk)
        await consumer.ready(desk)
        yield desk


async def plain(provider: Provider, name: str = "who", *, body: bytes = b"\x90", **headers: str) -> bytes:
    """A call that comes past the registry."""
    async with grpc.aio.insecure_channel(provider.address) as channel:
        call = channel.unary_unary(f"/test.Desk/{name}")
        answer: bytes = await call(body, timeout=10, metadata=tuple(headers.items()))
        return answer


async def status(provider: Provider, name: str = "who", **headers: str) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await plain(provider, name, **headers)
    return raised.value.code(), raised.value.details() or ""


# A token of the service.


@pytest.mark.parametrize("carrier", ["grpc", "tcp", "uds"])
async def test_who_comes_by_the_registry_brings_the_token(registry: str, carrier: str) -> None:
    async with serving(registry, token=True) as (provider, _), calling(registry, carrier=carrier) as desk:
        assert len(provider.nodes[0].tags["token"]) == 32
        assert (await desk.who())[:1] in ([], ["local"])
        assert [item async for item in desk.count(3)] == [0, 1, 2]
        assert provider.statistics().security.unauthenticated == 0


async def test_who_comes_past_the_registry_is_refused(registry: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="steelyard"):
        async with serving(registry, token=[TOKEN, "the-one-before"]) as (provider, _):
            for headers in ({}, {"token": "wrong-wrong"}, {"token": TOKEN[:-1]}):
                code, details = await status(provider, **headers)
                assert code is grpc.StatusCode.UNAUTHENTICATED
                assert "test.Desk asks for its token" in details
                assert TOKEN not in details
            assert await plain(provider, token=TOKEN)
            assert await plain(provider, token="the-one-before"), "while consumers still hold the last one"
            assert provider.statistics().security.unauthenticated == 3
    assert TOKEN not in caplog.text


async def test_each_service_has_its_own_token_or_none(registry: str) -> None:
    @service("test.Open")
    class Open:
        @method
        async def one(self) -> int:
            return 1

    async with serving(registry, token=TOKEN) as (provider, _):
        await provider.export(Open())
        async with Consumer(registry) as consumer:
            opened, desk = consumer.refer(Open), consumer.refer(Desk)
            await consumer.ready(opened)
            await consumer.ready(desk)
            assert await opened.one() == 1
            await desk.who()


# Bearers.


def verifier(signer: Signer, **settings: Any) -> JwtVerifier:
    return JwtVerifier(keys=jwks(signer), issuer=ISSUER, audience=AUDIENCE, **settings)


async def test_a_bearer_is_who_calls_and_the_connections_names_come_after(registry: str, pki: Pki) -> None:
    signer = Signer("k")
    for carrier in ("grpc", "tcp", "uds"):
        async with (
            serving(registry, credentials=pki.provider(mutual=True), authenticator=verifier(signer)),
            calling(
                registry,
                credentials=pki.consumer("dns:host.test"),
                bearer=Bearer(source=lambda: signer.token("batch")),
                carrier=carrier,
            ) as desk,
        ):
            assert await desk.who() == ["bearer", "sub:batch", "dns:host.test"]


async def test_without_a_good_bearer_nobody_is_let_in(
    registry: str, caplog: pytest.LogCaptureFixture, pki: Pki
) -> None:
    signer = Signer("k")
    expired = signer.token(exp=1)
    credentials = {"credentials": pki.consumer()}
    with caplog.at_level(logging.DEBUG, logger="steelyard"):
        async with serving(registry, authenticator=verifier(signer), credentials=pki.provider()) as (provider, _):
            async with calling(registry, **credentials) as desk:
                with pytest.raises(Unauthenticated, match=r"test\.Desk asks for a bearer token"):
                    await desk.who()
            async with calling(registry, bearer=Bearer(token=expired), **credentials) as desk:
                with pytest.raises(Unauthenticated, match="it has expired") as raised:
                    await desk.who()
                assert raised.value.may_have_run is False
            assert provider.statistics().security.unauthenticated == 2
    assert expired not in caplog.text


async def test_a_bearer_from_a_file_is_renewed_without_a_failed_call(registry: str, tmp_path: Path, pki: Pki) -> None:
    old, new = Signer("old"), Signer("new")
    keys, file = tmp_path / "jwks.json", tmp_path / "token"
    keys.write_bytes(jwks(old, new))
    file.write_text(old.token("batch"))
    verify = JwtVerifier(keys=keys, issuer=ISSUER, audience=AUDIENCE)
    async with (
        serving(registry, authenticator=verify, credentials=pki.provider()),
        calling(registry, credentials=pki.consumer(), bearer=Bearer(file=file), carrier="tcp") as desk,
    ):
        assert await desk.who() == ["bearer", "sub:batch"]
        replace(file, new.token("batch-2").encode())
        assert await desk.who() == ["bearer", "sub:batch-2"]
        replace(keys, jwks(new))
        assert await desk.who() == ["bearer", "sub:batch-2"]
        replace(file, old.token("batch").encode())
        with pytest.raises(Unauthenticated, match="a key that is not known"):
            await desk.who()


def replace(file: Path, content: bytes) -> None:
    (file.parent / "next").write_bytes(content)
    (file.parent / "next").replace(file)


async def test_a_bearer_does_not_travel_in_the_clear(registry: str, pki: Pki) -> None:
    with pytest.raises(ConfigError, match="whoever listens could call with this token"):
        Consumer(registry, bearer=Bearer(token=TOKEN))
    with pytest.raises(ConfigError, match="without allow_plaintext"):
        Consumer(registry, bearer=Bearer(token=TOKEN), credentials=pki.consumer(allow_plaintext=True))
    Consumer(registry, bearer=Bearer(token=TOKEN, allow_plaintext=True))


class Doorman:
    """An authenticator of one's own, which may wait."""

    async def authenticate(self, call: Invocation) -> Identity | None:
        await asyncio.sleep(0)
        name = call.attachments.get("badge")
        if name == "broken":
            raise RuntimeError("the badge reader is on fire: secret-badge")
        if name is None:
            raise Unauthenticated(f"{call.service}: no badge")
        return Identity(f"badge:{name}", "badge")


async def test_an_authenticator_of_ones_own(registry: str, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(registry, authenticator=Doorman(), access=[allow("badge:7")]) as (provider, _),
        calling(registry, carrier="tcp") as desk,
    ):
        assert await with_options(desk, attachments={"badge": "7"}).who() == ["badge", "badge:7"]
        with pytest.raises(PermissionDenied, match=r"test\.Desk\.who is not open to badge:8"):
            await with_options(desk, attachments={"badge": "8"}).who()
        with pytest.raises(Unauthenticated, match="no badge"):
            await desk.who()
        with pytest.raises(Unauthenticated, match="it could not be found out who calls") as raised:
            await with_options(desk, attachments={"badge": "broken"}).who()
        assert "fire" not in raised.value.message, "what an authenticator trips over is for its own log"
        assert "on fire" in caplog.text
        assert provider.statistics().security.unauthenticated == 2


# Rules.


@pytest.mark.parametrize("carrier", ["grpc", "tcp", "uds"])
async def test_rules_over_certificates_services_and_methods(registry: str, pki: Pki, carrier: str) -> None:
    rules = [allow("dns:*.ads.test", "test.Desk"), deny("dns:old.ads.test"), allow("dns:reader.test", method="who")]

    async def may(name: str, call: str, *args: Any) -> bool:
        async with calling(registry, credentials=pki.consumer(name), carrier=carrier) as desk:
            try:
                await getattr(desk, call)(*args)
            except PermissionDenied as error:
                refused.append(error)
                return False
            return True

    refused: list[PermissionDenied] = []

    async with serving(registry, credentials=pki.provider(mutual=True), access=rules) as (provider, desk):
        ones = np.ones(3)
        assert await may("dns:web.ads.test", "take", ones)
        assert await may("dns:reader.test", "who")
        assert not await may("dns:reader.test", "take", ones)
        assert not await may("dns:old.ads.test", "who")
        assert not await may("dns:stranger.test", "who")
        assert len(desk.decoded) == 1, "what is refused is not decoded"
        assert [error.may_have_run for error in refused] == [False] * 3
        assert "dns:stranger.test" in refused[2].message
        security = provider.statistics().security
        assert security.denied == {"test.Desk.take": 1, "test.Desk.who": 2}


async def test_rules_hold_for_plain_grpc_and_the_unknown_is_told_nothing(registry: str) -> None:
    async with serving(registry, access=[allow("dns:nobody.test")]) as (provider, desk):
        code, details = await status(provider)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "anonymous" in details
        code, details = await status(provider, "nothing")
        assert (code, "who" in details) == (grpc.StatusCode.UNIMPLEMENTED, False)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async with grpc.aio.insecure_channel(provider.address) as channel:
                await channel.unary_unary("/else.Where/x")(b"", timeout=10)
        assert "test.Desk" not in (raised.value.details() or "")
        # Refused before decoding: a body that cannot be decoded makes no difference.
        for body in (b"\xc1", b"\xdf\xff\xff\xff\xff", b"\x91" * 5000):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await plain(provider, "take", body=body)
            assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert desk.decoded == []


async def test_everybody_may_call_where_there_are_no_rules(registry: str) -> None:
    async with serving(registry) as (provider, _):
        assert await plain(provider)
        with pytest.raises(Unimplemented, match=r"exported: test\.Desk"):
            async with Consumer(registry) as consumer:
                await other(consumer, provider)


async def other(consumer: Consumer, provider: Provider) -> None:
    """Calls a service that is not there, at a node that is."""
    from steelyard.wire import Channel

    async with Channel(provider.address) as channel:
        await channel(Invocation("else.Where", "x", body=b""))


# Rates.


async def test_one_caller_does_not_take_anothers_rate(registry: str, pki: Pki) -> None:
    async def flood(name: str, calls: int) -> tuple[int, list[Overloaded]]:
        async with calling(registry, credentials=pki.consumer(name), carrier="tcp") as desk:
            refused: list[Overloaded] = []
            done = 0
            for _ in range(calls):
                try:
                    await desk.who()
                    done += 1
                except Overloaded as error:
                    refused.append(error)
            return done, refused

    async with serving(registry, credentials=pki.provider(mutual=True), caller_calls_per_s=10) as (provider, _):
        done, refused = await flood("dns:greedy.test", 40)
        # Each call may be tried three times: a refusal says that it did not run.
        assert 10 <= done < 40
        assert refused
        assert "more than 10 calls a second of dns:greedy.test" in refused[0].message
        assert refused[0].retry_after_s is not None
        assert (await flood("dns:modest.test", 5))[0] == 5
        assert provider.statistics().security.limited >= len(refused)


async def test_one_connection_does_not_take_more_than_its_rate(registry: str) -> None:
    from steelyard.wire import WireLimits

    async with serving(registry, limits=WireLimits(calls_per_s=5)), calling(registry, carrier="tcp") as desk:
        outcomes: Sequence[Any] = await asyncio.gather(*(desk.who() for _ in range(30)), return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, RpcError)]
        assert 5 <= len(outcomes) - len(refused) < 15
        assert all(isinstance(each, Overloaded) for each in refused)
        assert "5 calls a second on one connection" in str(refused[0])


# The command line shows none of it.


async def test_the_command_line_hides_tokens(registry: str, capsys: pytest.CaptureFixture[str]) -> None:
    from steelyard.cli import main

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as raised:
            main([*arguments, "--registry", registry])
        assert raised.value.code in (0, None)
        return capsys.readouterr().out

    async with serving(registry, token=TOKEN):
        shown = await asyncio.to_thread(run, "nodes", "--json")
        assert TOKEN not in shown
        assert '"token": "***"' in shown
        assert TOKEN not in await asyncio.to_thread(run, "nodes")
        assert await asyncio.to_thread(run, "call", "test.Desk.who", "--output", "json")


async def test_settings_that_cannot_be_meant(registry: str) -> None:
    with pytest.raises(ConfigError, match="authenticator: an object with authenticate"):
        Provider(registry, authenticator=7)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="access: a list of"):
        Provider(registry, access="dns:*")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="caller_calls_per_s"):
        Provider(registry, caller_calls_per_s=0)
    async with Provider(registry) as provider:
        with pytest.raises(ConfigError, match="token: True, or texts") as raised:
            await provider.export(Desk(), token="short")
        assert "short" not in str(raised.value)
