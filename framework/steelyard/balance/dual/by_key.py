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
from .plan import Plan, SecondHomes, Spread

_SAMPLES = 64
_PROBES = 8
# Different streams for different questions about one key: its refusal must not decide its second home.
_RENDEZVOUS = 0x5851F42D4C957F2D
_SAMPLE = 0x2545F4914F6CDD1D
# A sampling step is a step of a linear congruential generator (Knuth's MMIX) seeded by a mixed key: its high bits are
# the position, and a multiplication of the folded state is the lot. A third of the time of mixing at every step.
_STEP, _SHIFT, _LOT = 6364136223846793005, 1442695040888963407, 0xD1342543DE82EF95
TWO48 = float(1 << 48)


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
        homes = plan.homes
        chosen: Member | None = None
        if homes.ring is not None:
            chosen = _sampled(plan, homes, key, excluded)
        elif homes.listed:
            chosen = _rendezvous(homes, key, excluded)
        if chosen is not None and (chosen.queue <= 1.0 or self.is_within(spread, chosen, open_calls)):
            return chosen
        return self.walk(plan, spread, key, excluded, open_calls)

    def is_within(self, spread: Spread, member: Member, open_calls: float) -> bool:
        """Bounded load: queue <= 1 + c * mu + z * sqrt(mu), where mu is the member's share of all open calls. The noise
        term makes room for chance: with mu = 4, c * mu alone is exceeded a fifth of the time."""
        place = member.place
        fair = spread.base[place] * spread.ratio[place] * open_calls
        if fair < 0.0:  # a reply told of more calls than floats keep beside others, and the sum lost those
            fair = 0.0
        return member.queue <= 1.0 + self._bound * fair + self._sigmas * sqrt(fair)

    def walk(self, plan: Plan, spread: Spread, key: int, excluded: Collection[str], open_calls: float) -> Member | None:
        """Along the key's own sequence of ring owners to the first that may take the call and is within its bound."""
        ring = plan.ring
        assert ring is not None
        point = key
        for _ in range(_PROBES):
            point = (point + GOLDEN) & MASK64
            place = mix64(point)
            at = ring.owner(place)
            member = plan.members[at]
            if member.is_blocked or (excluded and member.identity in excluded):
                continue
            ratio = spread.ratio[at]
            if ratio < 1.0 and mix64(place ^ member.salt) >> 16 < (1.0 - ratio) * TWO48:
                continue
            if member.queue <= 1.0 or self.is_within(spread, member, open_calls):
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
        share = spread.base[member.place] * spread.ratio[member.place]
        score = (member.is_blocked, (member.queue + 1.0) / max(share, 1e-12))
        if best is None or score < best_score:
            best, best_score = member, score
    return best


def _rendezvous(homes: SecondHomes, key: int, excluded: Collection[str]) -> Member | None:
    best: Member | None = None
    smallest = 0.0
    seed = key ^ _RENDEZVOUS
    for member, weight in homes.listed:
        if member.is_blocked or (excluded and member.identity in excluded):
            continue
        # +1: a hash of 0 would be log(0).
        distance = -log((mix64(seed ^ member.salt) + 1) / TWO64) / weight
        if best is None or distance < smallest:
            best, smallest = member, distance
    return best


def _sampled(plan: Plan, homes: SecondHomes, key: int, excluded: Collection[str]) -> Member | None:
    """The first of a key-seeded sequence of owners that takes the key; after *_SAMPLES* misses, the one that came
    nearest to taking it."""
    assert homes.ring is not None
    owner, chance, members = homes.ring.owner, homes.chance, plan.members
    best: Member | None = None
    nearest = 0.0
    state = mix64(key ^ _SAMPLE)
    for _ in range(_SAMPLES):
        state = (state * _STEP + _SHIFT) & MASK64
        at = owner(state)
        below = chance[at]
        if not below:
            continue
        member = members[at]
        if member.is_blocked or (excluded and member.identity in excluded):
            continue
        lot = ((state ^ (state >> 29)) * _LOT & MASK64) >> 16
        if lot < below:
            return member
        if best is None or lot / below < nearest:
            best, nearest = member, lot / below
    return best
