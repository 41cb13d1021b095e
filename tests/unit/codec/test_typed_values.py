"""Arguments and results of a contract: rebuilt by annotation, or refused with the name of the argument."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.codec import MethodCodec, codec_for, generic_codec
from steelyard.errors import ContractError, InternalError, InvalidArgument
from steelyard.model import MethodSpec, Parameter

UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Odd(enum.Enum):
    PAIR = (1, 2)
    TEXT = "x"


class Bits(enum.Flag):
    A = 1
    B = 2


class Huge(enum.Enum):
    ONE = 1 << 80


@dataclass
class Address:
    street: str
    zip: int | None = None


@dataclass
class User:
    id: uuid.UUID
    born: date
    homes: list[Address] = field(default_factory=list)
    colour: Colour = Colour.RED
    limits: dict[str, Decimal] = field(default_factory=dict)


@dataclass
class Checked:
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("x starts at 0")


@dataclass
class Node:
    name: str
    below: list[Node] = field(default_factory=list)


class Options(TypedDict):
    top: int
    names: NotRequired[list[str]]


class Point(NamedTuple):
    x: int
    y: int = 0


class Struct(msgspec.Struct, rename={"size_m": "size"}):
    size_m: float
    when: datetime | None = None


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    name: str


def codec(annotation: Any) -> MethodCodec:
    return codec_for(MethodSpec(name="m", service="s.S", parameters=(Parameter("x", annotation),), returns=annotation))


def arrive(annotation: Any, value: Any) -> Any:
    method = codec(annotation)
    (argument,) = method.decode_arguments(method.encode_arguments((value,)))
    result = method.decode_result(method.encode_result(value))
    assert type(result) is type(argument)
    assert result == argument
    return result


users = st.builds(
    User,
    id=st.uuids(),
    born=st.dates(),
    homes=st.lists(st.builds(Address, street=st.text(), zip=st.none() | st.integers(0, 99999)), max_size=2),
    colour=st.sampled_from(Colour),
    limits=st.dictionaries(st.text(), st.decimals(allow_nan=False), max_size=2),
)
typed = st.one_of(
    st.tuples(st.just(int), st.integers()),
    st.tuples(st.just(float), st.floats(allow_nan=False)),
    st.tuples(st.just(str), st.text()),
    st.tuples(st.just(bytes), st.binary()),
    st.tuples(st.just(bool), st.booleans()),
    st.tuples(st.just(None), st.none()),
    st.tuples(st.just(complex), st.complex_numbers(allow_nan=False)),
    st.tuples(st.just(date), st.dates()),
    st.tuples(st.just(time), st.times()),
    st.tuples(st.just(datetime), st.datetimes()),
    st.tuples(st.just(timedelta), st.timedeltas()),
    st.tuples(st.just(uuid.UUID), st.uuids()),
    st.tuples(st.just(Decimal), st.decimals(allow_nan=False)),
    st.tuples(st.just(Colour), st.sampled_from(Colour)),
    st.tuples(st.just(Level), st.sampled_from(Level)),
    st.tuples(st.just(Odd), st.sampled_from(Odd)),
    st.tuples(st.just(Bits), st.sampled_from([Bits(0), Bits.A, Bits.A | Bits.B])),
    st.tuples(st.just(User), users),
    st.tuples(st.just(list[User]), st.lists(users, max_size=2)),
    st.tuples(st.just(dict[str, User | None]), st.dictionaries(st.text(), st.none() | users, max_size=2)),
    st.tuples(st.just(dict[uuid.UUID, int]), st.dictionaries(st.uuids(), st.integers(), max_size=3)),
    st.tuples(st.just(dict[tuple[int, str], int]), st.dictionaries(st.tuples(st.integers(), st.text()), st.integers())),
    st.tuples(st.just(set[int]), st.sets(st.integers())),
    st.tuples(st.just(frozenset[date]), st.frozensets(st.dates())),
    st.tuples(st.just(tuple[int, ...]), st.lists(st.integers()).map(tuple)),
    st.tuples(st.just(tuple[int, str]), st.tuples(st.integers(), st.text())),
    st.tuples(st.just(Point), st.builds(Point, st.integers(), st.integers())),
    st.tuples(st.just(Struct), st.builds(Struct, st.floats(allow_nan=False), st.none() | st.datetimes())),
    st.tuples(st.just(Cat | Dog), st.builds(Cat, st.text()) | st.builds(Dog, st.text())),
    st.tuples(st.just(Options), st.fixed_dictionaries({"top": st.integers()})),
    st.tuples(st.just(Literal["a", 1]), st.sampled_from(["a", 1])),
    st.tuples(st.just(int | str | None), st.integers() | st.text() | st.none()),
    st.tuples(st.just(complex | str), st.complex_numbers(allow_nan=False) | st.text()),
    st.tuples(st.just(list[Odd]), st.lists(st.sampled_from(Odd))),
    st.tuples(st.just(dict[str, Odd]), st.dictionaries(st.text(), st.sampled_from(Odd))),
    st.tuples(st.just(Address | Options), st.builds(Address, st.text()) | st.just({"top": 1})),
    st.tuples(st.just(Node), st.builds(Node, st.text(), st.lists(st.builds(Node, st.text())))),
    st.tuples(st.just(UserId), st.integers()),
)


@given(typed)
def test_every_supported_annotation(pair: tuple[Any, Any]) -> None:
    annotation, value = pair
    back = arrive(annotation, value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value", "back"),
    [
        (float, 3, 3.0),
        (complex, 3, 3 + 0j),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (Sequence[int], (1, 2), [1, 2]),
        (Mapping[str, int], {"a": 1}, {"a": 1}),
        (Point, (1,), Point(1, 0)),
        (User, {"id": uuid.UUID(int=1), "born": date(2024, 1, 1)}, User(uuid.UUID(int=1), date(2024, 1, 1))),
        (Address, {"street": "a", "added later": 1}, Address("a")),
        (bytes, bytearray(b"x"), b"x"),
        (bytearray, b"x", bytearray(b"x")),
        (Any, {1}, [1]),
        (object, (1,), [1]),
        (list[object], [(1,)], [[1]]),
        (list, [1, "a"], [1, "a"]),
        (Optional[int], 7, 7),  # noqa: UP045
        (Annotated[int, msgspec.Meta(ge=0)], 7, 7),
        (Address | Options, {"top": 1, "names": ["a"]}, {"top": 1, "names": ["a"]}),
        (complex | Address | Options | int, 3, 3),
    ],
)
def test_what_arrives_as_the_annotation_says(annotation: Any, value: Any, back: Any) -> None:
    arrived = arrive(annotation, value)
    assert (type(arrived), arrived) == (type(back), back)


@pytest.mark.parametrize(
    ("annotation", "value", "reason"),
    [
        (int, "7", "expected int, got str"),
        (int, True, "expected int, got bool"),
        (int, 7.0, "expected int, got float"),
        (int, None, "expected int, got None"),
        (int, [1], "expected int, got list"),
        (int, uuid.UUID(int=1), "expected int, got uuid.UUID"),
        (float, "1", "expected float, got str"),
        (float, False, "expected float, got bool"),
        (float, 10**400, "expected float, got an int beyond its range"),
        (complex, 10**400, "expected complex, got an int beyond its range"),
        (complex, "1", "expected complex, got str"),
        (str, b"x", "expected str, got bytes"),
        (bytes, "x", "expected bytes, got str"),
        (bool, 1, "expected bool, got int"),
        (None, 1, "expected None, got int"),
        (date, "2024-01-01", "expected date, got str"),
        (date, datetime(2024, 1, 1), "expected date, got datetime"),
        (uuid.UUID, str(uuid.UUID(int=1)), "expected UUID, got str"),
        (Decimal, 1, "expected Decimal, got int"),
        (timedelta, 1.0, "expected timedelta, got float"),
        (list[int], "x", "expected list, got str"),
        (list[int], [1, "x"], "expected int, got str (at [1])"),
        (list[int], [True], "expected int, got bool (at [0])"),
        (dict[str, int], {"a": "b"}, "expected int, got str (at [...])"),
        (dict[str, int], {1: 1}, "expected str, got int (at a key)"),
        (tuple[int, str], [1], "expected list of length 2, got 1"),
        (Literal["a"], "b", "invalid enum value 'b'"),
        (Colour, "green", "invalid enum value 'green'"),
        (Colour, 3, "expected str, got int"),
        (Odd, "NONE", f"expected the name of a {__name__}.Odd, got 'NONE'"),
        (Odd, 3, f"expected the name of a {__name__}.Odd, got int"),
        (list[Odd], "x", "expected list, got str"),
        (list[Odd], ["NONE"], f"expected the name of a {__name__}.Odd, got 'NONE' (at [0])"),
        (dict[str, Odd], 3, "expected map, got int"),
        (dict[str, Odd], {"a": 3}, f"expected the name of a {__name__}.Odd, got int (at [...])"),
        (dict[str, Odd], {3: "PAIR"}, "expected str, got int (at [key])"),
        (User, 7, "expected map, got int"),
        (Address, {}, "missing required field street"),
        (Address, {"street": 1}, "expected str, got int (at street)"),
        (
            User,
            {"id": uuid.UUID(int=1), "born": date(2024, 1, 1), "homes": [{"street": "a", "zip": "b"}]},
            "expected int | None, got str (at homes[0].zip)",
        ),
        (Options, {}, "missing required field top"),
        (Checked, {"x": -1}, "x starts at 0"),
        (Annotated[int, msgspec.Meta(ge=0)], -1, "expected int >= 0"),
        (int | str, 1.5, "expected int | str, got float"),
        (complex | str, [], "expected complex or str, got list"),
        (Address | Options, {}, "expected Address or Options, got dict"),
        (Address | Options, 3, "expected Address or Options, got int"),
        (Cat | Dog, {"type": "Cow", "name": "x"}, "invalid value 'Cow' (at type)"),
    ],
)
def test_what_does_not_fit(annotation: Any, value: Any, reason: str) -> None:
    method = codec(annotation)
    with pytest.raises(InvalidArgument) as caught:
        method.decode_arguments(generic_codec().encode_arguments((value,)))
    assert caught.value.message == f"s.S.m: argument 'x': {reason}"
    with pytest.raises(InternalError) as broken:
        method.decode_result(generic_codec().encode_result(value))
    assert broken.value.message == f"s.S.m: the result is not what the contract says: {reason}"
    assert broken.value.may_have_run


class Rival(TypedDict):
    street: str
    zip: int | None


class Homeless:
    pass


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (Homeless, f"{__name__}.Homeless has no form on the wire"),
        (list[Homeless], f"{__name__}.Homeless has no form on the wire"),
        (type, "type has no form on the wire"),
        (
            Address | Rival,
            "two members of a union have the same fields; tell them apart with a tag (msgspec.Struct with tag=True)",
        ),
    ],
)
def test_contracts_that_cannot_be_carried(annotation: Any, reason: str) -> None:
    with pytest.raises(ContractError) as caught:
        codec(annotation)
    assert str(caught.value) == f"s.S.m: parameter 'x' cannot be carried: {reason}"
    with pytest.raises(ContractError) as caught:
        codec_for(MethodSpec(name="m", service="s.S", returns=annotation))
    assert str(caught.value) == f"s.S.m: the result cannot be carried: {reason}"


@pytest.mark.parametrize(
    "annotation",
    [Colour | str, list[int] | set[int], Address | dict[str, int], complex | dict[str, int] | Address, Huge],
)
def test_unions_that_look_alike_on_the_wire_are_refused(annotation: Any) -> None:
    with pytest.raises(ContractError, match=r"^s\.S\.m: parameter 'x' cannot be carried: "):
        codec(annotation)


def many(*parameters: Parameter) -> MethodCodec:
    return codec_for(MethodSpec(name="m", service="s.S", parameters=parameters))


REQUIRED, DEFAULTED = Parameter("a", int), Parameter("b", int, 7)
LISTED = Parameter("b", list[int], [7])


@pytest.mark.parametrize(
    ("parameters", "args", "message"),
    [
        ((), (1,), "takes 0 arguments, got 1"),
        ((REQUIRED,), (), "takes 1 argument (a), got 0: 'a' is missing"),
        ((REQUIRED,), (1, 2), "takes 1 argument (a), got 2"),
        ((REQUIRED, DEFAULTED), (), "takes from 1 to 2 arguments (a, b), got 0: 'a' is missing"),
        ((REQUIRED, DEFAULTED), (1, 2, 3), "takes from 1 to 2 arguments (a, b), got 3"),
        ((DEFAULTED,), (1, 2), "takes from 0 to 1 arguments (b), got 2"),
        ((REQUIRED, DEFAULTED), (1, "x"), "argument 'b': expected int, got str"),
        ((REQUIRED, LISTED), (1, 2), "argument 'b': expected list, got int"),
    ],
)
def test_argument_counts(parameters: tuple[Parameter, ...], args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        many(*parameters).decode_arguments(generic_codec().encode_arguments(args))
    assert caught.value.message == f"s.S.m: {message}"


@pytest.mark.parametrize("last", [DEFAULTED, LISTED])
def test_an_older_consumer_leaves_defaults_out(last: Parameter) -> None:
    codec = many(REQUIRED, last)
    assert codec.decode_arguments(generic_codec().encode_arguments((1,))) == (1, last.default)


def test_no_arguments() -> None:
    codec = many()
    assert codec.decode_arguments(codec.encode_arguments(())) == ()


def test_more_arguments_than_fit_a_small_header() -> None:
    parameters = [Parameter(f"p{n}", list[int]) for n in range(20)]
    codec = many(*parameters)
    args = tuple([n] for n in range(20))
    assert codec.decode_arguments(codec.encode_arguments(args)) == args


def test_arguments_that_are_no_list() -> None:
    with pytest.raises(InvalidArgument) as caught:
        many(REQUIRED).decode_arguments(generic_codec().encode_result("ab"))
    assert caught.value.message == "s.S.m: the arguments must be a list, not str"


def test_an_argument_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(InvalidArgument) as caught:
        many(REQUIRED, DEFAULTED).encode_arguments((1, object()))
    assert caught.value.message == (
        "s.S.m: argument 'b' cannot be sent: values of type object have no form on the wire"
    )
