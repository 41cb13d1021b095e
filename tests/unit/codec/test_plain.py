"""Arguments from callers without the contract: by name, in JSON's types, checked like all others."""

from __future__ import annotations

import base64
import datetime
import decimal
import enum
import json
import uuid
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.codec import codec_for, generic_codec, plain_codec
from steelyard.errors import InvalidArgument
from steelyard.model import MethodSpec, Parameter


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Item:
    name: str
    price: decimal.Decimal
    colour: Colour = Colour.RED
    scores: npt.NDArray[np.float32] | None = None
    tags: list[str] = field(default_factory=list)


def method(**annotations: Any) -> MethodSpec:
    return MethodSpec(name="f", parameters=tuple(Parameter(name, kind) for name, kind in annotations.items()))


def sent(spec: MethodSpec, arguments: Any) -> tuple[Any, ...]:
    """What arrives at the method when a caller without the contract sends *arguments*."""
    return codec_for(spec).decode_arguments(plain_codec().encode_arguments((arguments,)))


def test_by_position_and_by_name_are_the_same() -> None:
    spec = method(user_id=int, name=str)
    assert sent(spec, [7, "x"]) == sent(spec, {"name": "x", "user_id": 7}) == (7, "x")
    assert sent(spec, {"*": [7], "name": "x"}) == (7, "x")


def test_defaults_and_keyword_only_parameters() -> None:
    spec = MethodSpec(
        name="f",
        parameters=(Parameter("a", int), Parameter("b", int, 2), Parameter("c", int, 3, is_keyword_only=True)),
    )
    assert sent(spec, [1]) == (1, 2, 3)
    assert sent(spec, {"a": 1, "c": 9}) == (1, 2, 9)
    with pytest.raises(InvalidArgument, match=r"got 3 by position; it takes \(a, b, c\)"):
        sent(spec, [1, 2, 3])


@pytest.mark.parametrize(
    ("kind", "plain", "value"),
    [
        (bytes, base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
        (datetime.datetime, "2024-02-29T12:00:00Z", datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)),
        (datetime.date, "2024-02-29", datetime.date(2024, 2, 29)),
        (datetime.timedelta, "P1DT2S", datetime.timedelta(days=1, seconds=2)),
        (uuid.UUID, "12345678123456781234567812345678", uuid.UUID("12345678123456781234567812345678")),
        (decimal.Decimal, "1.50", decimal.Decimal("1.50")),
        (float, 7, 7.0),
        (Colour, "red", Colour.RED),
        (dict[int, str], {"7": "x"}, {7: "x"}),
        (tuple[int, str], [1, "x"], (1, "x")),
        (set[int], [1, 2], {1, 2}),
        (int | None, None, None),
        (Any, {"a": [1, None]}, {"a": [1, None]}),
        (
            Item,
            {"name": "lamp", "price": "12.5", "tags": ["new"]},
            Item("lamp", decimal.Decimal("12.5"), tags=["new"]),
        ),
    ],
)
def test_json_types_stand_for_what_json_lacks(kind: Any, plain: Any, value: Any) -> None:
    (arrived,) = sent(method(it=kind), json.loads(json.dumps([plain])))
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("kind", "lists", "dtype", "shape"),
    [
        (np.ndarray, [1, 2, 3], "int64", (3,)),
        (np.ndarray, [[1, 2.5], [3, 4]], "float64", (2, 2)),
        (np.ndarray, [], "float64", (0,)),
        (npt.NDArray[np.float32], [[1, 2]], "float32", (1, 2)),
        (npt.NDArray[np.uint8], [0, 255], "uint8", (2,)),
        (npt.NDArray[np.floating], [1, 2], "float64", (2,)),
        (npt.NDArray[np.bool_], [True, False], "bool", (2,)),
    ],
)
def test_lists_stand_for_arrays(kind: Any, lists: Any, dtype: str, shape: tuple[int, ...]) -> None:
    (array,) = sent(method(features=kind), [lists])
    assert (array.dtype.name, array.shape) == (dtype, shape)
    assert array.tolist() == lists


def test_an_array_inside_a_record_and_a_real_one() -> None:
    (item,) = sent(method(item=Item), [{"name": "x", "price": "1", "scores": [1, 2]}])
    assert item.scores.dtype == np.float32
    (array,) = sent(method(features=np.ndarray), [np.arange(3)])
    assert array.tolist() == [0, 1, 2]
    assert sent(method(features=np.ndarray | None), [None]) == (None,)


