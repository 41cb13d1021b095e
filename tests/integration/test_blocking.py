"""The blocking twin: the same calls from a script, from many threads, and in wrong hands."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.shop import NoSuchUser, Shop

from steelyard import BlockingConsumer, ConfigError, InvalidArgument


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A provider in a thread of its own, as a script would meet one."""
    import asyncio

    from support.shop import ShopModel

    from steelyard import Provider

    url = f"embedded://{tmp_path_factory.mktemp('blocking')}/registry.db"
    started = threading.Event()
    provider: list[tuple[asyncio.AbstractEventLoop, Provider]] = []

    async def serve() -> None:
        async with Provider(url, drain_s=1.0) as own:
            await own.export(ShopModel())
            provider.append((asyncio.get_running_loop(), own))
            started.set()
            await own.serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(10)
    yield url
    loop, own = provider[0]
    loop.call_soon_threadsafe(own.stop)
    thread.join(10)
    assert not thread.is_alive()


def test_calls_streams_and_exceptions(registry: str) -> None:
    with BlockingConsumer(registry) as consumer:
        shop = consumer.refer(Shop)
        assert shop.echo(7, b"hello") == b"hello"
        assert list(shop.count(4)) == [0, 1, 2, 3]
        with pytest.raises(NoSuchUser):
            shop.user(8)
        with pytest.raises(InvalidArgument):
            shop.echo("seven", b"")
        assert shop.echo.__doc__ == "What came in."


def test_a_stream_that_is_left_early(registry: str) -> None:
    with BlockingConsumer(registry) as consumer:
        items = consumer.refer(Shop).count(10**9)
        assert next(items) == 0
        items.close()


def test_many_threads_share_one_consumer(registry: str) -> None:
    with BlockingConsumer(registry) as consumer, ThreadPoolExecutor(8) as threads:
        shop = consumer.refer(Shop)
        bodies = [str(at).encode() for at in range(200)]
        assert list(threads.map(shop.echo, range(200), bodies)) == bodies


def test_it_ends_its_thread() -> None:
    before = threading.active_count()
    consumer = BlockingConsumer("memory://blocking-thread")
    consumer.open()
    consumer.open()
    assert threading.active_count() > before
    consumer.close()
    consumer.close()
    assert "steelyard-consumer" not in {thread.name for thread in threading.enumerate()}


def test_it_must_be_open() -> None:
    with pytest.raises(ConfigError, match="the consumer is not open: use `with BlockingConsumer"):
        BlockingConsumer("memory://x").refer(Shop)


def test_a_failed_open_leaves_no_thread() -> None:
    with pytest.raises(ConfigError):
        BlockingConsumer("nonsense://x").open()
    assert "steelyard-consumer" not in {thread.name for thread in threading.enumerate()}
