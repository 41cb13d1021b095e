"""How the contract of one call is matched with the implementation of many."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import numpy as np
import pytest

from steelyard.errors import ConfigError, ContractError
from steelyard.model import Batch
from steelyard.service import bind, method, service, service_spec


@service("t.Ranks")
class Ranks(Protocol):
    @method(batch=Batch(max_size=8))
    async def rank(self, user: int, x: np.ndarray) -> float: ...


@service("t.Plain")
class Plain(Protocol):
    @method
    async def rank(self, user: int, x: np.ndarray) -> float: ...


class Lists:
    def rank(self, user: list[int], x: np.ndarray) -> list[float]:
        return [0.0] * len(user)


class Array:
    async def rank(self, user: Sequence[int], x: np.ndarray) -> np.ndarray:
        return np.zeros(len(user))


class Silent:
    def rank(self, user, x):
        return x


class Own:
    @method(batch=Batch(max_size=3))
    def rank(self, user: list[int], x: np.ndarray) -> list[float]:
        return [0.0] * len(user)


class WithErrors:
    def rank(self, user: list[int], x: np.ndarray) -> list[float | ValueError]:
        return [0.0] * len(user)


@pytest.mark.parametrize("kind", [Lists, Array, Silent, WithErrors])
def test_lists_and_stacked_arrays_fulfil_it(kind: type) -> None:
    bound = bind(service_spec(Ranks), kind())["rank"]
    assert bound.batch == Batch(max_size=8)


def test_the_implementation_may_batch_what_the_contract_does_not() -> None:
    assert bind(service_spec(Plain), Own())["rank"].batch == Batch(max_size=3)
    assert bind(service_spec(Ranks), Own())["rank"].batch == Batch(max_size=3)
    with pytest.raises(ContractError):
        bind(service_spec(Plain), Lists())


class OneUser:
    def rank(self, user: int, x: np.ndarray) -> list[float]:
        return []


class OneResult:
    def rank(self, user: list[int], x: np.ndarray) -> float:
        return 0.0


class OtherElements:
    def rank(self, user: list[str], x: np.ndarray) -> list[float]:
        return []


class ListOfArrays:
    def rank(self, user: list[int], x: list[np.ndarray]) -> list[float]:
        return []


class OtherName:
    def rank(self, users: list[int], x: np.ndarray) -> list[float]:
        return []


class Stream:
    async def rank(self, user: list[int], x: np.ndarray) -> AsyncIterator[float]:
        yield 0.0


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OneUser, "a batch gives 'user' as a list of int: .*OneUser.rank.* does not fulfil"),
        (OneResult, "a batch returns a list of float, with one entry for each call"),
        (OtherElements, "a batch gives 'user' as a list of int"),
        (ListOfArrays, "a batch gives 'x' as an array"),
        (OtherName, "it has 'users' where the contract has 'user'"),
        (Stream, "it is a stream, and a batch is answered at once"),
    ],
)
def test_what_is_typed_for_one_call_is_refused_with_both_signatures(kind: type, words: str) -> None:
    with pytest.raises(ContractError, match=words):
        bind(service_spec(Ranks), kind())


def test_a_class_that_is_its_own_contract_batches_arrays_and_nothing_else() -> None:
    @service("t.Arrays")
    class Arrays:
        @method(batch=Batch())
        def double(self, x: np.ndarray) -> np.ndarray:
            return 2 * x

        @method(batch=Batch())
        def loose(self, x, y: Any):
            return x

    assert set(bind(service_spec(Arrays), Arrays())) == {"double", "loose"}

    @service("t.Numbers")
    class Numbers:
        @method(batch=Batch())
        def double(self, x: float) -> np.ndarray:
            return np.zeros(1)

    with pytest.raises(ContractError, match="it gets 'x' as a list of float, which its own annotation denies"):
        bind(service_spec(Numbers), Numbers())


def test_a_stream_cannot_be_batched() -> None:
    @service("t.Streams")
    class Streams:
        @method(batch=Batch())
        async def many(self, n: int) -> AsyncIterator[int]:
            yield n

    with pytest.raises(ContractError, match="a stream cannot be batched"):
        service_spec(Streams)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (3, "batch must be a Batch, or None"),
        (Batch(max_size=0), "batch.max_size must be a whole number from 1 to 65536"),
        (Batch(max_size=True), "batch.max_size"),
        (Batch(max_wait_s=-1), "batch.max_wait_s must be 0 to 10 seconds"),
        (Batch(max_wait_s=float("nan")), "batch.max_wait_s"),
        (Batch(at_once=0), "batch.at_once"),
        (Batch(ragged="pad"), "batch.ragged must be 'reject' or 'split', not 'pad'"),
    ],
)
def test_settings_are_checked_where_they_are_given(batch: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        method(batch=batch)