@pytest.mark.parametrize(
    ("kind", "plain", "message"),
    [
        (int, "7", "argument 'it': expected int, got str"),
        (int, True, "argument 'it': expected int, got bool"),
        (bytes, "not base64!", "argument 'it': .*base64"),
        (datetime.datetime, "yesterday", "argument 'it': .*(RFC3339|datetime)"),
        (np.ndarray, [[1], [1, 2]], "must be of equal length and depth"),
        (np.ndarray, ["a"], "expected an array of numbers, got str in it"),
        (np.ndarray, [None], "expected an array of numbers, got None in it"),
        (np.ndarray, [2**70], "a number beyond 64 bits"),
        (np.ndarray, 5, r"expected numpy\.ndarray, got int"),
        (npt.NDArray[np.uint8], [256], "do not fit an array of uint8"),
        (npt.NDArray[np.int64], [1.5], "do not fit an array of int64"),
        (Item, {"name": "x"}, "missing required field price"),
    ],
)
def test_what_does_not_fit_is_named(kind: Any, plain: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        sent(method(it=kind), [plain])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([1, 2, 3], r"f: got 3 by position; it takes \(a, b\)"),
        ([1], r"f: 'b' is missing; it takes \(a, b\)"),
        ({"a": 1, "b": 2, "c": 3}, "f: there is no argument 'c'; it takes"),
        ({"*": [1], "a": 1, "b": 2}, "f: 'a' is given by position and by name"),
        ({"*": 7}, r"f: '\*' holds the arguments by position as a list"),
    ],
)
def test_wrong_names_and_counts(arguments: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        sent(method(a=int, b=int), arguments)


def test_typed_callers_stay_strictly_typed() -> None:
    """A list is a typed caller's, and text is then no other spelling of bytes, nor a list of an array."""
    for kind, value in ((bytes, "AAAA"), (np.ndarray, [1]), (datetime.date, "2024-01-01")):
        with pytest.raises(InvalidArgument):
            codec_for(method(it=kind)).decode_arguments(generic_codec().encode_arguments((value,)))


def test_an_array_of_text_does_not_grow() -> None:
    """numpy would make every item as wide as the longest one: here 4 TB."""
    with pytest.raises(InvalidArgument, match="array of numbers, got str"):
        sent(method(it=np.ndarray), [["x" * 10**6, *[""] * 10**6]])


def test_a_deep_array_is_refused() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with pytest.raises(InvalidArgument, match="more than 32 dimensions"):
        sent(method(it=np.ndarray), [deep])


@pytest.mark.parametrize("given_", [(), (7,), ([1], [2]), ("text",)])
def test_the_callers_codec_takes_one_list_or_mapping(given_: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidArgument, match="one list, by position, or one mapping, by name"):
        plain_codec().encode_arguments(given_)


def test_what_cannot_be_sent_is_the_callers_fault() -> None:
    with pytest.raises(InvalidArgument, match="cannot be sent"):
        plain_codec().encode_arguments(([object()],))


_SPEC = method(number=int, text=str, moment=datetime.datetime, array=npt.NDArray[np.float64], item=Item, raw=bytes)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
_NAMES = st.sampled_from([*(each.name for each in _SPEC.parameters), "*", "other"])


_ANY_NAMES = st.dictionaries(_NAMES | st.integers(-(2**63), 2**64 - 1), _JSON, max_size=8)
_RIGHT_NAMES = st.fixed_dictionaries({each.name: _JSON for each in _SPEC.parameters})


@settings(max_examples=200)
@given(_ANY_NAMES | _RIGHT_NAMES)
def test_whatever_a_map_says_it_is_arguments_or_invalid(arguments: dict[Any, Any]) -> None:
    codec = codec_for(_SPEC)
    try:
        assert len(codec.decode_arguments(msgpack.packb(arguments))) == len(_SPEC.parameters)
    except InvalidArgument:
        pass


@given(number=st.integers(-(2**63), 2**63 - 1), array=st.lists(st.floats(allow_nan=False), max_size=5), raw=st.binary())
def test_good_arguments_arrive_whatever_they_are(number: int, array: list[float], raw: bytes) -> None:
    arrived = sent(
        method(number=int, array=npt.NDArray[np.float64], raw=bytes),
        json.loads(json.dumps({"raw": base64.b64encode(raw).decode(), "number": number, "array": array})),
    )
    assert arrived[0] == number
    assert arrived[1].tolist() == array
    assert arrived[2] == raw
