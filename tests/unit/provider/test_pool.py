"""The handler pool: bounded, counted, and its slots always come back."""

import asyncio
import contextvars
import gc
import logging
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from steelyard.errors import ConfigError, DeadlineExceeded, Overloaded, Unavailable
from steelyard.provider.busy import BusyMeter
from steelyard.provider.pool import HandlerPool

FOREVER = float("inf")


async def settled(pool: HandlerPool) -> None:
    async with asyncio.timeout(5):
        while pool.taken:
            await asyncio.sleep(0.001)


async def begun(pool: HandlerPool) -> None:
    """Until a thread has taken its call."""
    async with asyncio.timeout(5):
        while not pool.busy.running:
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
    await begun(pool)
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
    await begun(pool)  # while both wait, the more urgent goes first
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


async def test_a_handler_that_runs_out_of_items_fails_and_does_not_hang() -> None:
    pool = HandlerPool(1, 1, time.monotonic)
    async with asyncio.timeout(5):
        with pytest.raises(RuntimeError, match="the handler raised StopIteration"):
            await pool.run(lambda: next(iter(())), (), FOREVER)
    await settled(pool)
    pool.close()


async def test_threads_are_started_when_needed_and_kept() -> None:
    pool = HandlerPool(4, 8, time.monotonic)

    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name.startswith("steelyard-handler")}

    others = threads()
    for _ in range(20):
        await pool.run(time.sleep, (0,), FOREVER)
        await settled(pool)
        await asyncio.sleep(0.002)  # the thread says that it is idle after it has given its result
    assert len(threads() - others) <= 2
    await asyncio.gather(*(pool.run(time.sleep, (0.02,), FOREVER) for _ in range(12)))
    assert len(threads() - others) == 4
    pool.close()
    async with asyncio.timeout(5):
        while threads() - others:
            await asyncio.sleep(0.005)
    with pytest.raises(RuntimeError, match="closed"):
        await pool.run(time.sleep, (0,), FOREVER)
    assert pool.taken == 0


