"""Random by weight (Dubbo's default). Without state between picks, so a thousand consumers never move in step."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from steelyard_registry.node import Node

from ..candidate import Candidate
from ..draw import Dice, DrawTable
from ..policy import PolicyBase
from ..settings import NoSettings


class WeightedRandom(PolicyBase[Candidate]):
    """Picks each node with probability weight / sum of weights, independently."""

    name: ClassVar[str] = "random"
    settings_type = NoSettings

    def __init__(self, settings: NoSettings | None = None) -> None:
        super().__init__()
        self._table: DrawTable | None = None

    def pick(
        self, now_s: float, dice: Dice, key: int | None = None, excluded: Collection[str] = ()
    ) -> Candidate | None:
        if self._table is None:
            return None
        candidate = self.eligible[self._table.draw(dice)]
        if not excluded or candidate.identity not in excluded:
            return candidate
        return draw_other(self.eligible, dice, excluded)

    def _new_candidate(self, node: Node, now_s: float) -> Candidate:
        return Candidate(node, now_s)

    def _rebuild(self, now_s: float) -> None:
        self._table = DrawTable([candidate.weight for candidate in self.eligible]) if self.eligible else None


def draw_other(eligible: list[Candidate], dice: Dice, excluded: Collection[str]) -> Candidate | None:
    """A weighted draw among those that are not excluded: O(n), which only retries pay, and exact where redrawing from
    the full table could miss a small node for ever."""
    others = [candidate for candidate in eligible if candidate.identity not in excluded]
    if not others:
        return None
    return others[DrawTable([candidate.weight for candidate in others]).draw(dice)]
