"""The hash ring: which node is a key's home, and how much of the key space each node owns.

Virtual nodes in proportion to weight (Karger et al., STOC 1997; Dubbo's ConsistentHashLoadBalance has 160 per node).
64 here: the arcs' spread is about 1/sqrt(64) = 12 %, which the balancer evens out anyway, and 12 bytes a point keep the
ring under 1 KB per node (a list of Python ints would take 40 bytes a point). The count per node must not depend on the
number of nodes: then every join would move the keys of all.

Rejected: jump hash (buckets are numbered, a node cannot leave from the middle), maglev (rebuilding the table
moves keys that need not move), rendezvous over all nodes (O(n) a pick).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from .hashing import points_of

VIRTUAL_NODES = 64
NORMAL_WEIGHT = 100
_MOST_POINTS = 100 * VIRTUAL_NODES


class HashRing:
    """An immutable ring over ``identities``, which are named by their place in that sequence."""

    __slots__ = ("_owners", "_points", "shares")

    def __init__(self, identities: Sequence[str], weights: Sequence[float], virtual_nodes: int = VIRTUAL_NODES) -> None:
        placed = sorted(
            (point, owner)
            for owner, (identity, weight) in enumerate(zip(identities, weights, strict=True))
            for point in points_of(identity, _count(weight, virtual_nodes))
        )
        self._points = array("Q", [point for point, _ in placed])
        self._owners = array("L", [owner for _, owner in placed])
        self.shares = self._arcs(len(identities))

    def __len__(self) -> int:
        return len(self._points)

    def owner(self, key: int) -> int:
        """The place of the node that owns *key*, a hash in [0, 2**64): the first point at or after it."""
        at = bisect_left(self._points, key)
        return self._owners[at if at < len(self._owners) else 0]

    def position(self, key: int) -> int:
        """The index of the point that owns *key*, for walking clockwise with ``owner_at``."""
        at = bisect_left(self._points, key)
        return at if at < len(self._points) else 0

    def owner_at(self, position: int) -> int:
        return self._owners[position % len(self._owners)]

    def _arcs(self, nodes: int) -> list[float]:
        arcs = [0] * nodes
        before = self._points[-1] - (1 << 64) if self._points else 0
        for point, owner in zip(self._points, self._owners, strict=True):
            arcs[owner] += point - before
            before = point
        return [arc / (1 << 64) for arc in arcs]


def _count(weight: float, virtual_nodes: int) -> int:
    return max(1, min(_MOST_POINTS, round(virtual_nodes * weight / NORMAL_WEIGHT)))
