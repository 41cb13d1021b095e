"""Protobuf's wire format, for the handful of small standard messages that every gRPC client expects.

Health, load reports and retry hints have to work where the protobuf package is not installed (it is an extra), and are
a few fields each. The tests hold this beside protobuf's own reading and writing of the same messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

_DOUBLE = struct.Struct("<d")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTH = {_FIXED64: 8, _FIXED32: 4}
_MASK = (1 << 64) - 1

Value = int | bytes
"""A number for varints, the bytes themselves for everything else."""


def number(field: int, value: int) -> bytes:
    """A varint field: int32, int64, uint64, bool, enum. Negative numbers take ten bytes, as protobuf has it."""
    return _varint(field << 3 | _VARINT) + _varint(value & _MASK)


def double(field: int, value: float) -> bytes:
    return _varint(field << 3 | _FIXED64) + _DOUBLE.pack(value)


def data(field: int, value: bytes) -> bytes:
    """A field of bytes, text (encoded) or a message (encoded)."""
    return _varint(field << 3 | _BYTES) + _varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    return data(field, value.encode())


def doubles(field: int, values: Mapping[str, float]) -> bytes:
    """A ``map<string, double>``."""
    return b"".join(data(field, text(1, key) + double(2, value)) for key, value in values.items())


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """(field, value) in the order in which they stand. Raises ValueError for what is no message."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _read_varint(message, at)
        field, kind = tag >> 3, tag & 7
        if field == 0:
            raise ValueError("a field with the number 0")
        if kind == _VARINT:
            value, at = _read_varint(message, at)
            yield field, value
            continue
        if kind == _BYTES:
            size, at = _read_varint(message, at)
        elif kind in _WIDTH:
            size = _WIDTH[kind]
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        if size > end - at:
            raise ValueError("a field that is longer than its message")
        yield field, message[at : at + size]
        at += size


def as_number(value: Value) -> int:
    """An int32 or int64. Raises ValueError for a field of another kind."""
    if type(value) is not int:
        raise ValueError("expected a number")
    return value - (1 << 64) if value >> 63 else value


def as_double(value: Value) -> float:
    """Raises ValueError for a field of another kind."""
    if type(value) is not bytes or len(value) != 8:
        raise ValueError("expected a double")
    return float(_DOUBLE.unpack(value)[0])


def as_bytes(value: Value) -> bytes:
    """Raises ValueError for a field of another kind."""
    if type(value) is not bytes:
        raise ValueError("expected bytes")
    return value


def as_text(value: Value) -> str:
    """Raises ValueError for a field of another kind, and for what is not UTF-8."""
    return as_bytes(value).decode()


def as_entry(value: Value) -> tuple[str, float]:
    """One entry of a ``map<string, double>``. Raises ValueError."""
    key, amount = "", 0.0
    for field, part in fields(as_bytes(value)):
        if field == 1:
            key = as_text(part)
        elif field == 2:
            amount = as_double(part)
    return key, amount


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        if at >= len(message):
            raise ValueError("a number that does not end")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
        shift += 7
    raise ValueError("a number of more than ten bytes")
