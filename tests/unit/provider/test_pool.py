"""The handler pool: bounded, counted, and its slots always come back."""

import asyncio
import threading
import time

import pytest

from steelyard.errors import ConfigError, DeadlineExceeded, Overloaded
from steelyard.provider.pool import HandlerPool

FOREVER = float("inf")


async def settled(pool: HandlerPool) -> None:
    async with asyncio.timeout(5):
        while pool.taken:
            await asyncio.sleep(0.001)


async def test_it_runs_in_a_thread_and_gives_the_result() -> None:
    pool = HandlerPool(1, 1, time.monotonic)
    assert await pool.run(
        lambda a, b: (a, b, threading.current_thread() is threading.main_thread()), ((1, 2)), FOREVER
    ) == (
        1,
        2,
        False,
    )
    await settled(pool)
    pool.close()


async def test_more_than_threads_and_queue_is_refused_at_once() -> None:
    pool = HandlerPool(1, 1, time.monotonic)
    gate = threading.Event()
    running = [asyncio.ensure_future(pool.run(gate.wait, (5,), FOREVER)) for _ in range(2)]
    await asyncio.sleep(0)
    assert pool.queue_depth == 1
    with pytest.raises(Overloaded, match="1 handler threads are busy and 1 calls wait already"):
        await pool.run(gate.wait, (5,), FOREVER)
    gate.set()
    assert await asyncio.gather(*running) == [True, True]
    await settled(pool)
    assert pool.queue_depth == 0
    pool.close()


async def test_a_caller_who_leaves_gives_the_slot_back_only_when_the_thread_is_done() -> None:
    pool = HandlerPool(1, 0, time.monotonic)
    gate = threading.Event()
    left = asyncio.ensure_future(pool.run(gate.wait, (5,), FOREVER))
    await asyncio.sleep(0.02)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    with pytest.raises(Overloaded):
        await pool.run(gate.wait, (5,), FOREVER)
    gate.set()
    await settled(pool)
    assert await pool.run(gate.is_set, (), FOREVER) is True
    await settled(pool)
    pool.close()


async def test_a_call_that_expired_in_the_queue_is_not_run() -> None:
    pool = HandlerPool(1, 4, time.monotonic)
    gate = threading.Event()
    ran = []
    first = asyncio.ensure_future(pool.run(gate.wait, (5,), FOREVER))
    late = asyncio.ensure_future(pool.run(ran.append, ("late",), time.monotonic() + 0.01))
    await asyncio.sleep(0.05)
    gate.set()
    with pytest.raises(DeadlineExceeded) as caught:
        await late
    assert (caught.value.may_have_run, ran, await first) == (False, [], True)
    await settled(pool)
    pool.close()


async def test_a_blocking_generator_is_fetched_item_by_item() -> None:
    pool = HandlerPool(2, 2, time.monotonic)

    def count(n: int):
        yield from range(n)

    assert [item async for item in pool.iterate(count, (3,))] == [0, 1, 2]
    await settled(pool)
    pool.close()


async def test_a_generator_may_yield_none_and_may_raise() -> None:
    pool = HandlerPool(2, 2, time.monotonic)

    def odd():
        yield None
        raise ValueError("half way")

    items = pool.iterate(odd, ())
    assert await anext(items) is None
    with pytest.raises(ValueError, match="half way"):
        await anext(items)
    await settled(pool)
    pool.close()


@pytest.mark.parametrize(
    ("threads", "queue", "message"), [(0, 1, "threads: at least 1, not 0"), (1, -1, "queue: 0 or more, not -1")]
)
def test_settings_are_checked(threads: int, queue: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HandlerPool(threads, queue, time.monotonic)
