"""Hashes hold still: golden vectors, across processes and hash seeds."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from enum import Enum

import numpy as np
import pytest

from steelyard.balance import hash_key
from steelyard.balance.hashing import mix64, points_of
from steelyard.balance.ring import HashRing
from steelyard.errors import InvalidArgument


class Colour(Enum):
    RED = "red"


GOLDEN = {
    "user-7": 0xA7E2C7AB7F636C10,
    "": 0x865D5BC926C95DF5,
    7: 0xF7A44D7B68405D94,
    -1: 0x9EAE669FDC2F0162,
    1180591620717411303424: 0x33F679C14E48A86E,
    0.5: 0xC782B17D037238B8,
    None: 0x48616D457A3DABB6,
    True: 0x6AC190E07B1A7634,
    b"x": 0x1AE8ACD08D225DE5,
    (1, "x"): 0x92C6678ED949F354,
}


@pytest.mark.parametrize(("value", "hashed"), GOLDEN.items())
def test_golden_vectors(value: object, hashed: int) -> None:
    assert hash_key(value) == hashed


def test_golden_mix_and_points() -> None:
    assert mix64(1) == 0x5692161D100B05E5
    assert list(points_of("a", 9))[::8] == [0x5D433D129C6B168C, 0xD7A6BB138E685F7B]


def test_other_processes_agree() -> None:
    program = "from steelyard.balance import hash_key; print(hash_key('user-7'), hash_key((1, 'x')))"
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert answers == {f"{hash_key('user-7')} {hash_key((1, 'x'))}\n"}


def test_types_are_kept_apart_and_numpy_is_not() -> None:
    apart = [1, "1", b"1", 1.0, True, None, ("1",), ("a", "bc"), ("ab", "c"), (("a",), "bc")]
    assert len({hash_key(value) for value in apart}) == len(apart)
    assert hash_key(np.int64(7)) == hash_key(np.uint8(7)) == hash_key(7)
    assert hash_key(np.float64(0.5)) == hash_key(0.5)
    assert hash_key(Colour.RED) != hash_key("red")
    assert hash_key(uuid.UUID(int=1)) == hash_key(uuid.UUID(int=1)) != hash_key(uuid.UUID(int=2))


def test_what_has_no_value_of_its_own_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="hash key of type object"):
        hash_key(object())


def test_ring_shares_are_what_its_owners_get() -> None:
    ring = HashRing(["a", "b", "c"], [100, 100, 200])
    assert sum(ring.shares) == pytest.approx(1.0)
    counts = [0, 0, 0]
    for at in range(20_000):
        counts[ring.owner(hash_key(at))] += 1
    assert [count / 20_000 for count in counts] == pytest.approx(ring.shares, abs=0.02)


def test_fewer_points_of_a_node_are_a_part_of_its_many() -> None:
    assert set(points_of("a", 10)) < set(points_of("a", 64))


def test_an_array_is_a_key_by_what_it_holds() -> None:
    embedding = np.arange(6, dtype=np.float32)
    assert hash_key(embedding) == hash_key(embedding.copy()) == hash_key(np.arange(12, dtype=np.float32)[:6])
    others = [
        embedding + 1,
        embedding.astype(np.float64),
        embedding.reshape(2, 3),
        embedding[:5],
        b"".join([embedding]),
    ]
    assert len({hash_key(each) for each in (embedding, *others)}) == len(others) + 1
    assert hash_key(np.array(7)) == hash_key(7)
    assert hash_key(np.asfortranarray(embedding.reshape(2, 3))) == hash_key(embedding.reshape(2, 3))


@pytest.mark.parametrize("value", [np.array([object()]), np.array([None, "a"], dtype=object)])
def test_an_array_of_objects_is_none(value: np.ndarray) -> None:
    with pytest.raises(InvalidArgument, match="hash key of numpy's type object: its bytes are no value"):
        hash_key(value)


def test_what_has_an_index_and_is_no_number_is_refused() -> None:
    class Tensor:
        def __index__(self) -> int:
            raise TypeError("only one-element tensors can be converted")

    with pytest.raises(InvalidArgument, match="hash key of type Tensor"):
        hash_key(Tensor())
