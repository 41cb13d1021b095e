"""Batches through a real pipeline: callers see one call each, the implementation sees many."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pytest

from steelyard import (
    DeadlineExceeded,
    InvalidArgument,
    Overloaded,
    RemoteError,
    current_call,
    method,
    service,
    with_options,
)
from steelyard.model import Batch
from steelyard.provider import BatchStatistics, Warm
from steelyard.testing import LocalCluster

KEY = "test.Model"


@service(KEY)
class Model(Protocol):
    @method(timeout_s=10, batch=Batch(max_size=16, max_wait_s=0.05))
    async def score(self, user: int, x: np.ndarray) -> float: ...

    @method(timeout_s=10, batch=Batch(max_size=4, max_wait_s=0.05, ragged="split"))
    async def rows(self, x: np.ndarray) -> np.ndarray: ...

    @method(timeout_s=10)
    async def wait(self, seconds: float) -> None: ...


class ModelOnThreads:
    """Blocking, as most models are."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.shapes: list[tuple[int, ...]] = []
        self.seen: list[object] = []
        self.gate: threading.Event | None = None
        self.error: type[BaseException] = ValueError

    def score(self, user: list[int], x: np.ndarray) -> list[float | BaseException]:
        self.sizes.append(len(user))
        self.shapes.append(x.shape)
        self.seen.append(current_call())
        if self.gate is not None:
            self.gate.wait(5)
        if any(each < -100 for each in user):
            raise RuntimeError("the whole batch")
        pairs = zip(user, x, strict=True)
        return [self.error(f"user {each}") if each < 0 else float(each + row.sum()) for each, row in pairs]

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def rows(self, x: np.ndarray) -> np.ndarray:
        self.shapes.append(x.shape)
        return x * 2


class ModelOnTheLoop(ModelOnThreads):
    async def score(self, user: list[int], x: np.ndarray) -> list[float | BaseException]:  # type: ignore[override]
        await asyncio.sleep(0.001)
        return super().score(user, x)

    async def rows(self, x: np.ndarray) -> np.ndarray:  # type: ignore[override]
        return super().rows(x)


def statistics(cluster: LocalCluster, name: str = "score") -> BatchStatistics:
    return cluster.providers[0].statistics().batches[f"{KEY}.{name}"]


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not fact():
            await asyncio.sleep(0.002)


async def started(cluster: LocalCluster, model: ModelOnThreads, **settings: Any) -> Any:
    provider = await cluster.provide(**settings)
    await provider.export(model, contract=Model)
    proxy = cluster.consumer.refer(Model, retries=0)
    await cluster.consumer.ready(proxy)
    return proxy


@pytest.mark.parametrize("kind", [ModelOnThreads, ModelOnTheLoop])
async def test_calls_come_back_to_their_callers(kind: type[ModelOnThreads]) -> None:
    async with LocalCluster() as cluster:
        model = kind()
        proxy = await started(cluster, model)
        answers = await asyncio.gather(*(proxy.score(user, np.full(3, user)) for user in range(50)))
        assert answers == [4.0 * user for user in range(50)]
        assert max(model.sizes) > 1
        assert max(model.sizes) <= 16
        assert all(shape[1:] == (3,) for shape in model.shapes)
        assert model.seen == [None] * len(model.seen), "a batch is nobody's call"
        found = statistics(cluster)
        assert (found.calls, found.batches, found.waiting, found.running) == (50, len(model.sizes), 0, 0)


async def test_an_exception_in_the_list_is_one_callers_and_a_raised_one_everybodys() -> None:
    async with LocalCluster() as cluster:
        proxy = await started(cluster, ModelOnThreads())
        found = await asyncio.gather(*(proxy.score(user, np.zeros(2)) for user in (1, -2, 3)), return_exceptions=True)
        assert found[0::2] == [1.0, 3.0]
        assert isinstance(found[1], RemoteError)
        assert "ValueError: user -2" in found[1].message
        found = await asyncio.gather(*(proxy.score(user, np.zeros(2)) for user in (1, -200)), return_exceptions=True)
        assert all(isinstance(each, RemoteError) and "the whole batch" in each.message for each in found)


async def test_a_single_caller_does_not_wait_for_others() -> None:
    """max_wait_s is 50 ms here; ten calls in a row would take half a second if each waited."""
    async with LocalCluster() as cluster:
        proxy = await started(cluster, ModelOnThreads())
        await proxy.score(0, np.zeros(2))
        began = time.perf_counter()
        for _ in range(10):
            await proxy.score(0, np.zeros(2))
        assert time.perf_counter() - began < 10 * 0.05


