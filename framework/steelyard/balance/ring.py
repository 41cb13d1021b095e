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
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from operator import add
from typing import Any

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

    Points belong to *slots*, and a small table turns slots into places: when a node leaves, the places of all behind it
    move, and with them 640,000 owners at 10,000 nodes, while slots stay.
    """

    __slots__ = ("_identities", "_index", "_owners", "_places", "_points", "_shift", "_slots", "counts", "shares")

    def __init__(self, identities: Sequence[str], weights: Sequence[float], virtual_nodes: int = VIRTUAL_NODES) -> None:
        bits = max(1, (len(identities) - 1).bit_length())
        self._identities = tuple(identities)
        self.counts = _counts(weights, virtual_nodes)
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
        self._slots = array("I", range(len(identities)))
        self._places = self._slots
        self.shares = self._arcs(len(identities))
        self._build_index()

    def changed(
        self, identities: Sequence[str], weights: Sequence[float], virtual_nodes: int = VIRTUAL_NODES
    ) -> HashRing:
        """The ring for other members, equal to a new one. When few have changed only their points are moved: at 10,000
        nodes 10 ms where sorting all anew takes 800 ms, and a call waits for it."""
        counts = _counts(weights, virtual_nodes)
        members = tuple(identities)
        was, new = frozenset(self._identities), frozenset(members)
        gone = sorted(map(self._identities.index, was - new)) if len(was - new) <= len(was) // _FEW else None
        come = sorted(map(members.index, new - was)) if len(new - was) <= max(2, len(was) // _FEW) else None
        if (
            gone is None or come is None or _without(self._identities, gone) != _without(members, come)
        ):  # many, or shuffled
            return HashRing(members, weights, virtual_nodes)
        resized = _differences(_cut(self.counts, gone), _cut(counts, come))  # among those that stay
        leaving = sorted([*gone, *_among(len(was), gone, resized)])
        joining = sorted([*come, *_among(len(new), come, resized)])
        is_small_change = len(leaving) + len(joining) <= max(2, len(was) // _FEW)
        slots = max(len(self._places), len(members))
        if not is_small_change or len(leaving) == len(was) or _owner_type(slots) != self._owners.typecode:
            return HashRing(members, weights, virtual_nodes)
        ring = object.__new__(HashRing)
        ring._identities, ring.counts = members, counts
        ring._points, ring._owners, shares = self._without(leaving)
        ring._renumber(self, shares, gone, come)
        ring._insert(joining)
        ring._follow_index(self, leaving, joining)
        return ring

    def _without(self, leaving: Sequence[int]) -> tuple[array[int], array[int], array[float]]:
        """Points and owners without those of *leaving*, and the shares with the arcs of these given to their heirs."""
        points, owners, places = self._points, self._owners, self._places
        cuts = []
        for place in leaving:
            slot = self._slots[place]
            for point in points_of(self._identities[place], self.counts[place]):
                at = bisect_left(points, point)
                while owners[at] != slot:  # two nodes on one point
                    at += 1
                cuts.append(at)
        cuts.sort()
        shares = self.shares[:]
        for at, heir in _heirs(cuts, len(points)):
            arc = self._arc(at)
            shares[places[owners[at]]] -= arc
            shares[places[owners[heir]]] += arc
        return _cut(points, cuts), _cut(owners, cuts), shares

    def _renumber(self, before: HashRing, shares: array[float], gone: Sequence[int], come: Sequence[int]) -> None:
        """Slots keep their points; those of *gone*, and then new ones, go to *come*."""
        at = [place - number for number, place in enumerate(come)]
        self.shares = _inserted(_cut(shares, gone), at, [0.0] * len(come))
        most = len(before._places)
        free = [before._slots[place] for place in gone]
        if come and len(free) < len(come) and most > len(before._slots):
            free = sorted(set(range(most)) - set(before._slots)) + free
        free = [*range(most + len(come) - 1, most - 1, -1), *free]
        taken = [free.pop() for _ in come]
        self._slots = _inserted(_cut(before._slots, gone), at, taken)
        self._places = before._places
        if gone or come:
            self._places = array("I", bytes(4 * max([most, *(slot + 1 for slot in taken)])))
            for place, slot in enumerate(self._slots):
                self._places[slot] = place

    def _insert(self, joining: Iterable[int]) -> None:
        new = sorted(
            (point, self._slots[place])
            for place in joining
            for point in points_of(self._identities[place], self.counts[place])
        )
        at = [bisect_left(self._points, point) for point, _ in new]
        self._points = _inserted(self._points, at, [point for point, _ in new])
        self._owners = _inserted(self._owners, at, [slot for _, slot in new])
        merged = [place + number for number, place in enumerate(at)]
        for here, heir in _heirs(merged, len(self._points)):
            arc = self._arc(here)
            self.shares[self.owner_at(heir)] -= arc
            self.shares[self.owner_at(here)] += arc

    def _arc(self, at: int) -> float:
        """The part of the key space that ends at a point."""
        return ((self._points[at] - self._points[at - 1]) & MASK64) / TWO64

    def __len__(self) -> int:
        return len(self._points)

    def owner(self, key: int) -> int:
        """The place of the node that owns *key*, a hash in [0, 2**64): the first point at or after it."""
        slot = key >> self._shift
        at = bisect_left(self._points, key, self._index[slot], self._index[slot + 1])
        return self._places[self._owners[at if at < len(self._owners) else 0]]

    def position(self, key: int) -> int:
        """The index of the point that owns *key*, for walking clockwise with ``owner_at``."""
        at = bisect_left(self._points, key)
        return at if at < len(self._points) else 0

    def owner_at(self, position: int) -> int:
        return self._places[self._owners[position % len(self._owners)]]

    def _build_index(self) -> None:
        """Where each equal part of the key space begins among the points, about 16 points a part: a look-up then
        compares four of them and not sixteen, at any number of nodes."""
        bits = _index_bits(len(self._points))
        self._shift = 64 - bits
        starts = [bisect_left(self._points, slot << self._shift) for slot in range(1 << bits)]
        self._index = array("I", [*starts, len(self._points)])

    def _follow_index(self, before: HashRing, leaving: Iterable[int], joining: Iterable[int]) -> None:
        """The index of *before*, moved by the points that went and came."""
        self._shift = 64 - _index_bits(len(self._points))
        if self._shift != before._shift:
            self._build_index()
            return
        steps = [(point >> self._shift, -1) for at in leaving for point in points_of(*before._node(at))]
        steps += [(point >> self._shift, 1) for at in joining for point in points_of(*self._node(at))]
        by_slot = array("i", bytes(4 * len(before._index)))
        for slot, step in steps:
            by_slot[slot + 1] += step
        self._index = array("I", map(add, before._index, accumulate(by_slot)))

    def _node(self, place: int) -> tuple[str, int]:
        return self._identities[place], self.counts[place]

    def _arcs(self, nodes: int) -> array[float]:
        arcs = [0] * nodes
        before = self._points[-1] - (1 << 64) if self._points else 0
        for point, owner in zip(self._points, self._owners, strict=True):
            arcs[owner] += point - before
            before = point
        return array("d", [arc / (1 << 64) for arc in arcs])


def _owner_type(nodes: int) -> str:
    return "H" if nodes <= _SMALL else "I"


def _index_bits(points: int) -> int:
    return max(0, (points // _PER_SLOT).bit_length() - 1)


def _differences(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [] if one == other else [at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]


def _heirs(cuts: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """For each of *cuts* (sorted indices on a ring of *count*), last first: it, and the next index that is none."""
    cut = set(cuts)
    first = next(at for at in range(count) if at not in cut)
    heir = first
    for at in reversed(cuts):
        if at + 1 < count and at + 1 not in cut:
            heir = at + 1
        yield at, heir


def _cut(values: array[Any], cuts: Sequence[int]) -> array[Any]:
    """*values* without those at *cuts* (sorted). Copied once, in a few moves: an array that grows by parts is copied
    seventeen times over by its allocator."""
    kept = values[: len(values) - len(cuts)]
    with memoryview(kept) as to, memoryview(values) as given:
        for number, (at, end) in enumerate(pairwise([*cuts, len(values)]), 1):
            to[at + 1 - number : end - number] = given[at + 1 : end]
    return kept


def _inserted(values: array[Any], at: Sequence[int], new: Sequence[Any]) -> array[Any]:
    """*new* in between, each before the value at its index (sorted)."""
    merged = values + array(values.typecode, bytes(values.itemsize * len(at)))
    with memoryview(merged) as to, memoryview(values) as given:
        for number, (index, end) in enumerate(pairwise([*at, len(values)])):
            to[index + number] = new[number]
            to[index + number + 1 : end + number + 1] = given[index:end]
    return merged


def _without(members: tuple[str, ...], places: Sequence[int]) -> list[str]:
    kept = list(members)
    for place in reversed(places):
        del kept[place]
    return kept


def _among(count: int, others: Sequence[int], numbers: Sequence[int]) -> Sequence[int]:
    """The places of *numbers*, which count only those that are not in *others*."""
    if not others or not numbers:
        return numbers
    rest = sorted(set(range(count)) - set(others))
    return [rest[number] for number in numbers]


def _counts(weights: Sequence[float], virtual_nodes: int) -> array[int]:
    of = {weight: _count(weight, virtual_nodes) for weight in set(weights)}
    return array("I", [of[weight] for weight in weights])


def _count(weight: float, virtual_nodes: int) -> int:
    return max(1, min(_MOST_POINTS, round(virtual_nodes * weight / NORMAL_WEIGHT)))
