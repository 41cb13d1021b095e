"""Bytes from outside: whatever they are, the error is the caller's (arguments) or internal (results), and memory and
time stay within what the body's own length can cause."""

from __future__ import annotations

import struct
import time
import tracemalloc
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.codec import MethodCodec, codec_for, generic_codec
from steelyard.errors import InternalError, InvalidArgument
from steelyard.model import MethodSpec, Parameter


@dataclass
class Record:
    id: uuid.UUID
    price: Decimal | None = None
    tags: set[str] = field(default_factory=set)
    rows: list[np.ndarray] = field(default_factory=list)


def one(annotation: Any) -> MethodCodec:
    return codec_for(MethodSpec(name="m", service="s.S", parameters=(Parameter("x", annotation),), returns=annotation))


ANNOTATIONS = (int, bytes, float, datetime, np.ndarray, Record, dict[str, list[Record]], complex | str, Any)
CODECS = (generic_codec(), *map(one, ANNOTATIONS))

HONEST = (
    1, b"abc", 2.5, "text", None, 1 << 80, datetime(2024, 1, 1), uuid.UUID(int=5), Decimal("1.5"), 1j,
    np.arange(6.0).reshape(2, 3), np.float32(1), np.array(["ab"]), [1, [2, {"a": {"b": [3]}}]],
    Record(uuid.UUID(int=1), Decimal(1), {"a"}, [np.ones(2)]), {"a": [Record(uuid.UUID(int=1))]},
)  # fmt: skip
SEEDS = [generic_codec().encode_arguments((value,)) for value in HONEST]
SEEDS += [generic_codec().encode_result(value) for value in HONEST]


def survives(body: bytes) -> None:
    for codec in CODECS:
        with suppress(InvalidArgument):
            assert type(codec.decode_arguments(body)) is tuple
        with suppress(InternalError):
            codec.decode_result(body)
        codec.decode_exception(body)