async def test_while_a_batch_runs_the_next_one_gathers() -> None:
    async with LocalCluster() as cluster:
        model = ModelOnThreads()
        proxy = await started(cluster, model)
        model.gate = threading.Event()
        calls = [asyncio.ensure_future(proxy.score(1, np.zeros(2)))]
        await until(lambda: model.sizes == [1])
        calls += [asyncio.ensure_future(proxy.score(user, np.zeros(2))) for user in range(20)]
        await until(lambda: statistics(cluster).waiting == 20)
        model.gate.set()
        await asyncio.gather(*calls)
        assert model.sizes[:2] == [1, 16]


async def test_deadlines_are_each_callers_own() -> None:
    async with LocalCluster() as cluster:
        model = ModelOnThreads()
        proxy = await started(cluster, model)
        model.gate = threading.Event()
        first = asyncio.ensure_future(proxy.score(1, np.zeros(2)))
        await until(lambda: model.sizes == [1])
        late = asyncio.ensure_future(with_options(proxy, timeout_s=0.05).score(2, np.zeros(2)))
        leaving = asyncio.ensure_future(proxy.score(3, np.zeros(2)))
        stays = asyncio.ensure_future(proxy.score(4, np.zeros(2)))
        await until(lambda: statistics(cluster).waiting == 3)
        leaving.cancel()
        with pytest.raises(DeadlineExceeded):
            await late
        await until(lambda: statistics(cluster).waiting == 1)
        model.gate.set()
        assert await asyncio.gather(first, stays) == [1.0, 4.0]
        assert model.sizes == [1, 1], "nobody works for callers who have left"


async def test_a_call_of_another_shape_is_refused_whoever_it_comes_with() -> None:
    async with LocalCluster() as cluster:
        proxy = await started(cluster, ModelOnThreads())
        await proxy.score(1, np.zeros(3))
        for wrong in (np.zeros(4), np.zeros(3, np.float32), np.zeros((1, 3))):
            with pytest.raises(InvalidArgument, match=r"'x' is .* stacked as float64\[3\]"):
                await proxy.score(1, wrong)
        assert await proxy.score(1, np.ones(3)) == 4.0
        assert statistics(cluster).refused == 3


async def test_the_shape_is_settled_by_what_works() -> None:
    """Before any call has succeeded, calls of two shapes make two batches, and neither fails for the other's sake."""
    async with LocalCluster() as cluster:
        model = ModelOnThreads()
        proxy = await started(cluster, model)
        found = await asyncio.gather(
            proxy.score(-200, np.zeros(5)), *(proxy.score(1, np.zeros(3)) for _ in range(3)), return_exceptions=True
        )
        assert isinstance(found[0], RemoteError)
        assert found[1:] == [1.0] * 3


async def test_split_gives_each_shape_its_own_batches() -> None:
    async with LocalCluster() as cluster:
        model = ModelOnThreads()
        proxy = await started(cluster, model)
        arrays = [np.arange(float(1 + number % 3)) for number in range(12)]
        answers = await asyncio.gather(*(proxy.rows(array) for array in arrays))
        assert all((answer == 2 * array).all() for answer, array in zip(answers, arrays, strict=True))
        assert {shape[1] for shape in model.shapes} == {1, 2, 3}


async def test_the_line_before_a_batch_is_bounded() -> None:
    async with LocalCluster() as cluster:
        model = ModelOnThreads()
        proxy = await started(cluster, model, queue=8, limit=False)
        model.gate = threading.Event()
        calls = [asyncio.ensure_future(proxy.score(1, np.zeros(2)))]
        await until(lambda: model.sizes == [1])
        calls += [asyncio.ensure_future(proxy.score(1, np.zeros(2))) for _ in range(30)]
        await until(lambda: statistics(cluster).refused == 22)
        model.gate.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(each, Overloaded) for each in found) == 22
        assert found.count(1.0) == 9


async def test_a_line_without_places_still_lets_a_full_batch_in_where_none_runs() -> None:
    async with LocalCluster() as cluster:
        model = ModelOnThreads()
        provider = await cluster.provide(queue=0, limit=False)
        await provider.export(model, contract=Model, warm_up=Warm(n=1, args=(1, np.zeros(2)), method="score"))
        assert model.sizes == [1, 16]
        proxy = cluster.consumer.refer(Model, retries=0)
        await cluster.consumer.ready(proxy)
        model.gate = threading.Event()
        calls = [asyncio.ensure_future(proxy.score(1, np.zeros(2))) for _ in range(16)]
        await until(lambda: len(model.sizes) == 3)
        with pytest.raises(Overloaded):
            await proxy.score(1, np.zeros(2))
        model.gate.set()
        assert await asyncio.gather(*calls) == [1.0] * 16


