"""A bound on keys that were made to collide.

Python hashes text and bytes with a secret, but numbers without one: whole multiples of 2**61 - 1 all hash to 0, so that
a map of 16,000 such UUIDs (400 KB) holds the event loop for half a minute, and a full body for days. Of msgpack's own
numbers no more than a few can share a hash; UUIDs, Decimals, complex and big integers, which travel as extensions, can
without end. Whether a value will be a key is not known when it is read, so all of them are looked at; values that are
equal (a column of zeros) are one key and do not count. Lists, which as keys are tuples, are looked at in ``shape``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .extension import BIG_INTEGER, COMPLEX, DECIMAL, NUMPY_SCALAR, TIMEDELTA, UUID_BYTES

Read = Callable[[int, memoryview], Any]

SMALL_BODY_BYTES = 4096
"""A body that is no longer holds too few values to matter: 400 colliding keys cost a millisecond."""
MOST_OF_ONE_HASH = 64

_WITHOUT_A_SECRET = frozenset({BIG_INTEGER, COMPLEX, DECIMAL, NUMPY_SCALAR, TIMEDELTA, UUID_BYTES})


def bounded(read: Read) -> Read:
    """*read*, an extension hook, for one body: raises ValueError at the 65th different value of one hash."""
    first: dict[int, Any] = {}
    rivals: dict[int, list[Any]] = {}

    def hook(code: int, data: memoryview) -> Any:
        value = read(code, data)
        if code not in _WITHOUT_A_SECRET:
            return value
        try:
            hashed = hash(value)
        except TypeError:  # a signalling NaN cannot be a key either
            return value
        known = first.setdefault(hashed, value)
        if known is not value and known != value:
            others = rivals.setdefault(hashed, [])
            if value not in others:
                others.append(value)
                if len(others) >= MOST_OF_ONE_HASH:
                    raise ValueError(f"more than {MOST_OF_ONE_HASH} different values with one hash")
        return value

    return hook
