"""Compressed bodies: what pays, what comes back, and what is not believed."""

from __future__ import annotations

import tracemalloc

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from steelyard.codec import PACKINGS, Unpackable, packed, packings, unpacked, worth_packing
from steelyard.codec.packing import pack, unpack
from steelyard.model import Packed


def squeezed(how: str, body: bytes) -> bytes:
    if how == "zstd":
        return zstandard.ZstdCompressor().compress(body)
    return bytes(lz4.block.compress(body, store_size=False))


@pytest.mark.parametrize("how", PACKINGS)
@given(body=st.binary(max_size=3000), repeated=st.integers(1, 50))
def test_what_goes_in_comes_out(how: str, body: bytes, repeated: int) -> None:
    given = pack(how, body * repeated)
    if isinstance(given, Packed):
        assert len(given) == len(given.data) <= 0.9 * given.raw_bytes
        assert unpack(given) == body * repeated
    else:
        assert given == body * repeated


@pytest.mark.parametrize("how", PACKINGS)
@pytest.mark.parametrize("size", [2000, 500_000])
async def test_small_on_the_loop_and_large_in_a_thread(how: str, size: int) -> None:
    body = bytes(range(100)) * (size // 100)
    given = await packed(how, bytearray(body))
    assert isinstance(given, Packed)
    assert await unpacked(given) == body


@pytest.mark.parametrize("how", PACKINGS)
def test_what_is_no_gain_is_left_as_it_is(how: str) -> None:
    import random

    noise = random.Random(1).randbytes(50_000)
    assert pack(how, noise) is noise


def test_what_is_worth_it() -> None:
    assert worth_packing(bytes(1024), 10_000)
    assert not worth_packing(bytes(1023), 10_000)
    assert not worth_packing(bytes(10_001), 10_000), "it is refused as it is, by its own size"
    assert not worth_packing(None, 10_000)
    assert packings() == PACKINGS


@pytest.mark.parametrize("how", PACKINGS)
@pytest.mark.parametrize("said", [1, 4095, 4097, 10_000])
def test_another_size_than_was_announced(how: str, said: int) -> None:
    with pytest.raises(Unpackable):
        unpack(Packed(how, said, squeezed(how, bytes(4096))))


@pytest.mark.parametrize("how", PACKINGS)
@given(data=st.binary(max_size=200), said=st.integers(1, 10_000))
def test_nonsense(how: str, data: bytes, said: int) -> None:
    try:
        assert len(unpack(Packed(how, said, data))) == said
    except Unpackable:
        pass


def bombs() -> list[tuple[str, bytes]]:
    unnamed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * 1024 * 1024))
    named = zstandard.ZstdCompressor().compress(bytes(64 * 1024 * 1024))
    # A frame that names four exbibytes: the library would believe it.
    liar = b"\x28\xb5\x2f\xfd\xe0" + (2**62).to_bytes(8, "little") + b"\x01\x00\x00"
    twice = zstandard.ZstdCompressor().compress(bytes(1000)) + named
    return [
        ("zstd", unnamed),
        ("zstd", named),
        ("zstd", liar),
        ("zstd", twice),
        ("lz4", squeezed("lz4", bytes(64 * 1024 * 1024))),
    ]


@pytest.mark.parametrize("number", range(5))
def test_a_bomb_costs_no_more_than_what_it_announced(number: int) -> None:
    how, data = bombs()[number]
    tracemalloc.start()
    try:
        with pytest.raises(Unpackable):
            unpack(Packed(how, 1000, data))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1024 * 1024


def test_without_the_library_there_is_a_word_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.codec.packing._library", lambda how: None)
    with pytest.raises(Unpackable, match="zstd, which is not installed here"):
        unpack(Packed("zstd", 10, b"x"))
