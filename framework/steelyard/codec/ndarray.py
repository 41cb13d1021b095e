"""numpy arrays and scalars as extension data. Imported only when a value or an annotation needs it.

An array is a header (sizes, dtype, shape), padding, and the array's memory in C order. It is written with one copy,
straight into the body, and read with none: what arrives is a view into the body, and therefore **read-only**. That
is on purpose: a copy would cost as much as the rest of the call for a large array, most methods only read their
arguments, and those that write say so with one ``.copy()``. A view keeps its body alive; copy a small array that is to
be kept. Data that lies at an address its dtype cannot be read at without penalty is copied (and is still read-only, so
that the rule has no exception); padding sees to it that arrays which are arguments or results themselves lie well.

No object or structured dtypes: the first would need pickle, the second loses its field names in ``dtype.str``.
"""

from __future__ import annotations

import math
import re
import struct
from typing import Any, Final

import msgpack
import numpy as np

from .extension import NDARRAY, NUMPY_SCALAR

_HEAD = struct.Struct(">HBB")  # bytes before the data, dimensions, bytes of the dtype
_DTYPE = re.compile(r"[<>|][biufcSUmM][0-9]{1,9}(\[[0-9]{0,9}[A-Za-z]{1,2}\])?")
_ALIGNMENT = 16
_CODE_POINTS = 0x110000

NOT_NUMPY: Final = object()

Array = np.ndarray[Any, Any]


def numpy_extension(value: Any) -> Any:
    """A numpy array or scalar as msgpack's extension type; NOT_NUMPY for anything else.
    Raises TypeError for what cannot be sent."""
    if isinstance(value, np.ndarray):
        header, data = array_parts(value, 0)
        return msgpack.ExtType(NDARRAY, header + bytes(data))
    if isinstance(value, np.str_):
        return str.__str__(value)
    if isinstance(value, np.bytes_):
        return bytes(value)
    if isinstance(value, np.generic):
        name = _dtype_name(value.dtype)
        return msgpack.ExtType(NUMPY_SCALAR, bytes([len(name)]) + name + np.asarray(value).tobytes())
    return NOT_NUMPY


def array_parts(array: Array, offset: int) -> tuple[bytes, memoryview]:
    """The header and the memory of *array*, when the header is to stand at *offset* in the body."""
    if type(array) is not np.ndarray and not isinstance(array, np.memmap):
        # A masked array would lose its mask, a matrix its algebra, and nobody would be told.
        raise TypeError(f"a {type(array).__module__}.{type(array).__qualname__} cannot be sent; use numpy.asarray")
    name = _dtype_name(array.dtype)
    size = _HEAD.size + len(name) + 8 * array.ndim
    padding = -(offset + size) % _ALIGNMENT
    head = _HEAD.pack(size + padding, array.ndim, len(name))
    header = b"".join((head, name, struct.pack(f">{array.ndim}Q", *array.shape), bytes(padding)))
    # Not ascontiguousarray, which makes a one-element array of a 0-dimensional one.
    return header, np.asarray(array, order="C").reshape(-1).view(np.uint8).data


def read_array(data: memoryview) -> Array:
    """The array in *data*, read-only. Raises ValueError or struct.error; allocates nothing before the sizes agree."""
    start, dimensions, name_bytes = _HEAD.unpack_from(data)
    dtype = _dtype(bytes(data[_HEAD.size : _HEAD.size + name_bytes]))
    shape = struct.unpack_from(f">{dimensions}Q", data, _HEAD.size + name_bytes)
    if start < _HEAD.size + name_bytes + 8 * dimensions:
        raise ValueError("an array's header overlaps its data")
    wanted, came = math.prod(shape) * dtype.itemsize, len(data) - start
    if wanted != came:
        raise ValueError(f"an array of {wanted} bytes came with {came}")
    array: Array = np.ndarray(shape, dtype, data, start)
    _check_content(array)
    if not array.flags.aligned:
        array = array.copy()
    array.flags.writeable = False
    return array


def read_scalar(data: memoryview) -> Any:
    """The numpy scalar in *data*. Raises ValueError."""
    name_bytes = data[0]
    dtype = _dtype(bytes(data[1 : 1 + name_bytes]))
    raw = bytes(data[1 + name_bytes :])
    if len(raw) != dtype.itemsize:
        raise ValueError(f"a scalar of {dtype.itemsize} bytes came with {len(raw)}")
    array: Array = np.ndarray((), dtype, raw)
    _check_content(array)
    return array[()]


def _dtype_name(dtype: np.dtype[Any]) -> bytes:
    if dtype.names is not None or dtype.subdtype is not None or not _DTYPE.fullmatch(dtype.str) or not dtype.itemsize:
        raise TypeError(f"a numpy array of dtype {dtype} cannot be sent")
    return dtype.str.encode()


def _dtype(name: bytes) -> np.dtype[Any]:
    text = name.decode("ascii")
    # numpy's own parser takes far more than this, objects and comma lists among it.
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"not a dtype that can be sent: {text!r}")
    dtype = np.dtype(text)
    if not dtype.itemsize:
        raise ValueError(f"a dtype without a size: {text!r}")
    return dtype


def _check_content(array: Array) -> None:
    """Memory that numpy would misread: a boolean that is neither 0 nor 1, text beyond the last code point."""
    kind = array.dtype.kind
    if kind == "b" and array.size and array.reshape(-1).view(np.uint8).max() > 1:
        raise ValueError("a boolean array holds a byte that is neither 0 nor 1")
    if kind == "U" and array.size:
        points = array.reshape(-1).view(np.dtype(f"{array.dtype.byteorder}u4".replace("=", "")))
        if points.max() >= _CODE_POINTS:
            raise ValueError("a text array holds a number beyond the last code point")
