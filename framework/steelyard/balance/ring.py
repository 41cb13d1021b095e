"""The hash ring: which node is a key's home, and how much of the key space each node owns.

Virtual nodes in proportion to weight (Karger et al., STOC 1997; Dubbo's ConsistentHashLoadBalance has 160 per node).
64 here: the arcs' spread is about 1/sqrt(64) = 12 %, which the balancer evens out anyway, and 10 bytes a point keep the
ring at 640 bytes per node (a list of Python ints would take 40 bytes a point). The count per node must not depend on
the number of nodes: then every join would move the keys of all.

Rejected: jump hash (buckets are numbered, a node cannot leave from the middle), maglev (rebuilding the table
moves keys that need not move), rendezvous over all nodes (O(n) a pick).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from .hashing import MASK64, TWO64, points_of

VIRTUAL_NODES = 64
NORMAL_WEIGHT = 100
_MOST_POINTS = 100 * VIRTUAL_NODES
_SMALL = 1 << 16
_PER_SLOT = 16
_FEW = 8  # an eighth of the nodes may change before sorting anew is faster


class HashRing:
    """An immutable ring over ``identities``, which are named by their place in that sequence.

    ``counts`` are the points per node: a walk over points meets a node in proportion to them, where a random position
    meets it in proportion to its arc (``shares``).
    """

    __slots__ = ("_identities", "_index", "_owners", "_points", "_shift", "counts", "shares")

    def __init__(self, identities: Sequence[str], weights: Sequence[float], virtual_nodes: int = VIRTUAL_NODES) -> None:
        bits = max(1, (len(identities) - 1).bit_length())
        self._identities = tuple(identities)
        self.counts = array("I", [_count(weight, virtual_nodes) for weight in weights])
        # Point and owner in one integer: sorts three times faster than pairs.
        placed = [
            point << bits | owner
            for owner, (identity, count) in enumerate(zip(identities, self.counts, strict=True))
            for point in points_of(identity, count)
        ]
        placed.sort()
        mask = (1 << bits) - 1
        self._points = array("Q", [one >> bits for one in placed])
        self._owners = array(_owner_type(len(identities)), [one & mask for one in placed])
        self.shares = self._arcs(len(identities))
        self._build_index()

    def changed(
        self, identities: Sequence[str], weights: Sequence[float], virtual_nodes: int = VIRTUAL_NODES
    ) -> HashRing:
        """The ring for other members, equal to a new one. When few have changed only their points are moved: at 1,000
        nodes 3 ms where sorting all anew takes 70 ms, and a call waits for it."""
        counts = array("I", [_count(weight, virtual_nodes) for weight in weights])
        was = {identity: place for place, identity in enumerate(self._identities)}
        stays = [-1] * len(self._identities)  # old place -> new place
        joining = []
        for place, (identity, count) in enumerate(zip(identities, counts, strict=True)):
            old = was.get(identity, -1)
            if old >= 0 and self.counts[old] == count:
                stays[old] = place
            else:
                joining.append(place)
        leaving = [place for place, to in enumerate(stays) if to < 0]
        is_small_change = len(leaving) + len(joining) <= max(2, len(stays) // _FEW)
        if not is_small_change or len(leaving) == len(stays) or _owner_type(len(identities)) != self._owners.typecode:
            return HashRing(identities, weights, virtual_nodes)
        ring = object.__new__(HashRing)
        ring._identities, ring.counts = tuple(identities), counts
        ring._points, ring._owners = self._points[:], self._owners[:]
        shares = list(self.shares)
        for place in leaving:
            for point in points_of(self._identities[place], self.counts[place]):
                ring._take_out(point, place, shares)
        ring.shares = array("d", bytes(8 * len(identities)))
        for old, new in enumerate(stays):
            if new >= 0:
                ring.shares[new] = shares[old]
        if stays != list(range(len(stays))):
            ring._owners = array(ring._owners.typecode, map(stays.__getitem__, ring._owners))
        for place in joining:
            for point in points_of(identities[place], counts[place]):
                ring._put_in(point, place)
        ring._build_index()
        return ring

    def _take_out(self, point: int, place: int, shares: list[float]) -> None:
        at = bisect_left(self._points, point)
        while self._owners[at] != place:  # two nodes on one point
            at += 1
        arc = self._arc(at)
        del self._points[at], self._owners[at]
        shares[place] -= arc
        shares[self.owner_at(at)] += arc

    def _put_in(self, point: int, place: int) -> None:
        at = bisect_left(self._points, point)
        self._points.insert(at, point)
        self._owners.insert(at, place)
        arc = self._arc(at)
        self.shares[self.owner_at(at + 1)] -= arc
        self.shares[place] += arc

    def _arc(self, at: int) -> float:
        """The part of the key space that ends at a point."""
        return ((self._points[at] - self._points[at - 1]) & MASK64) / TWO64

    def __len__(self) -> int:
        return len(self._points)

    def owner(self, key: int) -> int:
        """The place of the node that owns *key*, a hash in [0, 2**64): the first point at or after it."""
        slot = key >> self._shift
        at = bisect_left(self._points, key, self._index[slot], self._index[slot + 1])
        return self._owners[at if at < len(self._owners) else 0]

    def position(self, key: int) -> int:
        """The index of the point that owns *key*, for walking clockwise with ``owner_at``."""
        at = bisect_left(self._points, key)
        return at if at < len(self._points) else 0

    def owner_at(self, position: int) -> int:
        return self._owners[position % len(self._owners)]

    def _build_index(self) -> None:
        """Where each equal part of the key space begins among the points, about 16 points a part: a look-up then
        compares four of them and not sixteen, at any number of nodes."""
        bits = max(0, (len(self._points) // _PER_SLOT).bit_length() - 1)
        self._shift = 64 - bits
        starts = [bisect_left(self._points, slot << self._shift) for slot in range(1 << bits)]
        self._index = array("I", [*starts, len(self._points)])

    def _arcs(self, nodes: int) -> array[float]:
        arcs = [0] * nodes
        before = self._points[-1] - (1 << 64) if self._points else 0
        for point, owner in zip(self._points, self._owners, strict=True):
            arcs[owner] += point - before
            before = point
        return array("d", [arc / (1 << 64) for arc in arcs])


def _owner_type(nodes: int) -> str:
    return "H" if nodes <= _SMALL else "I"


def _count(weight: float, virtual_nodes: int) -> int:
    return max(1, min(_MOST_POINTS, round(virtual_nodes * weight / NORMAL_WEIGHT)))
