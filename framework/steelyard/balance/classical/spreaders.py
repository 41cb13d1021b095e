"""Spreaders: how calls follow weights. With a weigher each makes a policy.

A spreader is given members and weights whenever one of them changed, and must be right over any window that spans such
a change: shares after it are the new ones, shares before it the old ones, and nobody is favoured by the change itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Protocol

from ..draw import Dice, DrawTable
from .trace import Traced


class Spreader(Protocol):
    """``set_weights`` gets at least one member, and weights above 0. ``pick`` is only asked when there are members."""

    def set_weights(self, members: Sequence[Traced], weights: Sequence[float]) -> None: ...

    def pick(self, now_s: float, dice: Dice, key: int | None, excluded: Collection[str]) -> Traced | None: ...


class Draw:
    """Random by weight. Without state between picks, so a thousand consumers never move in step."""

    def set_weights(self, members: Sequence[Traced], weights: Sequence[float]) -> None:
        self._members, self._weights = members, weights
        self._table = DrawTable(weights)

    def pick(self, now_s: float, dice: Dice, key: int | None, excluded: Collection[str]) -> Traced | None:
        member = self._members[self._table.draw(dice)]
        if not excluded or member.identity not in excluded:
            return member
        return self._draw_allowed(dice, excluded)

    def _draw_allowed(self, dice: Dice, excluded: Collection[str]) -> Traced | None:
        """By weight among those that are left; O(n), for retries only."""
        allowed = [at for at, member in enumerate(self._members) if member.identity not in excluded]
        if not allowed:
            return None
        return self._members[allowed[DrawTable(self._weights[at] for at in allowed).draw(dice)]]


# A member's next turn: when it is due in virtual time, its place (no two are equal, so that nothing further is
# compared), the member, and 1 / weight. A tuple, because a heap of objects calls ``__lt__`` five times a pick.
Turn = tuple[float, int, Traced, float]


class Turns:
    """Smooth weighted round robin, as earliest deadline first.

    Starting half an interval in puts small nodes into the middle of the round, as nginx's form does (weights 5, 1, 1: a
    a a b c a a, never five a's and then the rest), at O(log n) a pick where nginx's form adds to every node's counter
    at each pick (60 us at 1,000 nodes).

    A changed weight rescales the time to the node's next turn, so shares are right over any window that spans the
    change; starting anew at each change (as Dubbo did before 2.6.5) favours whoever stands first.
    """

    def __init__(self) -> None:
        self._queue: list[Turn] = []
        self._virtual_now = 0.0

    def set_weights(self, members: Sequence[Traced], weights: Sequence[float]) -> None:
        now = self._virtual_now
        before = {member.identity: (due_at, member, per_turn) for due_at, _, member, per_turn in self._queue}
        queue: list[Turn] = []
        for order, (member, weight) in enumerate(zip(members, weights, strict=True)):
            per_turn = 1.0 / weight
            turn = before.get(member.identity)
            if turn is None or turn[1] is not member:
                due_at = now + per_turn / 2
            else:
                due_at = now + (turn[0] - now) * per_turn / turn[2]
            queue.append((due_at, order, member, per_turn))
        heapq.heapify(queue)
        self._queue = queue

    def pick(self, now_s: float, dice: Dice, key: int | None, excluded: Collection[str]) -> Traced | None:
        queue = self._queue
        skipped: list[Turn] = []
        while excluded and queue and queue[0][2].identity in excluded:
            skipped.append(heapq.heappop(queue))
        picked: Traced | None = None
        if queue:
            due_at, order, picked, per_turn = queue[0]
            # A node skipped for long keeps its early turn; virtual time never runs backwards for the others.
            if due_at > self._virtual_now:
                self._virtual_now = due_at
            heapq.heapreplace(queue, (due_at + per_turn, order, picked, per_turn))
        for turn in skipped:
            heapq.heappush(queue, turn)
        return picked


class Stride:
    """gRPC's static stride scheduler: rounds over all members, in which each takes part as often as its weight says.

    In round g member i is picked iff (weight * g + i * half) mod M >= M - weight, weights scaled so that the largest is
    M = 65,535: over M rounds that is exactly ``weight`` times, evenly spaced, with no state but one counter. As in
    gRPC's C++ the weights are held within a tenth and ten times their mean, else one giant makes every round a
    search.
    """

    _SCALE = 65_535
    _RATIO = 10.0
    _ROUNDS_EXCLUDED = 4

    def __init__(self) -> None:
        self._sequence: int | None = None

    def set_weights(self, members: Sequence[Traced], weights: Sequence[float]) -> None:
        mean = sum(weights) / len(weights)
        held = [min(mean * self._RATIO, max(mean / self._RATIO, weight)) for weight in weights]
        scale = self._SCALE / max(held)
        self._members = members
        self._weights = [max(1, round(weight * scale)) for weight in held]

    def pick(self, now_s: float, dice: Dice, key: int | None, excluded: Collection[str]) -> Traced | None:
        members, weights, top = self._members, self._weights, self._SCALE
        if self._sequence is None:
            # Anywhere: consumers that start together must not pick together.
            self._sequence = int(dice() * top) * len(members)
        count, half = len(members), top // 2
        # The largest weight takes part in every round, so without exclusions one round is enough.
        for _ in range(self._ROUNDS_EXCLUDED * count):
            at, generation = self._sequence % count, self._sequence // count
            self._sequence += 1
            weight = weights[at]
            if (weight * generation + at * half) % top < top - weight:
                continue
            if not excluded or members[at].identity not in excluded:
                return members[at]
        allowed = [at for at in range(count) if members[at].identity not in excluded]
        if not allowed:
            return None
        return members[allowed[DrawTable(weights[at] for at in allowed).draw(dice)]]
