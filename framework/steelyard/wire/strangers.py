"""Who has connected and has not said who it is yet: a few, and not for long.

When there are too many, the oldest goes if it has had its time, and the newest otherwise. Always the oldest would turn
away, in a rush of honest callers, whoever is next to be through; always the newest would let a crowd that says nothing
keep everybody out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

# Of the time that a handshake or a HELLO may take: an honest one takes a few round trips, so a fifth of the default
# (1 s) is some ten of them around the world.
FAIR_SHARE = 0.2


class Strangers(Generic[T]):
    """At most *most*; *fair_s*: how long each may stay undisturbed, in seconds."""

    def __init__(self, most: int, fair_s: float) -> None:
        self._most = most
        self._fair_s = fair_s
        self._since: dict[T, float] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._since))

    def add(self, one: T, now_s: float) -> T | None:
        """Who has to go for it: nobody, the oldest, or *one* itself (which then is not among them)."""
        leaves: T | None = None
        if len(self._since) >= self._most:
            oldest, since_s = next(iter(self._since.items()))
            if now_s - since_s < self._fair_s:
                return one
            del self._since[oldest]
            leaves = oldest
        self._since[one] = now_s
        return leaves

    def discard(self, one: T) -> None:
        self._since.pop(one, None)
