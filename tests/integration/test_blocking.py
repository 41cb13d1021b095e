"""The blocking twin: the same calls from a script, from many threads, and in wrong hands."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.shop import NoSuchUser, Shop

from steelyard import BlockingConsumer, ConfigError, DeadlineExceeded, InvalidArgument, with_options


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


def test_a_stream_that_is_dropped_or_left_after_its_consumer_complains_of_nothing(registry: str) -> None:
    """pytest turns what a finaliser raises into an error."""
    with BlockingConsumer(registry) as consumer:
        shop = consumer.refer(Shop)
        dropped, left = shop.count(10**9), shop.count(10**9)
        assert [next(dropped), next(left)] == [0, 0]
        del dropped
        gc.collect()
        with shop.count(10**9) as items:
            assert next(items) == 0
        assert list(items) == []
        until(lambda: sum(node.in_flight for node in consumer.statistics(shop).balance.nodes) == 1)
    left.close()
    left.close()
    assert list(left) == []


def test_a_wrong_argument_of_a_stream_is_told_at_the_call(registry: str) -> None:
    with BlockingConsumer(registry) as consumer, pytest.raises(InvalidArgument, match="missing"):
        consumer.refer(Shop).count()


def test_options_by_call(registry: str) -> None:
    with BlockingConsumer(registry) as consumer:
        shop = with_options(consumer.refer(Shop), attachments={"tenant": "blue"})
        assert shop.attachments()["tenant"] == "blue"
        with pytest.raises(DeadlineExceeded):
            with_options(shop, timeout_s=0.05).slow(30)


def until(fact) -> None:
    give_up_at = time.monotonic() + 5
    while not fact():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as in a terminal: a process that a shell started in the background ignores it from birth."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_the_call_and_not_the_consumer(registry: str) -> None:
    with BlockingConsumer(registry) as consumer:
        shop = consumer.refer(Shop)
        consumer.ready(shop)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            with_options(shop, timeout_s=30).slow(30)
        assert shop.echo(7, b"still here") == b"still here"
        until(lambda: sum(node.in_flight for node in consumer.statistics(shop).balance.nodes) == 0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_after_a_fork_it_says_so_and_does_not_hang() -> None:
    consumer = BlockingConsumer("memory://blocking-fork")
    consumer.open()
    shop = consumer.refer(Shop)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest's may run here
        try:
            signal.alarm(10)
            try:
                shop.echo(7, b"")
            except ConfigError as error:
                os.write(writer, str(error).encode())
            consumer.close()
            os.write(writer, b" (closed)")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        assert said.read() == "the consumer was opened before this process was forked; open another one here (closed)"
    os.waitpid(child, 0)
    consumer.close()


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
