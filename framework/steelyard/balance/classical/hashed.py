"""Spreaders by key: plain consistent hashing, and with bounded loads. Without a key both draw by weight."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..draw import Dice
from ..hashing import GOLDEN, MASK64, mix64
from ..ring import VIRTUAL_NODES, HashRing
from ..settings import check_range
from .spreaders import Draw
from .trace import Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistentHashSettings:
    """``virtual_nodes`` per node of weight 100 (1..1024): more even arcs against 10 bytes each."""

    virtual_nodes: int = VIRTUAL_NODES

    def __post_init__(self) -> None:
        check_range("virtual_nodes", self.virtual_nodes, 1, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedHashSettings:
    """``bound`` is c (1..100): a node takes at most c times its part of all open calls (Mirrokni et al.: 1.25).
    ``probes`` (1..1000): steps of the walk before all are compared."""

    virtual_nodes: int = VIRTUAL_NODES
    bound: float = 1.25
    probes: int = 16

    def __post_init__(self) -> None:
        check_range("virtual_nodes", self.virtual_nodes, 1, 1024)
        check_range("bound", self.bound, 1.0, 100.0)
        check_range("probes", self.probes, 1, 1000)


class RingOwner(Draw):
    """The owner of the key on the ring, else the next owner clockwise (Dubbo's consistenthash): a key's calls stay on
    one node, whatever that node's load. The base that the dual law diverts from, and the rival it is measured against.

    The ring is built at the first call with a key and at the first one after a change, so that a service without keys
    never pays for it.
    """

    def __init__(self, settings: ConsistentHashSettings | BoundedHashSettings) -> None:
        self._virtual_nodes = settings.virtual_nodes
        self._ring: HashRing | None = None
        self._is_changed = False

    def set_weights(self, members: Sequence[Traced], weights: Sequence[float]) -> None:
        super().set_weights(members, weights)
        self._is_changed = True

    @property
    def arcs(self) -> Sequence[float] | None:
        """Each member's part of the key space; None before the first key."""
        return None if self._ring is None else self._current().shares

    def pick(self, now_s: float, dice: Dice, key: int | None, excluded: Collection[str]) -> Traced | None:
        if key is None:
            return super().pick(now_s, dice, key, excluded)
        ring = self._current()
        member = self._members[ring.owner(key)]
        if not excluded or member.identity not in excluded:
            return member
        return self._clockwise(ring, key, excluded)

    def _current(self) -> HashRing:
        ring = self._ring
        if ring is None or self._is_changed:
            identities = [member.identity for member in self._members]
            if ring is None:
                ring = HashRing(identities, self._weights, self._virtual_nodes)
            else:
                ring = ring.changed(identities, self._weights, self._virtual_nodes)
            self._ring, self._is_changed = ring, False
        return ring

    def _clockwise(self, ring: HashRing, key: int, excluded: Collection[str]) -> Traced | None:
        """The next owner that is allowed. At most one turn of the ring."""
        if all(member.identity in excluded for member in self._members):
            return None
        start = ring.position(key)
        for step in range(1, len(ring)):
            member = self._members[ring.owner_at(start + step)]
            if member.identity not in excluded:
                return member
        return None


class BoundedRing(RingOwner):
    """Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, SODA 2018).

    A node is full at  ceil(c * weight / sum(weights) * (open + 1))  own open calls. A call for a full node goes along
    the key's own sequence of owners (each step another hash of the key) and not to the clockwise neighbour, which
    would get all of a full node's calls and be the next to fill up (Chen, Coleman, Shrivastava, 2021). The walk is
    bounded; where it ends without a free node, the least loaded of all is taken.
    """

    def __init__(self, settings: BoundedHashSettings) -> None:
        super().__init__(settings)
        self._bound, self._probes = settings.bound, settings.probes

    def set_weights(self, members: Sequence[Traced], weights: Sequence[float]) -> None:
        super().set_weights(members, weights)
        self._capacity = self._bound / sum(weights)
        self.open_calls = 0

    def pick(self, now_s: float, dice: Dice, key: int | None, excluded: Collection[str]) -> Traced | None:
        if key is None:
            return super().pick(now_s, dice, key, excluded)
        ring = self._current()
        point = key
        for _ in range(self._probes):
            at = ring.owner(point)
            member = self._members[at]
            if (not excluded or member.identity not in excluded) and not self._is_full(member, at):
                return member
            point = mix64((point + GOLDEN) & MASK64)
        return self._least_loaded(excluded)

    def _is_full(self, member: Traced, at: int) -> bool:
        # in_flight >= ceil(x) for whole in_flight is in_flight >= x; the first call is always let in.
        return member.in_flight > 0 and member.in_flight >= self._capacity * self._weights[at] * (self.open_calls + 1)

    def _least_loaded(self, excluded: Collection[str]) -> Traced | None:
        allowed = [
            ((member.in_flight + 1) / weight, at)
            for at, (member, weight) in enumerate(zip(self._members, self._weights, strict=True))
            if member.identity not in excluded
        ]
        return self._members[min(allowed)[1]] if allowed else None
