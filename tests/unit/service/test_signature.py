"""What a contract's method takes and gives: forward references, streams, protobuf, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from steelyard.errors import ContractError
from steelyard.model import CallShape, Codec, MethodSpec
from steelyard.service import method, service, service_spec
from steelyard.service.signature import read_signature

if TYPE_CHECKING:
    from decimal import Decimal

HERE = __name__
NO_ITEMS: Any = ()


@service("s")
class Contract:
    @method
    async def forward(self, later: Later, *, flag: bool = False, must: int) -> Later | None: ...
    @method
    def bare(self, x, y=1): ...  # type: ignore[no-untyped-def]
    @method
    def nothing(self) -> None: ...
    @method
    def constrained(self, x: Annotated[int, msgspec.Meta(ge=0)]) -> int: ...
    @method
    def awaitable(self) -> Awaitable[int]: ...

    @method
    def list(self) -> list[int]: ...
    @method
    def nested(self, x: Inner) -> Contract: ...

    @dataclass
    class Inner:
        x: int

    @method
    async def generator(self) -> AsyncIterator[str]:
        yield ""

    @method
    async def declared(self) -> AsyncIterator[str]: ...
    @method
    def plain(self) -> AsyncIterable[str]: ...
    @method
    async def full(self) -> AsyncGenerator[str, None]:
        yield ""

    @method
    def sync(self) -> Iterator[str]: ...
    @method
    def sync_generator(self) -> Generator[str, None, None]:
        yield ""

    @method
    async def unannotated(self):  # type: ignore[no-untyped-def]
        yield 1

    @method
    def unannotated_sync(self):  # type: ignore[no-untyped-def]
        yield 1

    @method
    async def open(self) -> AsyncIterator: ...  # type: ignore[type-arg]


@dataclass
class Later:
    x: int


def spec(name: str) -> MethodSpec:
    return service_spec(Contract).methods[name]


def test_forward_references_defaults_and_keyword_only() -> None:
    later, flag, must = spec("forward").parameters
    assert (later.annotation, later.is_required, later.is_keyword_only) == (Later, True, False)
    assert (flag.annotation, flag.default, flag.is_keyword_only) == (bool, False, True)
    assert (must.is_required, must.is_keyword_only) == (True, True)
    assert spec("forward").returns == Later | None


def test_without_annotations_everything_is_any() -> None:
    assert [each.annotation for each in spec("bare").parameters] == [Any, Any]
    assert spec("bare").returns is Any
    assert spec("nothing").returns is type(None)


def test_annotated_keeps_its_constraints() -> None:
    assert spec("constrained").parameters[0].annotation == Annotated[int, msgspec.Meta(ge=0)]


def test_an_awaitable_is_what_it_gives() -> None:
    assert (spec("awaitable").returns, spec("awaitable").is_async) == (int, True)


def test_names_of_the_class_are_known_but_hide_no_builtin() -> None:
    assert spec("nested").parameters[0].annotation is Contract.Inner
    assert spec("list").returns == list[int]


@pytest.mark.parametrize(
    ("name", "is_async", "item"),
    [
        ("generator", True, str),
        ("declared", True, str),
        ("plain", True, str),
        ("full", True, str),
        ("sync", False, str),
        ("sync_generator", False, str),
        ("unannotated", True, Any),
        ("unannotated_sync", False, Any),
        ("open", True, Any),
    ],
)
def test_streams(name: str, is_async: bool, item: Any) -> None:
    assert (spec(name).shape, spec(name).is_async, spec(name).returns) == (CallShape.SERVER_STREAM, is_async, item)


def test_unary_methods() -> None:
    assert spec("forward").shape is CallShape.UNARY
    assert spec("forward").is_async
    assert not spec("bare").is_async


def test_a_wrapped_function_is_read_through_its_wrapper() -> None:
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @service("w")
    class Wrapped:
        @method
        @logged
        async def one(self, x: int) -> str: ...

        @logged
        @method
        async def two(self, x: int) -> str: ...

    for one in service_spec(Wrapped).methods.values():
        assert (one.parameters[0].annotation, one.returns, one.is_async) == (int, str, True)


def test_protobuf_is_chosen_for_one_message_in_and_one_out() -> None:
    @service("p")
    class Messages:
        @method
        async def unary(self, x: Int32Value) -> StringValue: ...
        @method
        async def stream(self, x: Int32Value) -> AsyncIterator[StringValue]: ...
        @method
        async def other(self, x: int) -> str: ...

    assert {name: one.codec for name, one in service_spec(Messages).methods.items()} == {
        "unary": Codec.PROTOBUF,
        "stream": Codec.PROTOBUF,
        "other": Codec.MSGPACK,
    }


def _stars(self: Any, *items: int) -> None: ...
def _double_stars(self: Any, **items: int) -> None: ...
def _positional_only(self: Any, x: int, /) -> None: ...
def _no_self() -> None: ...
def _stream_in(self: Any, items: AsyncIterator[int]) -> None: ...


async def _two_streams_in(self: Any, one: AsyncIterator[int], two: AsyncIterator[int]) -> None: ...


async def _blocking_stream_in(self: Any, items: Iterator[int]) -> None: ...


async def _optional_stream_in(self: Any, items: AsyncIterator[int] = NO_ITEMS) -> None: ...
def _unknown(self: Any, x: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def _unknown_result(self: Any, x: int) -> list[Decimal]: ...
async def _yields_int(self: Any) -> int:  # type: ignore[misc]
    yield 1


def _mixed_in(self: Any, x: Int32Value, y: int) -> Int32Value: ...
def _mixed_out(self: Any, x: Int32Value) -> int: ...
def _mixed_back(self: Any, x: int) -> Int32Value: ...


_MIXTURE = (
    "a method with protobuf messages takes exactly one message and returns one message type (or a stream of one); "
    "it cannot mix them with other values"
)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_stars, "*items cannot be part of a contract; name every parameter"),
        (_double_stars, "**items cannot be part of a contract; name every parameter"),
        (_positional_only, "'x' is positional-only; a contract's parameters have names"),
        (_stream_in, "a method that takes a stream is asynchronous: async def, or AsyncIterator"),
        (_two_streams_in, "'one' and 'two' are streams; a call can take one"),
        (_blocking_stream_in, "'items' is a blocking stream; a parameter can be an AsyncIterator"),
        (_optional_stream_in, "'items' is a stream and cannot have a default"),
        (
            _unknown,
            "the annotation of 'x', 'Nowhere', cannot be resolved (name 'Nowhere' is not defined); "
            "it has to be importable at run time in the module that declares the method",
        ),
        (
            _unknown_result,
            "the return annotation, 'list[Decimal]', cannot be resolved (name 'Decimal' is not defined); "
            "it has to be importable at run time in the module that declares the method",
        ),
        (_yields_int, "it yields, so it returns AsyncIterator or Iterator, not <class 'int'>"),
        (_mixed_in, _MIXTURE),
        (_mixed_out, _MIXTURE),
        (_mixed_back, _MIXTURE),
    ],
)
def test_refused(function: Any, message: str) -> None:
    contract = service("r")(type("Refused", (), {"one": method(function), "__module__": HERE}))
    with pytest.raises(ContractError) as caught:
        service_spec(contract)
    assert str(caught.value) == f"{HERE}.Refused.one: {message}"


def test_a_method_without_self() -> None:
    with pytest.raises(ContractError) as caught:
        read_signature(_no_self, f"{HERE}.Refused.one")
    assert str(caught.value) == f"{HERE}.Refused.one() -> 'None': a method takes self as its first parameter"
