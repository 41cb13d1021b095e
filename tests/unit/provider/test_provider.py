"""The life of a provider: what it refuses before and after, and that it ends whole, whoever asks and however often."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from steelyard import ConfigError, Consumer, ContractError, Overloaded, Provider, RegistryUnavailable, method, service
from steelyard.telemetry import Telemetry
from steelyard_registry import Node, Registration, RegistryError, ServiceKey, open_registry


@service("test.Wait")
class Wait:
    @method(timeout_s=30)
    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"


@service("test.Odd")
class Odd:
    """Its second method cannot be carried."""

    @method
    async def good(self) -> int:
        return 1

    @method
    async def odd(self, event: asyncio.Event) -> int:
        return 1


@pytest.fixture
async def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
async def provider(url: str) -> AsyncIterator[Provider]:
    async with Provider(url, drain_s=0.5) as provider:
        yield provider


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not fact():
            await asyncio.sleep(0.005)


async def test_what_needs_an_open_provider_says_so(url: str) -> None:
    provider = Provider(url)
    for use in (lambda: provider.address, lambda: provider.registry):
        with pytest.raises(ConfigError, match="the provider is not open: use `async with Provider"):
            use()
    async with asyncio.timeout(5):
        with pytest.raises(ConfigError, match="the provider is not open"):
            await provider.serve()
    with pytest.raises(ConfigError, match="the provider is not open"):
        await provider.export(Wait())
    await provider.close()  # nothing to do


async def test_what_has_been_closed_says_so(provider: Provider) -> None:
    await provider.close()
    for use in (provider.open, provider.serve, lambda: provider.export(Wait())):
        with pytest.raises(ConfigError, match="this provider has been closed; make a new one"):
            await use()


async def test_an_export_that_fails_leaves_nothing_behind(provider: Provider, url: str) -> None:
    await provider.export(Wait())
    for _ in range(2):  # the second time for the same reason, and not because the first one was half done
        with pytest.raises(ContractError, match="'event' cannot be carried"):
            await provider.export(Odd())
    with pytest.raises(ConfigError, match=r"test\.Wait is exported already"):
        await provider.export(Wait())
    assert [node.service_key for node in provider.nodes] == ["test.Wait"]


async def test_a_service_that_could_not_be_registered_is_not_served_and_can_be_exported_again(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(node: Node) -> Registration:
        raise RegistryError("no right to write")

    with monkeypatch.context() as patched:
        patched.setattr(provider.registry, "register", refuse)
        with pytest.raises(RegistryUnavailable, match=r"test\.Wait@.* could not be registered: no right to write"):
            await provider.export(Wait())
        assert provider.nodes == ()
    node = await provider.export(Wait())
    assert provider.nodes == (node,)


async def test_all_addresses_are_listened_on_and_one_is_advertised(url: str) -> None:
    async with Provider(url, host="0.0.0.0", drain_s=0.1) as provider, Consumer(url) as consumer:
        node = await provider.export(Wait())
        assert node.host == "127.0.0.1"
        waiting = consumer.refer(Wait)
        await consumer.ready(waiting)
        assert await waiting.wait(0) == "waited"


async def test_everybody_who_closes_waits_for_the_same_end(provider: Provider, url: str) -> None:
    await provider.export(Wait())
    async with Consumer(url) as consumer:
        waiting = consumer.refer(Wait)
        await consumer.ready(waiting)
        call = asyncio.ensure_future(waiting.wait(0.2))
        await until(lambda: provider.in_flight == 1)
        first, second = (asyncio.ensure_future(provider.close()) for _ in range(2))
        await asyncio.sleep(0)
        assert provider.in_flight == 1
        assert provider.address  # calls that are being finished still know where they run
        await second
        assert call.done()
        assert await call == "waited"
        await first
    assert provider.in_flight == 0


async def test_closing_goes_on_when_the_one_who_asked_for_it_is_cancelled(provider: Provider) -> None:
    await provider.export(Wait())
    closing = asyncio.ensure_future(provider.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await provider.close()
    assert provider.nodes == ()
    assert "load reports" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_one_step_that_fails_does_not_keep_the_others_from_their_work(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry = open_registry(url)
    async with registry:
        provider = Provider(registry, drain_s=0.1)
        await provider.open()
        await provider.export(Wait())
        port = int(provider.address.rpartition(":")[2])

        async def withdraw() -> None:
            raise ConnectionError("the registry is away")

        monkeypatch.setattr(provider._exports._exports[0].announcement.registration, "withdraw", withdraw)
        await provider.close()
        assert "could not be withdrawn from the registry: the registry is away" in caplog.text
        async with Provider(url, port=port, drain_s=0.1) as next_one:  # the port is free again
            assert next_one.address.endswith(f":{port}")


async def test_a_registry_of_the_callers_own_stays_open_and_loses_the_nodes(url: str) -> None:
    async with open_registry(url) as registry:
        async with Provider(registry, drain_s=0.1) as provider:
            await provider.export(Wait())
        subscription = await registry.subscribe(ServiceKey(interface="test.Wait"))
        assert subscription.snapshot.nodes == ()
        await subscription.close()


async def test_what_does_not_open_leaves_no_telemetry_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Telemetry] = []

    async def aclose(self: Telemetry) -> None:
        closed.append(self)

    monkeypatch.setattr(Telemetry, "aclose", aclose)
    with pytest.raises(ConfigError):
        async with Provider("nonsense://x"):
            pass
    assert len(closed) == 1
    provider = Provider("nonsense://x")
    with pytest.raises(ConfigError):
        await provider.open()
    await provider.close()
    assert len(closed) == 2


async def test_streams_have_a_bound(url: str) -> None:
    @service("test.Ticks")
    class Ticks:
        @method
        async def ticks(self) -> AsyncIterator[int]:
            yield 1
            await asyncio.sleep(30)

    async with Provider(url, streams=2, drain_s=0.1) as provider, Consumer(url) as consumer:
        await provider.export(Ticks())
        proxy = consumer.refer(Ticks)
        await consumer.ready(proxy)
        streams = [proxy.ticks() for _ in range(2)]
        assert [await anext(stream) for stream in streams] == [1, 1]
        with pytest.raises(Overloaded, match="2 calls are under way and the limit is now 2"):
            await anext(proxy.ticks())
        await streams[0].aclose()
        async with asyncio.timeout(10):
            while provider.statistics().limits["test.Ticks.ticks"].in_flight > 1:
                await asyncio.sleep(0.01)
        again = proxy.ticks()
        assert await anext(again) == 1
        for stream in (*streams, again):
            await stream.aclose()
    with pytest.raises(ConfigError, match="streams"):
        Provider(url, streams=0)