@given(st.binary(max_size=200))
def test_random_bytes(body: bytes) -> None:
    survives(body)


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    body = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(body) - 1, 0)))
        how = draw(st.sampled_from(["set", "cut", "insert", "repeat", "drop"]))
        if how == "set" and body:
            body[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del body[at:]
        elif how == "insert":
            body[at:at] = draw(st.binary(max_size=8))
        elif how == "repeat":
            body += body[at:]
        else:
            del body[at : at + draw(st.integers(1, 8))]
    return bytes(body)


@given(mutations())
@settings(max_examples=400)
def test_mutated_bodies(body: bytes) -> None:
    survives(body)


@given(st.integers(-128, 127), st.binary(max_size=40))
def test_extensions_of_every_code(code: int, data: bytes) -> None:
    header = struct.pack(">BBb", 0xC7, len(data), code)
    survives(header + data)
    survives(b"\x91" + header + data)
    survives(b"\x91\x81" + header + data + b"\x01")


@pytest.mark.parametrize("body", SEEDS)
def test_truncations(body: bytes) -> None:
    for length in range(len(body)):
        with pytest.raises(InvalidArgument, match="the arguments cannot be decoded: Input data was truncated"):
            generic_codec().decode_arguments(body[:length])


def ext(code: int, data: bytes) -> bytes:
    packed: bytes = msgpack.packb(msgpack.ExtType(code, data))
    return packed


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Input data was truncated"),
        (b"\x90\x90", "trailing characters (byte 1)"),
        (b"\xc1", "invalid opcode '\\xc1' (byte 0)"),
        (b"\x91\xa2\xff\xfe", "Invalid UTF-8 encoded string"),
        (b"\x91\xa3\xed\xa0\x80", "Invalid UTF-8 encoded string"),
        (b"\x91" * 100_000, "it is nested too deeply"),
        (b"\x81\x01" * 100_000, "it is nested too deeply"),
        (b"\x91\x81\x80\x01", "map keys must be hashable (byte 4)"),
        (b"\x91\xd4\x63\x00", "unknown extension type 99"),
        (b"\x91\xc7\x03\xff123", "invalid MessagePack timestamp (at [0])"),
        (b"\x91" + ext(1, b"never"), "Invalid isoformat string: 'never'"),
        (b"\x91" + ext(4, b"123"), "unpack requires a buffer of 12 bytes"),
        (b"\x91" + ext(5, b"123"), "bytes is not a 16-char string"),
        (b"\x91" + ext(6, b"x"), "[<class 'decimal.ConversionSyntax'>]"),
        (b"\x91" + ext(7, b"x"), "unpack requires a buffer of 16 bytes"),
    ],
)
def test_each_kind_of_nonsense_has_its_words(body: bytes, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        one(Any).decode_arguments(body)
    assert caught.value.message == f"s.S.m: the arguments cannot be decoded: {reason}"


def test_a_map_of_nan_keys_is_only_a_map() -> None:
    """NaN differs from itself, so each is a key of its own; they must not end up in one chain either."""
    count = 20_000
    nan = b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00"
    body = b"\x91\xdf" + struct.pack(">I", count) + (nan + b"\x01") * count
    (back,) = generic_codec().decode_arguments(body)
    assert len(back) == count


@pytest.mark.parametrize("header", [b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"])
def test_a_length_is_no_promise(header: bytes) -> None:
    """Lists, maps, bytes, text and extensions that claim 4 GiB."""
    body = b"\x91" + header + b"\xff\xff\xff\xff" + b"\x01" * 100
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument):
            generic_codec().decode_arguments(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_nested_lists_that_each_claim_the_whole_body() -> None:
    """The list headers of a 1 MiB body could ask for 500 lists of a million places each: 4 GB."""
    size = 1 << 20
    header = b"\xdd" + struct.pack(">I", size)
    body = (header * 500).ljust(size, b"\x01")
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument):
            generic_codec().decode_arguments(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 * size


def test_deep_bodies_cost_no_more_than_their_length() -> None:
    started = time.perf_counter()
    for marker in (b"\x91", b"\x81\x01", b"\xdc\x00\x02", b"\x81\x91"):
        with pytest.raises(InvalidArgument):
            generic_codec().decode_arguments(marker * (1 << 20))
    assert time.perf_counter() - started < 10  # a bound for liveness; it takes milliseconds


_MODULUS = 2**61 - 1  # of Python's hash of numbers


def _colliding(kind: str, count: int) -> list[Any]:
    multiples = [_MODULUS * (256 + at) for at in range(count)]
    if kind == "complex":  # hash(a + bj) is hash(a) + 1000003 * hash(b)
        return [complex(10**15 - 1_000_003 * at, at) for at in range(count)]
    kinds: dict[str, list[Any]] = {
        "big integer": multiples,
        "uuid": [uuid.UUID(int=each) for each in multiples],
        "decimal": list(map(Decimal, multiples)),
    }
    return kinds[kind]


@pytest.mark.parametrize("kind", ["big integer", "uuid", "decimal", "complex"])
@pytest.mark.parametrize("is_map", [True, False])
def test_keys_that_were_made_to_collide_are_refused(kind: str, is_map: bool) -> None:
    """A list counts too, since a contract may make a set of it. It must end long before the work grows as a square."""
    keys = _colliding(kind, 1000)
    assert len(set(map(hash, keys))) == 1
    body = generic_codec().encode_arguments((dict.fromkeys(keys) if is_map else keys,))
    for codec in (generic_codec(), one(Any), one(dict[uuid.UUID, Any]), one(set[Decimal])):
        with pytest.raises(InvalidArgument, match="more than 64 different values with one hash"):
            codec.decode_arguments(body)
        with pytest.raises(InternalError, match="more than 64 different values with one hash"):
            codec.decode_result(body)


def test_a_few_that_collide_and_many_that_are_equal_are_welcome() -> None:
    values = [uuid.uuid4() for _ in range(2000)] + [Decimal(-1), Decimal(-2)] * 2000 + _colliding("uuid", 60)
    values += [complex(x, y) for x in range(50) for y in range(50)] + [float("nan"), Decimal("NaN")] * 200
    (came,) = generic_codec().decode_arguments(generic_codec().encode_arguments((values,)))
    assert str(came) == str(values)


def _of_one_hash(count: int) -> list[tuple[int, int]]:
    """Pairs whose hash as tuples is the same: the second is the first one's answer to CPython's tuple hash (xxHash's
    rounds, Objects/tupleobject.c), which has no secret."""
    one, two, start, mask = 11400714785074694791, 14029467366897019727, 2870177450012600261, (1 << 64) - 1
    undo_one, undo_two = pow(one, -1, 1 << 64), pow(two, -1, 1 << 64)
    wanted = 12345 * undo_one & mask
    wanted = (wanted >> 31 | wanted << 33) & mask
    pairs: list[tuple[int, int]] = []
    first = 0
    while len(pairs) < count:
        first += 1
        lane = (start + first * two) & mask
        lane = (lane << 31 | lane >> 33) & mask
        second = (wanted - (lane * one & mask)) * undo_two & mask
        second -= (second >> 63) << 64
        if abs(second) < _MODULUS and second != -1:  # so that the number is its own hash
            pairs.append((first, second))
    return pairs


@pytest.mark.parametrize("is_map", [True, False])
def test_tuples_that_were_made_to_collide_are_refused(is_map: bool) -> None:
    keys = _of_one_hash(3000)
    assert len(set(map(hash, keys))) == 1
    body = generic_codec().encode_arguments((dict.fromkeys(keys) if is_map else keys,))
    began_s = time.process_time()
    for codec in (generic_codec(), one(Any), one(dict[tuple[int, int], Any]), one(set[tuple[int, int]])):
        with pytest.raises(InvalidArgument, match="more than 64 different values with one hash"):
            codec.decode_arguments(body)
        with pytest.raises(InternalError, match="more than 64 different values with one hash"):
            codec.decode_result(body)
    nested = generic_codec().encode_arguments(({((pair,), 1): None for pair in keys},))
    with pytest.raises(InvalidArgument, match="more than 64 different values with one hash"):
        generic_codec().decode_arguments(nested)
    assert time.process_time() - began_s < 5, "decoding one of them takes as long as all of these a hundred times"


def test_honest_pairs_are_welcome() -> None:
    pairs = {(at, at + 1): (at, [at]) for at in range(5000)}
    codec = one(dict[tuple[int, int], tuple[int, list[int]]])
    assert codec.decode_arguments(codec.encode_arguments((pairs,))) == (pairs,)
    rows: Any = [[0, 0]] * 5000 + [{"a": [at], "b": {(at, 1): 2}} for at in range(500)]
    (came,) = generic_codec().decode_arguments(generic_codec().encode_arguments((rows,)))
    assert came == rows


@pytest.mark.parametrize("filler", [b"\x80", b"\x90", b"\x81\x01\x01", b"\x81\xa1a\x90", b"\x91\x80"])
def test_millions_of_containers_are_not_made(filler: bytes) -> None:
    """A byte on the wire and 80 in memory: 4 MiB of empty maps were 350 MB."""
    size = 4 << 20
    body = b"\xdd" + struct.pack(">I", size // len(filler)) + filler * (size // len(filler))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument, match="more than 500000 lists and maps"):
            generic_codec().decode_arguments(body)
        with pytest.raises(InvalidArgument, match="more than 500000 lists and maps"):
            generic_codec().decode_arguments(b"\x91\x81\xa1a" + body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 130 << 20


def test_large_arrays_and_texts_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*_: Any) -> None:
        raise AssertionError("an honest large body was looked at closely")

    codec = generic_codec()
    noise = np.random.default_rng(1).random(1 << 17)
    bodies = [
        codec.encode_arguments((7, noise, "user")),
        codec.encode_arguments((b"\x90" * (1 << 20), "\u0090" * (1 << 18), {"x": noise.tobytes()})),
        codec.encode_arguments(([{"id": at, "name": "x" * 50} for at in range(2000)],)),
    ]
    monkeypatch.setattr("steelyard.codec.shape._read_through", looked)
    for body in bodies:
        codec.decode_arguments(body)
