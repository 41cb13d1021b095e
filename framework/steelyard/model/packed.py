"""A body that is compressed, on its way between the codec filters of the two ends.

It stays so until somebody wants what is in it: whoever is refused before has cost no decompression, and what waits in
a queue waits small.
"""

from __future__ import annotations

import msgspec


class Packed(msgspec.Struct, frozen=True):
    """*data* is *raw_bytes* when it is unpacked by *how* (``zstd``, ``lz4``). Its length is what it takes now."""

    how: str
    raw_bytes: int
    data: bytes | bytearray

    def __len__(self) -> int:
        return len(self.data)
