from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from opentelemetry.context import attach, create_key, detach, get_value, set_value

from steelyard.telemetry import WatchedStream

KEY = create_key("test")


async def numbers(count: int, failure: Exception | None = None) -> AsyncIterator[int]:
    for number in range(count):
        yield number
    if failure is not None:
        raise failure


class Ends(list[BaseException | None]):
    def __call__(self, error: BaseException | None) -> None:
        self.append(error)


async def test_the_proper_end_is_told_once() -> None:
    ends = Ends()
    stream = WatchedStream(numbers(3), ends)
    assert [item async for item in stream] == [0, 1, 2]
    await stream.aclose()
    del stream
    gc.collect()
    assert ends == [None]


async def test_an_error_is_told_and_raised() -> None:
    ends, failure = Ends(), ValueError("x")
    with pytest.raises(ValueError, match="x"):
        async for _ in WatchedStream(numbers(1, failure), ends):
            pass
    assert ends == [failure]


async def test_leaving_closes_the_inner_stream_and_is_told() -> None:
    ends, closed = Ends(), []

    async def inner() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.append(True)

    stream = WatchedStream(inner(), ends)
    assert await anext(stream) == 1
    await stream.aclose()
    await stream.aclose()
    assert closed == [True]
    assert [type(error) for error in ends] == [asyncio.CancelledError]


async def test_a_stream_never_begun_and_dropped_is_told() -> None:
    ends = Ends()
    stream = WatchedStream(numbers(3), ends)
    assert ends == []
    del stream
    gc.collect()
    assert [type(error) for error in ends] == [asyncio.CancelledError]


async def test_a_cancelled_reader_is_told() -> None:
    ends = Ends()

    async def inner() -> AsyncIterator[int]:
        await asyncio.sleep(60)
        yield 1

    task = asyncio.create_task(anext(WatchedStream(inner(), ends)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [type(error) for error in ends] == [asyncio.CancelledError]


async def test_an_iterator_without_aclose_can_be_left() -> None:
    class Plain(AsyncIterator[int]):
        async def __anext__(self) -> int:
            return 1

    ends = Ends()
    await WatchedStream(Plain(), ends).aclose()
    assert len(ends) == 1


async def test_steps_run_in_the_given_context_and_leave_none_behind() -> None:
    async def inner() -> AsyncIterator[object]:
        yield get_value(KEY)
        yield get_value(KEY)

    token = attach(set_value(KEY, "outer"))
    try:
        stream = WatchedStream(inner(), Ends(), set_value(KEY, "inner"))
        seen = [(item, get_value(KEY)) async for item in stream]
    finally:
        detach(token)
    assert seen == [("inner", "outer"), ("inner", "outer")]
