"""Values as msgpack bytes: what msgpack has no type for travels as extension types, records travel as maps.

Two libraries share the work. msgpack's packer writes, because every value it does not know goes through our hook
(msgspec's writes datetimes, UUIDs and Decimals as text, which an untyped reader could not tell from text). msgspec
reads: three times as fast as msgpack, and with extension data as a view into the body.

Tuples and sets are written as lists: a contract's annotation makes them what they were.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from collections.abc import Callable, Mapping, Set
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgpack
import msgspec

from .collision import SMALL_BODY_BYTES, bounded
from .extension import (
    BIG_INTEGER,
    COMPLEX,
    DATE,
    DATETIME,
    DECIMAL,
    NDARRAY,
    NUMPY_SCALAR,
    TIME,
    TIMEDELTA,
    UUID_BYTES,
)
from .mismatch import type_name
from .shape import check_shape

_TIMEDELTA = struct.Struct(">iii")
_COMPLEX = struct.Struct(">dd")


def pack(value: Any) -> bytes:
    """*value* as bytes. Raises TypeError, ValueError, OverflowError (or what a value's own code raises)."""
    # A packer of its own for each value: one that is kept would also keep the buffer of the largest body it ever
    # wrote, and is not safe in two threads once a hook runs. Making one takes a tenth of a microsecond.
    packed: bytes = msgpack.Packer(default=_extension, strict_types=True).pack(value)
    return packed


def unpack(body: bytes | memoryview) -> Any:
    """The value in *body*; arrays are views into it. Raises any Exception when *body* is not one complete value."""
    if len(body) <= SMALL_BODY_BYTES:
        return _decoder.decode(body)
    check_shape(body, _read)
    return msgspec.msgpack.Decoder(ext_hook=bounded(_read)).decode(body)


def _big_integer(value: int) -> msgpack.ExtType:
    return msgpack.ExtType(BIG_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _text(code: int, of: Callable[[Any], str]) -> Callable[[Any], msgpack.ExtType]:
    return lambda value: msgpack.ExtType(code, of(value).encode())


_WRITERS: dict[type, Callable[[Any], Any]] = {
    tuple: list,
    set: list,
    frozenset: list,
    int: _big_integer,  # only those beyond 64 bits come here
    datetime: _text(DATETIME, datetime.isoformat),
    date: _text(DATE, date.isoformat),
    time: _text(TIME, time.isoformat),
    timedelta: lambda value: msgpack.ExtType(TIMEDELTA, _TIMEDELTA.pack(value.days, value.seconds, value.microseconds)),
    UUID: lambda value: msgpack.ExtType(UUID_BYTES, value.bytes),
    Decimal: _text(DECIMAL, str),
    complex: lambda value: msgpack.ExtType(COMPLEX, _COMPLEX.pack(value.real, value.imag)),
}

# For subclasses, in this order: a datetime is a date, and a named tuple a tuple.
_BASES: tuple[type, ...] = (datetime, date, time, timedelta, UUID, Decimal, complex)


def _extension(value: Any) -> Any:
    """The packer's hook: *value* as something that msgpack has a type for."""
    write = _WRITERS.get(type(value))
    return _by_kind(value) if write is None else write(value)


def _by_kind(value: Any) -> Any:
    if isinstance(value, Enum):
        return _plain(_carried_enum(value))
    if isinstance(value, msgspec.Struct):
        return _struct_fields(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if "numpy" in sys.modules:
        from .ndarray import NOT_NUMPY, numpy_extension

        extension = numpy_extension(value)
        if extension is not NOT_NUMPY:
            return extension
    for base in _BASES:
        if isinstance(value, base):
            return _WRITERS[base](value)
    return _plain_subclass(value)


def _plain_subclass(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return _plain(int(value))
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple | Set):
        return list(value)
    raise TypeError(f"values of type {type_name(type(value))} have no form on the wire")


def _plain(value: Any) -> Any:
    """The hook's answer is not offered to the hook again, so big integers have to be dealt with here."""
    return _big_integer(value) if type(value) is int and not -(1 << 63) <= value < 1 << 64 else value


def _carried_enum(value: Enum) -> int | str:
    return value.value if is_carried_by_value(type(value)) else value.name


@lru_cache(maxsize=256)
def is_carried_by_value(kind: type[Enum]) -> bool:
    """Enums of whole numbers or of text travel as their values, all others as the names of their members."""
    values = [member.value for member in kind]
    return all(type(each) is int for each in values) or all(type(each) is str for each in values)


def _struct_fields(value: msgspec.Struct) -> Any:
    """One level of ``msgspec.to_builtins``, which would turn what lies below into text."""
    config = value.__struct_config__
    named = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    fields = {encoded: getattr(value, name) for encoded, name in named}
    if config.array_like:
        return [*([] if config.tag is None else [config.tag]), *fields.values()]
    unset = {name for name, field in fields.items() if field is msgspec.UNSET}
    tag = {} if config.tag is None or config.tag_field is None else {config.tag_field: config.tag}
    return {**tag, **{name: field for name, field in fields.items() if name not in unset}}


def _read_text(of: Callable[[str], Any]) -> Callable[[memoryview], Any]:
    return lambda data: of(str(data, "ascii"))


def _read_array(data: memoryview) -> Any:
    from .ndarray import read_array

    return read_array(data)


def _read_scalar(data: memoryview) -> Any:
    from .ndarray import read_scalar

    return read_scalar(data)


def _read_timedelta(data: memoryview) -> timedelta:
    days, seconds, microseconds = _TIMEDELTA.unpack(data)
    return timedelta(days, seconds, microseconds)


_READERS: dict[int, Callable[[memoryview], Any]] = {
    DATETIME: _read_text(datetime.fromisoformat),
    DATE: _read_text(date.fromisoformat),
    TIME: _read_text(time.fromisoformat),
    TIMEDELTA: _read_timedelta,
    UUID_BYTES: lambda data: UUID(bytes=bytes(data)),
    DECIMAL: _read_text(Decimal),
    COMPLEX: lambda data: complex(*_COMPLEX.unpack(data)),
    BIG_INTEGER: lambda data: int.from_bytes(data, "big", signed=True),
    NDARRAY: _read_array,
    NUMPY_SCALAR: _read_scalar,
}


def _read(code: int, data: memoryview) -> Any:
    reader = _READERS.get(code)
    if reader is None:
        raise ValueError(f"unknown extension type {code}")
    return reader(data)


_decoder = msgspec.msgpack.Decoder(ext_hook=_read)
