"""Readiness through a real pipeline: only ready nodes are picked, and a failing device costs no caller a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import numpy as np
import pytest

from steelyard import ConfigError, Consumer, Provider, RemoteError, Unavailable, method, service
from steelyard.provider import Health, Warm
from steelyard.testing import LocalCluster
from steelyard_registry import NodeState


class OutOfMemoryError(RuntimeError):
    pass


@service("test.Scores")
class Scores(Protocol):
    @method(timeout_s=10, idempotent=True)
    async def score(self, x: np.ndarray) -> str: ...

    @method(timeout_s=10)
    async def once(self) -> str: ...


class ScoreModel:
    def __init__(self, name: str = "model") -> None:
        self.name = name
        self.calls: list[tuple[int, ...]] = []
        self.failure: Exception | None = None

    async def score(self, x: np.ndarray) -> str:
        self.calls.append(x.shape)
        if self.failure is not None:
            raise self.failure
        return self.name

    async def once(self) -> str:
        return await self.score(np.zeros(1))


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not fact():
            await asyncio.sleep(0.005)


def state_in(provider: Provider) -> NodeState:
    return provider.states["test.Scores"]


async def test_a_node_that_loads_and_warms_is_listed_and_not_called() -> None:
    gate = asyncio.Event()
    async with LocalCluster() as cluster:
        ready = ScoreModel("ready")
        await (await cluster.provide()).export(ready, contract=Scores)
        slow = ScoreModel("slow")
        provider = await cluster.provide()

        async def load() -> None:
            await gate.wait()

        warm = Warm(n=4, args=lambda number: (np.zeros((number + 1, 2)),), method="score")
        exporting = asyncio.ensure_future(provider.export(slow, contract=Scores, load=load, warm_up=warm))
        scores = cluster.consumer.refer(Scores)
        await cluster.consumer.ready(scores)
        await until(lambda: [node.state for node in provider.nodes] == [NodeState.LOADING])
        assert {await scores.score(np.zeros(3)) for _ in range(30)} == {"ready"}
        assert slow.calls == []
        gate.set()
        node = await exporting
        assert (node.state, state_in(provider)) == (NodeState.READY, NodeState.READY)
        assert slow.calls == [(1, 2), (2, 2), (3, 2), (4, 2)]
        async with asyncio.timeout(20):
            while await scores.score(np.zeros(3)) != "slow":
                pass


async def test_a_call_that_comes_too_early_is_refused_and_has_not_run() -> None:
    gate = asyncio.Event()
    async with LocalCluster() as cluster:
        provider = await cluster.provide()
        model = ScoreModel()
        exporting = asyncio.ensure_future(provider.export(model, contract=Scores, warm_up=gate.wait))
        scores = cluster.consumer.refer(Scores)
        with pytest.raises(Unavailable, match=r"test\.Scores takes calls now: .* is warming"):
            await scores.once()
        gate.set()
        await exporting
        assert await scores.once() == "model"


async def test_a_failing_device_is_left_alone_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    async with LocalCluster() as cluster:
        models = [ScoreModel("one"), ScoreModel("two")]
        providers = [await cluster.provide() for _ in models]
        for provider, model in zip(providers, models, strict=True):
            await provider.export(model, contract=Scores)
        scores = cluster.consumer.refer(Scores)
        await cluster.consumer.ready(scores)
        models[0].failure = OutOfMemoryError("CUDA out of memory")
        answers = [await scores.score(np.zeros(3)) for _ in range(40)]
        assert set(answers) == {"two"}, "idempotent calls go elsewhere"
        assert len(models[0].calls) < 4, "the first failure takes the node out"
        assert state_in(providers[0]) is NodeState.FAILED
        assert state_in(providers[1]) is NodeState.READY
        models[0].failure = None
        await until(lambda: state_in(providers[0]) is NodeState.READY)
        before = len(models[0].calls)
        async with asyncio.timeout(20):
            while len(models[0].calls) == before:
                await scores.score(np.zeros(3))
    assert "test.Scores takes no calls: the device is out of memory (OutOfMemoryError)" in caplog.text


async def test_an_exception_that_the_contract_declares_is_an_answer() -> None:
    @service("test.Declared")
    class Declared:
        @method(raises=OutOfMemoryError)
        async def fill(self) -> None:
            raise OutOfMemoryError("the user's quota, by the same name")

    async with LocalCluster() as cluster:
        provider = await cluster.provide(Declared())
        declared: Any = cluster.consumer.refer(Declared)
        with pytest.raises(OutOfMemoryError):
            await declared.fill()
        assert provider.states == {"test.Declared": NodeState.READY}


async def test_the_implementations_own_hooks_and_those_of_the_contract() -> None:
    seen = []

    class Own(ScoreModel):
        async def warm_up(self) -> None:
            seen.append("warm")

        def health(self) -> bool:
            seen.append("health")
            return True

    @service("test.Hooked")
    class Hooked:
        @method
        async def health(self) -> str:
            seen.append("called")
            return "an exported method is no hook"

        def warm_up(self, batch: int) -> None:
            seen.append("with an argument it is something else")

    async with LocalCluster() as cluster:
        provider = await cluster.provide(Hooked())
        await provider.export(Own(), contract=Scores)
        assert seen == ["warm", "health"]


async def test_a_warm_up_that_fails_is_the_exporters_and_leaves_nothing() -> None:
    async with LocalCluster() as cluster:
        provider = await cluster.provide()
        model = ScoreModel()
        model.failure = RuntimeError("no device")
        with pytest.raises(RuntimeError, match="no device"):
            await provider.export(model, contract=Scores, warm_up=Warm(args=(np.zeros(1),), method="score"))
        assert (provider.nodes, dict(provider.states)) == ((), {})
        with pytest.raises(ConfigError, match=r"Warm\.method: one of once, score, not None"):
            await provider.export(model, contract=Scores, warm_up=Warm())
        model.failure = None
        await provider.export(model, contract=Scores)


async def test_a_streams_error_counts_as_well() -> None:
    @service("test.Tokens")
    class Tokens:
        @method
        async def tokens(self, n: int) -> AsyncIterator[int]:
            for number in range(n):
                yield number
            raise OutOfMemoryError("in the middle")

    async with LocalCluster() as cluster:
        provider = await cluster.provide(Tokens())
        tokens: Any = cluster.consumer.refer(Tokens)
        with pytest.raises(RemoteError, match="in the middle"):
            _ = [token async for token in tokens.tokens(3)]
        assert provider.states["test.Tokens"] is NodeState.FAILED


async def test_a_health_check_on_a_real_registry_takes_the_node_out_for_other_consumers() -> None:
    is_well = [True]
    async with LocalCluster() as cluster, Consumer(cluster.registry_url) as other:
        provider = await cluster.provide()
        health = Health(lambda: is_well[0], every_s=0.02)
        await provider.export(ScoreModel(), contract=Scores, health=health)
        scores = other.refer(Scores)
        assert await scores.once() == "model"
        is_well[0] = False
        await until(lambda: [node.state for node in provider.nodes] == [NodeState.FAILED])
        with pytest.raises(Unavailable, match="is failed"):
            await scores.once()
        is_well[0] = True
        await until(lambda: [node.state for node in provider.nodes] == [NodeState.READY])
        assert await scores.once() == "model"
