"""Which registry is opened: the one that is named, then the environment's, then this user's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.shop import Shop, ShopModel

from steelyard import BlockingConsumer, Consumer, Provider
from steelyard.cluster import open_at
from steelyard.errors import ConfigError
from steelyard_registry import open_registry

VARIABLE = "STEELYARD_REGISTRY"


@pytest.fixture(autouse=True)
def own_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("named", "variable", "opened"),
    [
        ("memory://named", "memory://variable", "memory://named"),
        (None, "memory://variable", "memory://variable"),
        (["memory://a", "memory://b"], "memory://variable", "memory://a + memory://b"),
        (None, "", "embedded://"),
        (None, None, "embedded://"),
    ],
)
async def test_the_argument_then_the_environment_then_the_default(
    named: str | list[str] | None, variable: str | None, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    async with await open_at(named, 5.0) as registry:
        assert registry.url.startswith(opened)


@pytest.mark.parametrize("end", [Consumer, Provider])
async def test_both_ends_honour_the_environment(
    end: type[Consumer] | type[Provider], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "memory://both-ends")
    async with end() as opened:
        assert opened.registry.url == "memory://both-ends"


def test_the_blocking_consumer_does_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "memory://blocking")
    with BlockingConsumer() as consumer:
        assert consumer.statistics(consumer.refer(Shop)).snapshot.nodes == ()
        assert consumer._consumer.registry.url == "memory://blocking"


async def test_a_bad_url_in_the_environment_is_blamed_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "127.0.0.1:2181")
    with pytest.raises(ConfigError, match=r"^\$STEELYARD_REGISTRY: registry URL '127\.0\.0\.1:2181' has no scheme"):
        await Consumer().open()


async def test_several_registries_at_either_end() -> None:
    """Announced at the first, seen in all."""
    async with open_registry("memory://own") as own, Provider(["memory://first", own], host="127.0.0.1") as provider:
        await provider.export(ShopModel("one"))
        async with Consumer(["memory://second", "memory://first"]) as consumer:
            shop = consumer.refer(Shop)
            await consumer.ready(shop)
            assert await shop.blocking(0.0) == "one"
        assert await own.services() == ()
