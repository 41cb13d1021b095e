"""bind: implementations that fulfil their contract, and each way of not doing so with its exact words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from steelyard.errors import ContractError
from steelyard.service import bind, method, service, service_spec

if TYPE_CHECKING:
    from decimal import Decimal


@service("s.S")
class Contract(Protocol):
    @method
    async def one(self, a: int, b: str = "x") -> float: ...


@service("s.Stream")
class Streams(Protocol):
    @method
    async def items(self, n: int) -> AsyncIterator[int]: ...


def implementation(function: Any, name: str = "one") -> object:
    return type("Impl", (), {name: function})()


async def _same(self: Any, a: int, b: str = "x") -> float: ...
def _sync(self: Any, a: int, b: str = "x") -> float: ...
async def _more(self: Any, a: int, b: str = "x", c: int = 0, *, d: int = 0) -> float: ...
async def _wider(self: Any, a: float, b: str | None = None) -> int: ...
async def _untyped(self, a, b="y"): ...  # type: ignore[no-untyped-def]
async def _anything(self: Any, *args: Any, **kwargs: Any) -> Any: ...
async def _type_checkers_only(self: Any, a: int, b: str = "x") -> Decimal: ...


@pytest.mark.parametrize(
    ("function", "is_async"),
    [
        (_same, True),
        (_sync, False),
        (_more, True),
        (_wider, True),
        (_untyped, True),
        (_anything, True),
        (_type_checkers_only, True),
    ],
)
def test_fulfilled(function: Any, is_async: bool) -> None:
    spec = service_spec(Contract)
    bound = bind(spec, implementation(function))
    assert list(bound) == ["one"]
    assert bound["one"].spec is spec.methods["one"]
    assert (bound["one"].is_async, bound["one"].is_stream) == (is_async, False)


async def _no_b(self: Any, a: int) -> float: ...
async def _renamed(self: Any, a: int, c: str = "x") -> float: ...
async def _swapped(self: Any, b: str, a: int) -> float: ...
async def _required(self: Any, a: int, b: str) -> float: ...
async def _extra(self: Any, a: int, b: str = "x", *, c: int) -> float: ...
async def _keyword(self: Any, a: int, *, b: str = "x") -> float: ...
async def _type(self: Any, a: str, b: str = "x") -> float: ...
async def _narrower(self: Any, a: bool, b: str = "x") -> float: ...
async def _result(self: Any, a: int, b: str = "x") -> str: ...
async def _stream(self: Any, a: int, b: str = "x") -> AsyncIterator[float]:
    yield 1.0


@pytest.mark.parametrize(
    ("function", "reason", "own"),
    [
        (_no_b, "it does not take 'b'", "(a: 'int') -> 'float'"),
        (_renamed, "it has 'c' where the contract has 'b'", "(a: 'int', c: 'str' = 'x') -> 'float'"),
        (_swapped, "it has 'b' where the contract has 'a'", "(b: 'str', a: 'int') -> 'float'"),
        (_required, "it requires 'b', which has a default in the contract", "(a: 'int', b: 'str') -> 'float'"),
        (
            _extra,
            "it requires 'c', which the contract does not give",
            "(a: 'int', b: 'str' = 'x', *, c: 'int') -> 'float'",
        ),
        (_keyword, "it does not take 'b'", "(a: 'int', *, b: 'str' = 'x') -> 'float'"),
        (_type, "the types of 'a' differ", "(a: 'str', b: 'str' = 'x') -> 'float'"),
        (_narrower, "the types of 'a' differ", "(a: 'bool', b: 'str' = 'x') -> 'float'"),
        (_result, "the types of the result differ", "(a: 'int', b: 'str' = 'x') -> 'str'"),
        (
            _stream,
            "it is a stream and the contract's is unary",
            "(a: 'int', b: 'str' = 'x') -> 'AsyncIterator[float]'",
        ),
    ],
)
def test_mismatch_names_both_signatures(function: Any, reason: str, own: str) -> None:
    with pytest.raises(ContractError) as caught:
        bind(service_spec(Contract), implementation(function))
    declared = "s.S.one(a: 'int', b: 'str' = 'x') -> 'float'"
    assert str(caught.value) == f"{reason}: Impl.one{own} does not fulfil {declared}"


class _Explicit(Contract):
    pass


@pytest.mark.parametrize("value", [object(), implementation(7), implementation(None), _Explicit()])
def test_missing(value: object) -> None:
    """Also the ``...`` inherited from a protocol, which would answer every call with None."""
    with pytest.raises(ContractError) as caught:
        bind(service_spec(Contract), value)
    name = type(value).__qualname__
    assert str(caught.value) == (
        f"{name} has no method 'one'; the contract asks for s.S.one(a: 'int', b: 'str' = 'x') -> 'float'"
    )


async def _generator(self: Any, n: int) -> AsyncIterator[int]:
    yield n


async def _coroutine(self: Any, n: int) -> AsyncIterator[int]: ...
def _plain(self: Any, n: int) -> AsyncIterator[int]: ...
def _sync_items(self: Any, n: int) -> Iterator[int]: ...
def _sync_generator(self: Any, n: int) -> Iterator[int]:
    yield n


def _unsaid(self, n): ...  # type: ignore[no-untyped-def]
def _unsaid_generator(self, n):  # type: ignore[no-untyped-def]
    yield n


@pytest.mark.parametrize(
    ("function", "is_async"),
    [
        (_generator, True),
        (_coroutine, True),
        (_plain, True),
        (_unsaid, True),
        (_sync_items, False),
        (_sync_generator, False),
        (_unsaid_generator, False),
    ],
)
def test_streams(function: Any, is_async: bool) -> None:
    bound = bind(service_spec(Streams), implementation(function, "items"))["items"]
    assert (bound.is_stream, bound.is_async) == (True, is_async)


async def _unary(self: Any, n: int) -> list[int]: ...
async def _other_items(self: Any, n: int) -> AsyncIterator[str]:
    yield ""


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_unary, "it is unary and the contract's is a stream"),
        (_other_items, "the types of the result differ"),
    ],
)
def test_stream_mismatch(function: Any, reason: str) -> None:
    with pytest.raises(ContractError, match=f"^{reason}: Impl.items"):
        bind(service_spec(Streams), implementation(function, "items"))


async def test_functions_take_everything_by_position() -> None:
    @service("k")
    class Keywords:
        @method
        async def one(self, a: int, *, c: int, b: int = 2) -> tuple[int, int, int]:
            return a, b, c

        @staticmethod
        def other() -> None: ...

    bound = bind(service_spec(Keywords), Keywords())["one"]
    assert bound.is_async
    assert await bound.function(1, 3, 2) == (1, 2, 3)


def test_an_abstract_contract_and_static_functions() -> None:
    @service("abs")
    class Abstract(ABC):
        @method
        @abstractmethod
        def one(self, a: int) -> int: ...

    class Static:
        @staticmethod
        def one(a: int) -> int:
            return a + 1

    class Attribute:
        def __init__(self) -> None:
            self.one = lambda a: a + 2

    class Inherits(Abstract):
        def one(self, a: int) -> int:
            return a + 3

    for value, answer in ((Static(), 2), (Attribute(), 3), (Inherits(), 4)):
        assert bind(service_spec(Abstract), value)["one"].function(1) == answer


def test_an_implementation_class_is_its_own_contract() -> None:
    @service("own")
    class Own:
        @method
        def one(self, a: int) -> int:
            return a

    assert bind(service_spec(Own), Own())["one"].function(1) == 1
