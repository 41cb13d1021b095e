"""Smooth weighted round robin, as earliest deadline first.

Each node's turn comes every 1/weight of virtual time; a pick takes the node whose turn is due first. Starting half an
interval in puts small nodes into the middle of the round, as nginx's form does (weights 5, 1, 1: a a a b c a a, never
five a's and then the rest), at O(log n) a pick where nginx's form adds to every node's counter at each pick (60 us at
1,000 nodes).

A changed weight rescales the time to the node's next turn, so shares are right over any window that spans the
change; starting anew at each change (as Dubbo did before 2.6.5) favours whoever stands first.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from typing import ClassVar

from steelyard_registry.node import Node

from ..candidate import Candidate
from ..draw import Dice
from ..policy import PolicyBase
from ..settings import NoSettings


class Turn(Candidate):
    """A node and its next turn: ``due_at`` in virtual time, ``per_turn`` = 1 / weight, ``order`` breaks ties."""

    __slots__ = ("due_at", "order", "per_turn")

    def __init__(self, node: Node, now_s: float) -> None:
        self.due_at = 0.0
        self.order = 0
        self.per_turn = 0.0  # 0: not in the queue
        super().__init__(node, now_s)


class RoundRobin(PolicyBase[Turn]):
    """Gives turns in proportion to weight, spread as evenly as weights allow."""

    name: ClassVar[str] = "round_robin"
    settings_type = NoSettings

    def __init__(self, settings: NoSettings | None = None) -> None:
        super().__init__()
        self._queue: list[tuple[float, int, Turn]] = []
        self._virtual_now = 0.0

    def pick(self, now_s: float, dice: Dice, key: int | None = None, excluded: Collection[str] = ()) -> Turn | None:
        skipped: list[tuple[float, int, Turn]] = []
        picked: Turn | None = None
        while self._queue:
            entry = heapq.heappop(self._queue)
            due_at, order, turn = entry
            if excluded and turn.identity in excluded:
                skipped.append(entry)
                continue
            # A node skipped for long keeps its early turn; virtual time never runs backwards for the others.
            self._virtual_now = max(self._virtual_now, due_at)
            turn.due_at = due_at + turn.per_turn
            heapq.heappush(self._queue, (turn.due_at, order, turn))
            picked = turn
            break
        for entry in skipped:
            heapq.heappush(self._queue, entry)
        return picked

    def _new_candidate(self, node: Node, now_s: float) -> Turn:
        return Turn(node, now_s)

    def _rebuild(self, now_s: float) -> None:
        for turn in self.candidates.values():
            if turn.weight <= 0:
                turn.per_turn = 0.0
        for order, turn in enumerate(self.eligible):
            per_turn = 1.0 / turn.weight
            turn.order = order
            if turn.per_turn == 0.0:
                turn.due_at = self._virtual_now + per_turn / 2
            else:
                turn.due_at = self._virtual_now + (turn.due_at - self._virtual_now) * per_turn / turn.per_turn
            turn.per_turn = per_turn
        self._queue = [(turn.due_at, turn.order, turn) for turn in self.eligible]
        heapq.heapify(self._queue)
