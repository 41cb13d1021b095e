"""Compressed bodies: for methods that ask for it, between ends that both can, and where it pays.

The size of what comes out is announced, checked against the receiver's own bound before anything is allocated, and
then the most that is believed: a body of a kilobyte that would unpack to a gigabyte fails at the announced size.

Measured on one core (a list of JSON records; float32 arrays of noise give 0.92 with zstd and 1.00 with lz4; ``./dev
bench wire --only compression`` measures it again, with records of its own):

| bytes | zstd, level 1: size, there and back | level 3 | lz4 |
|---|---|---|---|
| 512 | 0.41, 13 us | 0.41, 13 us | 0.57, 5 us |
| 4,096 | 0.24, 33 us | 0.26, 35 us | 0.47, 12 us |
| 65,536 | 0.22, 340 us | 0.24, 830 us | 0.43, 180 us |
| 800,000 | 0.23, 5.6 ms | 0.25, 11 ms | 0.42, 2.3 ms |
"""

from __future__ import annotations

import asyncio
import functools
import importlib
from typing import Any

from steelyard.errors import SteelyardError
from steelyard.model import Packed

PACKINGS = ("zstd", "lz4")
"""By the numbers 1 and 2, which cross the wire."""

# Level 1 is smaller and faster than 3 on what services send (the table above).
LEVEL = 1
# Below this a body fits one packet of a network anyway, and compressing costs more than a call of 512 bytes does.
LEAST_BYTES = 1024
# What does not become a tenth smaller is sent as it is, and costs its reader nothing.
MOST_SHARE = 0.9
# Above this it takes more than half a millisecond, and the event loop has others to serve: a thread does it.
THREAD_BYTES = 128 * 1024


class Unpackable(SteelyardError):
    """A compressed body that is not what was announced."""


@functools.cache
def packings() -> tuple[str, ...]:
    """Those whose library is installed (the extra ``compression``)."""
    return tuple(name for name in PACKINGS if _library(name) is not None)


def worth_packing(body: object, most_bytes: int) -> bool:
    """Whether *body* is large enough to be compressed, and small enough to be sent at all."""
    return isinstance(body, bytes | bytearray) and LEAST_BYTES <= len(body) <= most_bytes


async def packed(how: str, body: bytes | bytearray) -> bytes | bytearray | Packed:
    """*body* compressed, or itself where that is no gain."""
    if len(body) > THREAD_BYTES:
        return await asyncio.to_thread(pack, how, body)
    return pack(how, body)


async def unpacked(body: Packed) -> bytes:
    """Raises Unpackable. The announced size must have been found small enough."""
    if body.raw_bytes > THREAD_BYTES:
        return await asyncio.to_thread(unpack, body)
    return unpack(body)


def pack(how: str, body: bytes | bytearray) -> bytes | bytearray | Packed:
    library = _library(how)
    if how == "zstd":
        data = library.ZstdCompressor(level=LEVEL).compress(body)
    else:
        data = library.compress(body, store_size=False)
    return Packed(how, len(body), data) if len(data) <= MOST_SHARE * len(body) else body


def unpack(body: Packed) -> bytes:
    library = _library(body.how)
    if library is None:
        raise Unpackable(f"a body that is compressed with {body.how}, which is not installed here")
    try:
        if body.how == "zstd":
            raw = _unpack_zstd(library, body)
        else:
            raw = library.decompress(body.data, uncompressed_size=body.raw_bytes)
    except Exception as error:
        raise Unpackable(f"a compressed body that cannot be read: {type(error).__name__}") from error
    if len(raw) != body.raw_bytes:
        raise Unpackable(f"a compressed body of {len(raw)} bytes where {body.raw_bytes} were announced")
    return raw


def _unpack_zstd(library: Any, body: Packed) -> bytes:
    # A frame may name a size of its own, which the library would believe and allocate.
    named = library.frame_content_size(body.data)
    if named not in (-1, body.raw_bytes):
        raise Unpackable("its frame names another size")
    raw: bytes = library.ZstdDecompressor().decompress(
        body.data, max_output_size=body.raw_bytes, allow_extra_data=False
    )
    return raw


@functools.cache
def _library(how: str) -> Any:
    try:
        return importlib.import_module("zstandard" if how == "zstd" else "lz4.block")
    except ImportError:
        return None