async def test_who_is_refused_by_a_full_line_hears_when_to_come_back() -> None:
    """Also where no limit stands before the line, and for the one who has to make room."""
    async with LocalCluster() as cluster:
        model = ModelOnThreads()
        proxy = await started(cluster, model, queue=16, limit=False)
        model.gate = threading.Event()
        calls = [asyncio.ensure_future(proxy.score(1, np.zeros(2)))]
        await until(lambda: model.sizes == [1])
        await asyncio.sleep(0.1)
        calls += [asyncio.ensure_future(proxy.score(1, np.zeros(2))) for _ in range(17)]
        await until(lambda: statistics(cluster).refused == 1)
        important = asyncio.ensure_future(with_options(proxy, priority=0).score(1, np.zeros(2)))
        await until(lambda: statistics(cluster).refused == 2)
        model.gate.set()
        found = await asyncio.gather(*calls, important, return_exceptions=True)
        hints = [each.retry_after_s for each in found if isinstance(each, Overloaded)]
        assert len(hints) == 2
        assert all(hint is not None and 0.1 <= hint <= 1.0 for hint in hints), "one batch has run for 0.1 s so far"


async def test_nobody_runs_a_batch_whose_callers_left_while_it_waited_for_a_thread() -> None:
    async with LocalCluster() as cluster:
        model = ModelOnThreads()
        proxy = await started(cluster, model, threads=1)
        other = asyncio.ensure_future(proxy.wait(0.3))
        provider = cluster.providers[0]
        await until(lambda: provider.in_flight == 1)
        leaving = asyncio.ensure_future(proxy.score(1, np.zeros(2)))
        await until(lambda: provider.statistics().batches[f"{KEY}.score"].running == 1)
        leaving.cancel()
        await until(lambda: provider.in_flight == 1)
        await other
        assert await proxy.score(2, np.zeros(2)) == 2.0
        assert model.sizes == [1]


@pytest.mark.parametrize("kind", [ModelOnThreads, ModelOnTheLoop])
@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, asyncio.CancelledError, SystemExit])
async def test_an_exception_of_any_kind_is_one_callers(kind: type[ModelOnThreads], error: type[BaseException]) -> None:
    async with LocalCluster() as cluster:
        model = kind()
        model.error = error
        proxy = await started(cluster, model)
        found = await asyncio.gather(*(proxy.score(user, np.zeros(2)) for user in (1, -2, 3)), return_exceptions=True)
        assert found[0::2] == [1.0, 3.0]
        assert isinstance(found[1], RemoteError)
        assert error.__name__ in found[1].message


async def test_a_full_batch_that_fails_in_the_warm_up_raises_its_own_error() -> None:
    class Small(ModelOnThreads):
        def score(self, user: list[int], x: np.ndarray) -> list[float | BaseException]:
            if len(user) > 1:
                raise KeyError("no room for so many")
            return [0.0]

    async with LocalCluster() as cluster:
        provider = await cluster.provide()
        with pytest.raises(KeyError, match="no room for so many"):
            await provider.export(Small(), contract=Model, warm_up=Warm(n=1, args=(1, np.zeros(2)), method="score"))
        assert provider.nodes == ()


async def test_a_warm_up_of_a_batched_method_ends_with_a_full_batch() -> None:
    async with LocalCluster() as cluster:
        provider = await cluster.provide()
        model = ModelOnThreads()
        await provider.export(model, contract=Model, warm_up=Warm(n=2, args=(1, np.zeros(2)), method="score"))
        assert model.sizes == [1, 1, 16]
        assert provider.statistics().batches[f"{KEY}.score"].full == 1


async def test_a_provider_that_closes_answers_whoever_waits() -> None:
    async with LocalCluster() as cluster:
        model = ModelOnThreads()
        proxy = await started(cluster, model, drain_s=0.05)
        model.gate = threading.Event()
        calls = [asyncio.ensure_future(proxy.score(user, np.zeros(2))) for user in range(3)]
        await until(lambda: bool(model.sizes))
        async with asyncio.timeout(5):
            await cluster.providers[0].close()
            found = await asyncio.gather(*calls, return_exceptions=True)
        model.gate.set()
        assert all(isinstance(each, Exception) for each in found)