def test_a_handler_that_hangs_does_not_keep_its_process() -> None:
    """It once did: the interpreter waits for the threads of a ThreadPoolExecutor, and a drained provider lived on."""
    program = """
import asyncio, time
from steelyard.provider.pool import HandlerPool

async def main():
    pool = HandlerPool(1, 1, time.monotonic)
    hangs = asyncio.ensure_future(pool.run(time.sleep, (600,), float("inf")))
    await asyncio.sleep(0.1)
    hangs.cancel()
    pool.close()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "1 blocking handlers still run" in done.stderr


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, asyncio.CancelledError])
async def test_an_error_that_would_be_taken_for_something_else_is_named(kind: type[BaseException]) -> None:
    """A StopAsyncIteration from a blocking generator once ended its stream as if all items had come."""
    pool = HandlerPool(1, 1, time.monotonic)

    def breaks() -> Iterator[int]:
        yield 1
        raise kind

    class Breaks(Iterator[int]):  # a generator would make a RuntimeError of StopIteration itself
        def __next__(self) -> int:
            raise kind

    async with asyncio.timeout(5):
        stream = pool.iterate(breaks, ())
        assert await anext(stream) == 1
        with pytest.raises(RuntimeError, match=r"raised StopIteration|the handler raised"):
            await anext(stream)
        if kind is not StopIteration:
            with pytest.raises(RuntimeError, match=f"the handler raised {kind.__name__}"):
                await anext(pool.iterate(Breaks, ()))
    await settled(pool)
    pool.close()


async def test_what_a_handler_raises_has_run_and_what_the_pool_raises_has_not() -> None:
    pool = HandlerPool(1, 0, time.monotonic)

    def relays() -> None:
        raise Unavailable("of another call", may_have_run=False)

    with pytest.raises(Unavailable) as caught:
        await pool.run(relays, (), FOREVER)
    assert caught.value.may_have_run
    await settled(pool)
    gate = threading.Event()
    running = asyncio.ensure_future(pool.run(gate.wait, (5,), FOREVER))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as refused:
        await pool.run(gate.wait, (5,), FOREVER)
    assert not refused.value.may_have_run
    gate.set()
    assert await running
    await settled(pool)
    pool.close()


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("test_pool_variable", default="unset")


async def test_the_steps_of_a_generator_share_one_context() -> None:
    pool = HandlerPool(2, 2, time.monotonic)

    def generator():
        yield VARIABLE.get()
        VARIABLE.set("by the generator")
        yield "next"
        yield VARIABLE.get()

    VARIABLE.set("by the caller")
    assert [item async for item in pool.iterate(generator, ())] == ["by the caller", "next", "by the generator"]
    assert VARIABLE.get() == "by the caller"
    await settled(pool)
    pool.close()


async def test_a_generator_that_is_left_between_two_items_is_closed_in_the_pool() -> None:
    pool = HandlerPool(1, 0, time.monotonic)
    closed_in: list[str] = []

    def generator():
        try:
            yield from range(10)
        finally:
            closed_in.append(threading.current_thread().name)

    items = pool.iterate(generator, ())
    assert await anext(items) == 0
    kept = items._iterator  # so that it is not the garbage collector that closes it
    await items.aclose()
    await items.aclose()
    assert kept is not None
    assert len(closed_in) == 1
    assert closed_in[0].startswith("steelyard-handler")
    with pytest.raises(StopAsyncIteration):
        await anext(items)
    await settled(pool)
    pool.close()


async def test_a_generator_that_is_left_within_a_step_is_closed_when_the_step_ends() -> None:
    pool = HandlerPool(1, 0, time.monotonic)
    is_inside, gate, is_closed = threading.Event(), threading.Event(), threading.Event()

    def generator():
        try:
            is_inside.set()
            yield gate.wait(5)
        finally:
            is_closed.set()

    items = pool.iterate(generator, ())
    reader = asyncio.ensure_future(anext(items))
    assert await asyncio.to_thread(is_inside.wait, 5)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    kept = items._iterator
    await items.aclose()
    assert not is_closed.is_set()
    gate.set()
    assert await asyncio.to_thread(is_closed.wait, 5)
    assert kept is not None
    await settled(pool)
    pool.close()


async def test_a_clean_up_is_not_refused_by_a_full_pool_and_its_error_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = HandlerPool(1, 0, time.monotonic)

    def generator():
        try:
            yield 1
        finally:
            raise ValueError("while cleaning up")

    items = pool.iterate(generator, ())
    assert await anext(items) == 1
    await settled(pool)
    gate = threading.Event()
    running = asyncio.ensure_future(pool.run(gate.wait, (5,), FOREVER))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(items.aclose())
    await asyncio.sleep(0)
    gate.set()
    with caplog.at_level(logging.ERROR):
        await closing
    assert "a handler's clean-up raised" in caplog.text
    assert await running
    await settled(pool)
    pool.close()
    await pool.clean_up(lambda: None, contextvars.copy_context())  # closed: nothing to do, and no error


@pytest.mark.parametrize(
    ("threads", "queue", "message"),
    [
        (0, 1, "threads: a whole number from 1 to 10000, not 0"),
        (1, -1, "queue: a whole number from 0 to 1000000, not -1"),
    ],
)
def test_settings_are_checked(threads: int, queue: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HandlerPool(threads, queue, time.monotonic)


async def test_the_important_and_the_urgent_overtake() -> None:
    pool = HandlerPool(1, 10, time.monotonic)
    gate, ran, now = threading.Event(), [], time.monotonic()
    first = asyncio.ensure_future(pool.run(gate.wait, (5,), FOREVER))
    await begun(pool)
    waiting = [
        asyncio.ensure_future(pool.run(ran.append, (name,), deadline_at, priority=priority))
        for name, deadline_at, priority in (
            ("patient", FOREVER, 1),
            ("soon", now + 5, 1),
            ("sooner", now + 4, 1),
            ("minor", now + 3, 2),
            ("major", FOREVER, 0),
        )
    ]
    await asyncio.sleep(0.02)
    gate.set()
    await asyncio.gather(first, *waiting)
    assert ran == ["major", "sooner", "soon", "patient", "minor"]
    await settled(pool)
    pool.close()


async def test_a_full_line_makes_room_for_the_more_important_and_for_nobody_else() -> None:
    pool = HandlerPool(1, 2, time.monotonic)
    gate = threading.Event()
    first = asyncio.ensure_future(pool.run(gate.wait, (5,), FOREVER))
    await begun(pool)
    minor = [asyncio.ensure_future(pool.run(lambda: "ran", (), FOREVER, priority=2)) for _ in range(2)]
    await asyncio.sleep(0.02)
    with pytest.raises(Overloaded):
        await pool.run(lambda: "ran", (), FOREVER, priority=2)
    major = asyncio.ensure_future(pool.run(lambda: "major", (), FOREVER, priority=0))
    with pytest.raises(Overloaded) as caught:
        await minor[1]
    assert caught.value.may_have_run is False
    gate.set()
    assert await asyncio.gather(first, minor[0], major) == [True, "ran", "major"]
    await settled(pool)
    pool.close()


async def test_each_method_has_a_line_of_its_own() -> None:
    pool = HandlerPool(1, 1, time.monotonic)
    gate = threading.Event()
    first = asyncio.ensure_future(pool.run(gate.wait, (5,), FOREVER))
    await begun(pool)
    flood = asyncio.ensure_future(pool.run(lambda: "flood", (), FOREVER, line="flooded"))
    await asyncio.sleep(0.02)
    with pytest.raises(Overloaded):
        await pool.run(lambda: "flood", (), FOREVER, line="flooded")
    other = asyncio.ensure_future(pool.run(lambda: "other", (), FOREVER, line="other"))
    await asyncio.sleep(0.02)
    assert pool.queue_depth == 2
    gate.set()
    assert await asyncio.gather(first, flood, other) == [True, "flood", "other"]
    await settled(pool)
    pool.close()


async def test_a_caller_who_leaves_the_line_leaves_a_place_and_never_runs() -> None:
    pool = HandlerPool(1, 1, time.monotonic)
    gate, ran = threading.Event(), []
    first = asyncio.ensure_future(pool.run(gate.wait, (5,), FOREVER))
    await begun(pool)
    for _ in range(200):
        left = asyncio.ensure_future(pool.run(ran.append, ("left",), FOREVER))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
    assert (pool.queue_depth, pool._turns) == (0, 1)
    stays = asyncio.ensure_future(pool.run(ran.append, ("stays",), FOREVER))
    await asyncio.sleep(0.02)
    gate.set()
    await asyncio.gather(first, stays)
    assert ran == ["stays"]
    await settled(pool)
    pool.close()


def test_the_hint_is_the_time_the_line_takes_within_bounds() -> None:
    now = [0.0]
    meter = BusyMeter(2, lambda: now[0])
    assert meter.clears_in_s(2) == pytest.approx(0.05), "before any run"
    for _ in range(3):
        with meter:
            now[0] += 0.1
    assert meter.clears_in_s(0) == pytest.approx(0.05), "half a run, for two run at a time"
    assert meter.clears_in_s(6) == pytest.approx(0.3)
    assert meter.clears_in_s(1000) == 1.0
    with meter:
        now[0] += 3.7
        assert meter.clears_in_s(1) == pytest.approx(0.5), "a run under way counts as far as it is"


async def test_the_busy_share_counts_runs_under_way() -> None:
    now = [0.0]
    pool = HandlerPool(2, 1, lambda: now[0])
    gate, entered = threading.Event(), threading.Event()

    def handler() -> None:
        entered.set()
        gate.wait(5)

    running = asyncio.ensure_future(pool.run(handler, (), FOREVER))
    await asyncio.to_thread(entered.wait, 5)
    now[0] = 10.0
    assert pool.busy.share() == pytest.approx(0.5)
    gate.set()
    await running
    await settled(pool)
    now[0] = 20.0
    assert pool.busy.share() == 0.0
    pool.close()


class Large:
    """Stands for an array of many megabytes."""


async def test_an_idle_pool_keeps_nothing_of_the_calls_that_it_has_served() -> None:
    pool = HandlerPool(1, 100, time.monotonic)
    seen: list[weakref.ref[Large]] = []

    async def one(_: int) -> None:
        argument = Large()
        seen.append(weakref.ref(argument))
        await pool.run(lambda given: given, (argument,), FOREVER)

    await asyncio.gather(*(one(number) for number in range(20)))
    await settled(pool)
    gc.collect()
    assert [each() for each in seen] == [None] * 20
    pool.close()


async def test_a_machine_that_gives_no_more_threads_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """It once cost the pool those threads for ever, and with all of them lost every call would have hung."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = HandlerPool(2, 8, time.monotonic)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        for _ in range(5):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await pool.run(time.sleep, (0,), FOREVER)
    assert (pool.taken, pool._turns) == (0, 0)
    gate = threading.Event()
    first = asyncio.ensure_future(pool.run(gate.wait, (5,), FOREVER))
    await begun(pool)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        second = asyncio.ensure_future(pool.run(gate.is_set, (), FOREVER))
        await asyncio.sleep(0)
    gate.set()
    assert await asyncio.gather(first, second) == [True, True]
    assert await asyncio.gather(*(pool.run(gate.is_set, (), FOREVER) for _ in range(6))) == [True] * 6
    await settled(pool)
    assert pool._turns == 0
    pool.close()
