"""Picking for a call with a key: stay at home unless the plan says otherwise, and then have a second home.

1. The key's home is its owner i on the ring.
2. It is refused iff H2(k, i) / 2**64 < refuse_i. Nested: raising the ratio only adds keys, lowering it returns the
   last ones that left. No coin, for a coin would lose the cache twice.
3. A refused key goes to the accept list by weighted rendezvous, argmin of -ln(u(k, j)) / accept_j (Thaler and
   Ravishankar 1998, with weights by exponential variables): changing one accept weight moves only keys of that node.
   It costs O(list), so long lists are sampled: a key-seeded sequence of ring owners (drawn in proportion to B), each
   taking the key with probability (accept_j / B_j) / max; the product is proportional to accept_j exactly, where a
   rendezvous over a small uniform sample would flatten the weights.
4. Bounded load on top (Mirrokni et al. 2018): a node whose known queue exceeds c times its fair part passes the call on
   along another key-seeded sequence, not to the clockwise neighbour, which would get all of a slow node's calls.

Every walk has a bounded number of steps and ends in a scan, so a pick always terminates.
"""

from __future__ import annotations

from collections.abc import Collection
from math import log, sqrt

from ..hashing import GOLDEN, MASK64, TWO64, mix64
from .member import Member
from .plan import Plan, Spread

LONG_LIST = 8
_SAMPLES = 32
_PROBES = 8
# Different streams for different questions about one key: its refusal must not decide its second home.
_RENDEZVOUS = 0x5851F42D4C957F2D
_SAMPLE = 0x2545F4914F6CDD1D


class KeyedPicker:
    """Reads a plan; holds the bound's settings only."""

    __slots__ = ("_bound", "_sigmas")

    def __init__(self, bound: float, sigmas: float) -> None:
        self._bound = bound
        self._sigmas = sigmas

    def divert(
        self, plan: Plan, spread: Spread, key: int, excluded: Collection[str], open_calls: float
    ) -> Member | None:
        """The second home of a refused key; None when nothing is left."""
        accepting = spread.accepting
        chosen: Member | None = None
        if len(accepting) > LONG_LIST:
            chosen = _sampled(plan, spread, key, excluded)
        elif accepting:
            chosen = _rendezvous(spread, key, excluded)
        if chosen is not None and self.is_within(spread, chosen, open_calls):
            return chosen
        return self.walk(plan, spread, key, excluded, open_calls)

    def is_within(self, spread: Spread, member: Member, open_calls: float) -> bool:
        """Bounded load: queue <= 1 + c * mu + z * sqrt(mu), where mu is the member's share of all open calls. The noise
        term makes room for chance: with mu = 4, c * mu alone is exceeded a fifth of the time."""
        queue = member.queue
        if queue <= 1.0:
            return True
        fair = spread.shares[member.place] * open_calls
        return queue <= 1.0 + self._bound * fair + self._sigmas * sqrt(fair)

    def walk(self, plan: Plan, spread: Spread, key: int, excluded: Collection[str], open_calls: float) -> Member | None:
        """Along the key's own sequence of ring owners to the first that may take the call and is within its bound."""
        ring = plan.ring
        assert ring is not None
        point = key
        for _ in range(_PROBES):
            point = (point + GOLDEN) & MASK64
            place = mix64(point)
            member = plan.members[ring.owner(place)]
            limit = spread.refuse_below[member.place]
            if (
                member.is_blocked
                or (excluded and member.identity in excluded)
                or (limit and mix64(place ^ member.salt) < limit)
            ):
                continue
            if self.is_within(spread, member, open_calls):
                return member
        return least_loaded(plan, spread, excluded)


def least_loaded(plan: Plan, spread: Spread, excluded: Collection[str]) -> Member | None:
    """The smallest queue for its share among all that are left; an ejected node only when nothing else is. O(n): the
    end of every walk, reached when nearly everything is excluded, blocked or full."""
    best: Member | None = None
    best_score = (True, 0.0)
    for member in plan.members:
        if excluded and member.identity in excluded:
            continue
        score = (member.is_blocked, (member.queue + 1.0) / max(spread.shares[member.place], 1e-12))
        if best is None or score < best_score:
            best, best_score = member, score
    return best


def _rendezvous(spread: Spread, key: int, excluded: Collection[str]) -> Member | None:
    best: Member | None = None
    smallest = 0.0
    seed = key ^ _RENDEZVOUS
    for member, weight in spread.accepting:
        if member.is_blocked or (excluded and member.identity in excluded):
            continue
        # +1: a hash of 0 would be log(0).
        distance = -log((mix64(seed ^ member.salt) + 1) / TWO64) / weight
        if best is None or distance < smallest:
            best, smallest = member, distance
    return best


def _sampled(plan: Plan, spread: Spread, key: int, excluded: Collection[str]) -> Member | None:
    """The first of a key-seeded sequence of ring owners that takes the key; after *_SAMPLES* misses, the one
    that came nearest to taking it."""
    ring = plan.ring
    assert ring is not None
    best: Member | None = None
    nearest = 0.0
    point = key ^ _SAMPLE
    for _ in range(_SAMPLES):
        point = (point + GOLDEN) & MASK64
        place = mix64(point)
        at = ring.owner(place)
        below = spread.accept_below[at]
        if not below:
            continue
        member = plan.members[at]
        if member.is_blocked or (excluded and member.identity in excluded):
            continue
        hashed = mix64(place ^ member.salt)
        if hashed < below:
            return member
        if best is None or hashed / below < nearest:
            best, nearest = member, hashed / below
    return best
