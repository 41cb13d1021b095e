"""numpy arrays and scalars: every dtype that travels, without a copy, and every lie in a header caught before memory is
taken for it."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.codec import MethodCodec, codec_for, generic_codec
from steelyard.errors import InternalError, InvalidArgument
from steelyard.service import method, service, service_spec

generic = generic_codec()

DTYPES = (
    "?", "i1", "u1", "<i2", ">i2", "<u4", ">i8", "<u8", "<f2", "<f4", ">f4", "<f8", "<c8", ">c16",
    "<U3", ">U3", "S4", "<M8[s]", ">M8[ns]", "<m8[25s]",
)  # fmt: skip


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    count = int(np.prod(shape, dtype=int))
    if dtype.kind == "U":
        letters = draw(st.lists(st.text("aé€😀", max_size=3), min_size=count, max_size=count))
        array = np.array(letters, dtype).reshape(shape)
    elif dtype.kind == "b":
        array = np.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype).reshape(shape)
    else:
        size = count * dtype.itemsize
        array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    if draw(st.booleans()):
        array = array.T
    if draw(st.booleans()) and array.ndim and array.shape[0] > 1:
        array = array[::-2]
    return array


def same(left: np.ndarray, right: np.ndarray) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@given(arrays(), st.binary(max_size=40))
def test_round_trip_anywhere_in_a_body(array: np.ndarray, before: bytes) -> None:
    back = generic.decode_result(generic.encode_result(array))
    assert same(back, array)
    _, as_argument, (nested, in_map) = generic.decode_arguments(
        generic.encode_arguments((before, array, [array, {"a": array}]))
    )
    for each in (as_argument, nested, in_map["a"]):
        assert same(each, array)
        assert not each.flags.writeable
        assert each.flags.aligned


@pytest.mark.parametrize("dtype", ["<f8", "<i4", "?", "<c16"])
@pytest.mark.parametrize("before", [b"", b"x", b"12345"])
def test_an_argument_is_a_view_into_the_body(dtype: str, before: bytes) -> None:
    array = np.ones(1000, dtype)
    body = generic.encode_arguments((before, array))
    _, back = generic.decode_arguments(body)
    assert np.shares_memory(back, np.frombuffer(body, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        back[0] = 0
    back.copy()[0] = 0


def test_a_view_keeps_its_body_alive() -> None:
    back = generic.decode_result(bytes(generic.encode_result(np.arange(10_000))))
    assert back.sum() == 49_995_000


@pytest.mark.parametrize(
    "value",
    [np.float32(1.5), np.float64(2.5), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True), np.complex64(1j),
     np.datetime64("2024-01-01T00:00:00"), np.timedelta64(3, "h"), np.float16(0.5), np.longdouble(1.25)],
)  # fmt: skip
def test_scalars_stay_scalars(value: Any) -> None:
    back = generic.decode_result(generic.encode_result(value))
    assert (type(back), back) == (type(value), value)
    assert generic.decode_arguments(generic.encode_arguments(([value],)))[0][0] == value


def test_numpy_text_and_bytes_become_pythons() -> None:
    back = generic.decode_result(generic.encode_result([np.str_("é"), np.bytes_(b"x"), np.str_("")]))
    assert back == ["é", b"x", ""]
    assert [type(each) for each in back] == [str, bytes, str]


def test_memmap(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "a", np.int32, "w+", shape=(3,))
    mapped[:] = 7
    assert same(generic.decode_result(generic.encode_result(mapped)), np.full(3, 7, np.int32))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (np.array([object()]), "a numpy array of dtype object cannot be sent"),
        (np.zeros(2, [("a", "<i4")]), "a numpy array of dtype [('a', '<i4')] cannot be sent"),
        (np.zeros(1, "V3"), "a numpy array of dtype |V3 cannot be sent"),
        (np.ma.masked_array([1, 2], [True, False]), "a numpy.ma.MaskedArray cannot be sent; use numpy.asarray"),
    ],
)
def test_arrays_that_cannot_be_sent(value: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        generic.encode_arguments((value,))
    assert caught.value.message == f"this call: argument 1 cannot be sent: {reason}"


def array_body(
    dtype: bytes, shape: tuple[int, ...], data: bytes, *, start: int | None = None, ndim: int | None = None
) -> bytes:
    size = 4 + len(dtype) + 8 * len(shape)
    head = struct.pack(">HBB", size if start is None else start, len(shape) if ndim is None else ndim, len(dtype))
    payload = head + dtype + struct.pack(f">{len(shape)}Q", *shape) + data
    packed: bytes = msgpack.packb(msgpack.ExtType(9, payload))
    return packed


def scalar_body(payload: bytes) -> bytes:
    packed: bytes = msgpack.packb(msgpack.ExtType(10, payload))
    return packed


def test_the_forger_of_these_tests_can_also_be_honest() -> None:
    assert same(generic.decode_result(array_body(b"<i2", (2,), b"\1\0\2\0")), np.array([1, 2], "<i2"))
    assert generic.decode_result(scalar_body(b"\x03<i2\7\0")) == 7


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (array_body(b"<f8", (1 << 40,), b"12345678"), "an array of 8796093022208 bytes came with 8"),
        (array_body(b"<f8", (2**63, 2**63), b""), f"an array of {2**129} bytes came with 0"),
        (array_body(b"<f8", (1,), b"1234567"), "an array of 8 bytes came with 7"),
        (array_body(b"<f8", (1,), b"123456789"), "an array of 8 bytes came with 9"),
        (array_body(b"<f8", (1,), b"12345678", start=3), "an array's header overlaps its data"),
        (array_body(b"<f8", (1,), b"12345678", start=60_000), "an array of 8 bytes came with -59977"),
        (array_body(b"|O8", (1,), b"12345678"), "not a dtype that can be sent: '|O8'"),
        (array_body(b"O", (1,), b"12345678"), "not a dtype that can be sent: 'O'"),
        (array_body(b"i4,i4", (1,), b"12345678"), "not a dtype that can be sent: 'i4,i4'"),
        (array_body(b"|V8", (1,), b"12345678"), "not a dtype that can be sent: '|V8'"),
        (array_body(b"", (), b""), "not a dtype that can be sent: ''"),
        (array_body(b"<U0", (1 << 40,), b""), "a dtype without a size: '<U0'"),
        (array_body(b"|b1", (1,), b"\x02"), "a boolean array holds a byte that is neither 0 nor 1"),
        (array_body(b"<U1", (1,), b"\xff\xff\xff\xff"), "a text array holds a number beyond the last code point"),
        (array_body(b">U1", (1,), b"\x00\x11\x00\x00"), "a text array holds a number beyond the last code point"),
        (scalar_body(b"\x03<f8123"), "a scalar of 8 bytes came with 3"),
        (scalar_body(b"\x03|b1\x05"), "a boolean array holds a byte that is neither 0 nor 1"),
        (scalar_body(b"\x02|O12345678"), "not a dtype that can be sent: '|O'"),
    ],
)
def test_lies_in_headers(body: bytes, reason: str) -> None:
    with pytest.raises(InternalError) as caught:
        generic.decode_result(body)
    assert caught.value.message == f"this call: the result cannot be decoded: {reason}"


@pytest.mark.parametrize(
    "body",
    [
        array_body(b"<f8", (), b"12345678", ndim=255),
        array_body(b"<f8", (0, 2**63, 2**63), b""),
        array_body(b"<f8", (1,) * 65, b"12345678"),
        array_body(b"<f999", (1,), b"1" * 999),
        array_body(b"<M8[zz]", (1,), b"12345678"),
        array_body(b"\xff\xfe", (1,), b"12345678"),
        scalar_body(b""),
        scalar_body(b"\xff"),
        msgpack.packb(msgpack.ExtType(9, b"")),
    ],
)
def test_other_lies_are_refused_by_numpy_and_struct(body: bytes) -> None:
    with pytest.raises(InternalError, match="the result cannot be decoded: "):
        generic.decode_result(body)


@service("n.N")
class Typed:
    @method
    def any_array(self, x: np.ndarray) -> None: ...
    @method
    def float32(self, x: npt.NDArray[np.float32]) -> None: ...
    @method
    def floating(self, x: npt.NDArray[np.floating[Any]]) -> None: ...
    @method
    def any_dtype(self, x: npt.NDArray[Any]) -> None: ...
    @method
    def optional(self, x: np.ndarray | None) -> None: ...
    @method
    def either(self, x: np.ndarray | list[float]) -> None: ...
    @method
    def either_typed(self, x: npt.NDArray[np.float32] | list[float]) -> None: ...
    @method
    def many(self, x: dict[str, list[np.ndarray]]) -> None: ...
    @method
    def scalar(self, x: np.float32) -> None: ...
    @method
    def small(self, x: np.uint8) -> None: ...
    @method
    def kind(self, x: np.integer[Any]) -> None: ...
    @method
    def whole(self, x: int) -> None: ...
    @method
    def real(self, x: float) -> None: ...
    @method
    def flag(self, x: bool) -> None: ...
    @method
    def reals(self, x: list[float]) -> None: ...
    @method
    def complicated(self, x: complex) -> None: ...


def typed(name: str) -> MethodCodec:
    return codec_for(service_spec(Typed).methods[name])


def arrive(name: str, value: Any) -> Any:
    codec = typed(name)
    (back,) = codec.decode_arguments(codec.encode_arguments((value,)))
    return back


F4, F8, I4 = np.ones(2, "f4"), np.ones(2, "f8"), np.ones(2, "i4")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("any_array", F4),
        ("any_array", I4),
        ("float32", F4),
        ("float32", F4.astype(">f4")),
        ("floating", F4),
        ("floating", F8),
        ("any_dtype", I4),
        ("optional", F4),
        ("optional", None),
        ("either", F4),
        ("either", [1.0, 2.0]),
        ("either_typed", F4),
        ("either_typed", [1.0, 2.0]),
        ("scalar", np.float32(2)),
        ("kind", np.int16(2)),
    ],
)
def test_annotations_that_fit(name: str, value: Any) -> None:
    back = arrive(name, value)
    assert np.array_equal(back, value)
    assert type(back) is type(value)


def test_arrays_inside_containers() -> None:
    back = arrive("many", {"a": [F4, I4]})
    assert same(back["a"][1], I4)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("any_array", [1.0], "expected numpy.ndarray, got list"),
        ("any_array", None, "expected numpy.ndarray, got None"),
        ("float32", F8, "expected numpy.ndarray of float32, got numpy.ndarray of float64"),
        ("float32", 1.0, "expected numpy.ndarray of float32, got float"),
        ("floating", I4, "expected numpy.ndarray of floating, got numpy.ndarray of int32"),
        ("optional", 3, "expected numpy.ndarray, got int"),
        ("either", "x", "expected ndarray or list, got str"),
        ("many", {"a": [F4, 3]}, "expected numpy.ndarray, got int (at [...][1])"),
        ("scalar", "x", "expected numpy.float32, got str"),
        ("scalar", True, "expected numpy.float32, got bool"),
        ("small", 256, "expected numpy.uint8, got int"),
        ("small", -1, "expected numpy.uint8, got int"),
        ("kind", 3, "expected numpy.integer, got int"),
        ("whole", np.float64(1), "expected int, got numpy.float64"),
        ("whole", np.bool_(True), f"expected int, got {type(np.bool_(True)).__module__}.{np.bool_.__qualname__}"),
        ("whole", F4, "expected int, got numpy.ndarray"),
        ("reals", ["x", np.float64(1)], "expected float, got str (at [0])"),
    ],
)
def test_annotations_that_do_not_fit(name: str, value: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        arrive(name, value)
    assert caught.value.message == f"n.N.{name}: argument 'x': {reason}"


@pytest.mark.parametrize(
    ("name", "value", "back"),
    [
        ("whole", np.int64(7), 7),
        ("whole", np.uint8(7), 7),
        ("real", np.float32(0.5), 0.5),
        ("real", np.int64(2), 2.0),
        ("flag", np.bool_(True), True),
        ("reals", [np.float64(0.5), 1.0], [0.5, 1.0]),
        ("scalar", 0.5, np.float32(0.5)),
        ("scalar", 2, np.float32(2)),
        ("small", 255, np.uint8(255)),
        ("complicated", np.complex64(1j), 1j),
        ("complicated", 2, 2 + 0j),
    ],
)
def test_numbers_cross_between_numpy_and_python_where_nothing_is_lost(name: str, value: Any, back: Any) -> None:
    arrived = arrive(name, value)
    assert (type(arrived), arrived) == (type(back), back)
