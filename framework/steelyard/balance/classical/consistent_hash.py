"""Plain consistent hashing (Dubbo's consistenthash): a key's calls stay on one node, whatever that node's load.

The base that the dual law diverts from, and the rival it is measured against.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import ClassVar

from steelyard_registry.node import Node

from ..candidate import Candidate
from ..draw import Dice, DrawTable
from ..policy import PolicyBase
from ..ring import VIRTUAL_NODES, HashRing
from ..settings import check_range
from ..statistics import PolicyStatistics
from .weighted_random import draw_other


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistentHashSettings:
    """``virtual_nodes`` per node of weight 100 (1..1024): more even arcs against 12 bytes each."""

    virtual_nodes: int = VIRTUAL_NODES

    def __post_init__(self) -> None:
        check_range("virtual_nodes", self.virtual_nodes, 1, 1024)


class ConsistentHash(PolicyBase[Candidate]):
    """The owner of the key on the ring, else the next owner clockwise. Without a key: random by weight."""

    name: ClassVar[str] = "consistent_hash"
    settings_type = ConsistentHashSettings

    def __init__(self, settings: ConsistentHashSettings | None = None) -> None:
        super().__init__()
        self._settings = settings or ConsistentHashSettings()
        self._ring: HashRing | None = None
        self._table: DrawTable | None = None
        self._is_keyed = False

    def pick(
        self, now_s: float, dice: Dice, key: int | None = None, excluded: Collection[str] = ()
    ) -> Candidate | None:
        if self._ring is None or self._table is None:
            return None
        if key is None:
            candidate = self.eligible[self._table.draw(dice)]
            if excluded and candidate.identity in excluded:
                return draw_other(self.eligible, dice, excluded)
            return candidate
        self._is_keyed = True
        candidate = self.eligible[self._ring.owner(key)]
        if not excluded or candidate.identity not in excluded:
            return candidate
        return self._clockwise(key, excluded)

    def statistics(self, now_s: float) -> PolicyStatistics:
        statistics = super().statistics(now_s)
        if not self._is_keyed or self._ring is None:
            return statistics
        arcs = dict(zip((c.identity for c in self.eligible), self._ring.shares, strict=True))
        nodes = tuple(
            replace(node, share=arcs.get(node.identity, 0.0), base_share=arcs.get(node.identity, 0.0))
            for node in statistics.nodes
        )
        return replace(statistics, nodes=nodes)

    def _clockwise(self, key: int, excluded: Collection[str]) -> Candidate | None:
        """The next owner that is allowed. At most one turn of the ring."""
        assert self._ring is not None
        if all(candidate.identity in excluded for candidate in self.eligible):
            return None
        start = self._ring.position(key)
        for step in range(1, len(self._ring)):
            candidate = self.eligible[self._ring.owner_at(start + step)]
            if candidate.identity not in excluded:
                return candidate
        return None

    def _new_candidate(self, node: Node, now_s: float) -> Candidate:
        return Candidate(node, now_s)

    def _rebuild(self, now_s: float) -> None:
        if not self.eligible:
            self._ring = self._table = None
            return
        weights = [candidate.weight for candidate in self.eligible]
        self._ring = HashRing([c.identity for c in self.eligible], weights, self._settings.virtual_nodes)
        self._table = DrawTable(weights)
