"""Plain values, as calls without a contract carry them: hypothesis round trips over every type that has a wire form."""

from __future__ import annotations

import enum
import subprocess
import sys
import uuid
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.codec import generic_codec
from steelyard.errors import InternalError, InvalidArgument

codec = generic_codec()

# To the second: Python's own fromisoformat takes an offset below one second for UTC.
zones = st.integers(-86399, 86399).map(lambda seconds: timezone(timedelta(seconds=seconds)))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=zones),
    st.times(),
    st.times(timezones=zones),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.complex_numbers(allow_nan=False),
)
keys = st.one_of(st.text(), st.integers(), st.binary(), st.booleans(), st.dates(), st.uuids(), st.tuples(st.integers()))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


def there_and_back(value: Any) -> Any:
    result = codec.decode_result(codec.encode_result(value))
    (argument,) = codec.decode_arguments(codec.encode_arguments((value,)))
    assert result == argument
    return result


def same_types(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if type(left) is list:
        return all(map(same_types, left, right))
    if type(left) is dict:
        return all(map(same_types, left.values(), right.values())) and all(map(same_types, left, right))
    return True


@given(values)
def test_round_trip(value: Any) -> None:
    back = there_and_back(value)
    assert back == value
    assert same_types(back, value)


@given(st.lists(values, max_size=20))
def test_any_number_of_arguments(args: list[Any]) -> None:
    assert codec.decode_arguments(codec.encode_arguments(tuple(args))) == tuple(args)


@given(st.integers())
def test_integers_of_any_size(value: int) -> None:
    assert there_and_back(value) == value


@pytest.mark.parametrize("bits", [31, 32, 63, 64, 65, 127, 1000])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_integers_at_their_edges(bits: int, sign: int, step: int) -> None:
    value = sign * 2**bits + step
    assert there_and_back([value]) == [value]
    assert there_and_back(value) == value


def test_aware_datetimes_keep_their_offset() -> None:
    value = datetime(2024, 5, 6, 7, 8, 9, 10, timezone(timedelta(hours=5, minutes=30)))
    assert there_and_back(value).utcoffset() == timedelta(hours=5, minutes=30)


def test_special_floats_and_decimals() -> None:
    back = there_and_back([float("inf"), -0.0])
    assert str(back) == "[inf, -0.0]"
    assert str(codec.decode_result(codec.encode_result(float("nan")))) == "nan"
    assert str(codec.decode_result(codec.encode_result(Decimal("-NaN")))) == "-NaN"
    assert str(there_and_back(Decimal("1.10"))) == "1.10"


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Huge(enum.Enum):
    ONE = 1 << 80


class Odd(enum.Enum):
    PAIR = (1, 2)
    TEXT = "x"


class Bits(enum.Flag):
    A = 1
    B = 2


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Record:
    name: str
    tags: set[str] = field(default_factory=set)


class Shape(msgspec.Struct, tag="shape", rename={"size_m": "size"}):
    size_m: float
    when: date | msgspec.UnsetType = msgspec.UNSET


class Row(msgspec.Struct, array_like=True, tag=True):
    a: int


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        ({7}, [7]),
        (frozenset({7}), [7]),
        (Point(1, 2), [1, 2]),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Huge.ONE, 1 << 80),
        (Odd.PAIR, "PAIR"),
        (Bits.A | Bits.B, 3),
        (Record("a", {"b"}), {"name": "a", "tags": ["b"]}),
        (Shape(2.0), {"type": "shape", "size": 2.0}),
        (Shape(2.0, date(2024, 1, 1)), {"type": "shape", "size": 2.0, "when": date(2024, 1, 1)}),
        (Row(1), ["Row", 1]),
        (Text("this"), "this"),
        (bytearray(b"x"), b"x"),
        (memoryview(b"x"), b"x"),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(int, a=1), {"a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        ({"a": 1}.keys(), ["a"]),
        ({Colour.RED: Level.HIGH}, {"red": 3}),
    ],
)
def test_what_arrives_as_something_plainer(value: Any, plain: Any) -> None:
    back = there_and_back(value)
    assert back == plain
    assert same_types(back, plain)


def test_subclasses_of_dates_travel_as_their_base() -> None:
    class Frozen(datetime):
        pass

    back = there_and_back(Frozen(2024, 1, 2, 3))
    assert (type(back), back) == (datetime, datetime(2024, 1, 2, 3))


def test_a_foreign_timestamp_is_read() -> None:
    body = msgpack.packb(msgpack.Timestamp(1, 500_000_000))
    assert codec.decode_result(body) == datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)


def test_plain_messages_are_plain_msgpack() -> None:
    """Any msgpack library reads what has no extension type, and is read."""
    value = {"a": [1, -2, 3.5, None, True, b"x", "é"]}
    assert msgpack.unpackb(codec.encode_result(value)) == value
    assert codec.decode_arguments(msgpack.packb([1, "a"])) == (1, "a")


class Loop:
    pass


endless: list[Any] = []
endless.append(endless)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "values of type object have no form on the wire"),
        ([Loop()], f"values of type {__name__}.Loop have no form on the wire"),
        (Record, "values of type type have no form on the wire"),
        (lambda: None, "values of type function have no form on the wire"),
        ("\ud800", "'utf-8' codec can't encode character '\\ud800' in position 0: surrogates not allowed"),
        (endless, "recursion limit exceeded."),
    ],
)
def test_what_cannot_be_sent(value: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        codec.encode_arguments((1, value))
    assert caught.value.message == f"this call: argument 2 cannot be sent: {reason}"
    with pytest.raises(InternalError) as broken:
        codec.encode_result(value)
    assert broken.value.message == f"this call: the result cannot be sent: {reason}"
    assert broken.value.may_have_run


def test_no_exception_is_declared_without_a_contract() -> None:
    assert codec.encode_exception(KeyError("x")) is None
    assert codec.decode_exception(b"\x93\xa1a\x90\x80") is None


def test_numpy_and_protobuf_stay_unloaded_until_they_are_used() -> None:
    code = (
        "import sys; from steelyard.codec import generic_codec; from steelyard.service import service;"
        "c = generic_codec();"
        "assert c.decode_arguments(c.encode_arguments((1, {'a': {2}}, 1 << 70)))[0] == 1;"
        "assert not {'numpy', 'google.protobuf', 'grpc'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_uuid_subclass() -> None:
    class Mine(uuid.UUID):
        pass

    value = Mine(int=7)
    assert there_and_back(value) == uuid.UUID(int=7)
