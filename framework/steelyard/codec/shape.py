"""How many containers a body holds and what its keys hash to, looked at before anything is made of it.

Two ways to make a body cost far more than its length. An empty map or list is one byte on the wire and 80 bytes in
memory: 16 MiB of them are 1.3 GB. And a list as a key becomes a tuple, whose hash has no secret in it: 300 KB of tuples
that share a hash held the event loop for nine seconds (``collision`` sees to the other values of that kind).

The exact look takes as long as decoding itself, so three cheaper ones stand before it, and nearly all bodies end there:
short ones, those that a walk over a few tokens comes to the end of (numbers and large arrays), and those in which the
bytes that could begin a container are few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from .collision import MOST_OF_ONE_HASH

MOST_CONTAINERS = 500_000
"""Lists and maps in one body. At most 250 bytes each, they are 125 MB; more rows than this belong into an array, or
into a stream."""
FEW_LISTS = 300
"""So many colliding keys cost two milliseconds."""
_FEW_TOKENS = 64
_LONGEST_KEY = 256  # an extension that is longer is an array, or a number that is nobody's key

_MAPS = bytes([*range(0x80, 0x90), 0xDE, 0xDF])
_LISTS = bytes([*range(0x90, 0xA0), 0xDC, 0xDD])
# Bytes that follow a marker before its data, and how many bytes of length there are after it.
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4}
_FIXED |= {0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
_LONG = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_LONG |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}


def check_shape(body: bytes | memoryview, read: Callable[[int, memoryview], Any]) -> None:
    """Raises ValueError for a body with too many containers, or with lists that were made to collide. *read* makes the
    values of extensions. What is malformed may pass, or be an error of msgpack's."""
    rest = memoryview(body)[_walk(body) :]
    if len(rest) <= FEW_LISTS:
        return
    plain = bytes(rest)
    lists = len(plain) - len(plain.translate(None, _LISTS))
    maps = len(plain) - len(plain.translate(None, _MAPS)) if lists >= FEW_LISTS or len(plain) > MOST_CONTAINERS else 0
    if lists + maps + _FEW_TOKENS > MOST_CONTAINERS:
        _count(body)
    if lists >= FEW_LISTS:
        _look_at_keys(body, read)


def _walk(body: bytes | memoryview) -> int:
    """How far the first tokens reach: all of the body, where it is a few numbers and arrays."""
    at, size = 0, len(body)
    for _ in range(_FEW_TOKENS):
        if at >= size:
            break
        marker = body[at]
        at += 1
        if 0xA0 <= marker <= 0xBF:
            at += marker & 0x1F
        elif marker in _LONG:
            width, extra = _LONG[marker]
            at += width + extra + int.from_bytes(body[at : at + width], "big")
        elif marker in (0xDC, 0xDE):
            at += 2
        elif marker in (0xDD, 0xDF):
            at += 4
        else:
            at += _FIXED.get(marker, 0)
    return min(at, size)


def _count(body: bytes | memoryview) -> None:
    """Reads it all and makes nothing of it."""
    left = MOST_CONTAINERS

    def one(_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError(f"more than {MOST_CONTAINERS} lists and maps in one body")

    _read_through(body, object_pairs_hook=one, list_hook=one, ext_hook=lambda code, data: None)


def _look_at_keys(body: bytes | memoryview, read: Callable[[int, memoryview], Any]) -> None:
    """Reads it with lists as tuples, which as keys they are, and without maps, whose keys are looked at instead."""

    def pairs(found: list[tuple[Any, Any]]) -> None:
        if len(found) > MOST_OF_ONE_HASH:
            _check_rivals([key for key, _ in found])

    def extension(code: int, data: bytes) -> Any:
        if len(data) > _LONGEST_KEY:
            return None
        try:
            value = read(code, memoryview(data))
            hash(value)
        except Exception:  # whoever decodes it says what is wrong
            return None
        return value

    waiting = [_read_through(body, object_pairs_hook=pairs, use_list=False, ext_hook=extension)]
    while waiting:
        value = waiting.pop()
        if type(value) is tuple:
            waiting += [each for each in value if type(each) is tuple and len(each) > 1]
            if len(value) > MOST_OF_ONE_HASH:
                _check_rivals(value)  # a contract may make a set of it


def _check_rivals(values: Sequence[Any]) -> None:
    tuples = [value for value in values if type(value) is tuple]
    if len(tuples) <= MOST_OF_ONE_HASH:
        return
    hashes = list(map(hash, tuples))
    [(_, most)] = Counter(hashes).most_common(1)
    if most <= MOST_OF_ONE_HASH:
        return
    different: dict[int, list[Any]] = {}
    for hashed, value in zip(hashes, tuples, strict=True):
        known = different.setdefault(hashed, [])
        if value not in known:
            known.append(value)
            if len(known) > MOST_OF_ONE_HASH:
                raise ValueError(f"more than {MOST_OF_ONE_HASH} different values with one hash")


def _read_through(body: bytes | memoryview, **settings: Any) -> Any:
    try:
        return msgpack.unpackb(body, raw=True, strict_map_key=False, **settings)
    except msgpack.StackError:
        raise ValueError("it is nested too deeply") from None
