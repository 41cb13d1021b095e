"""How much of large bodies may be under way on a connection.

The kernel takes in whatever it is given, and gRPC more than that, and a small frame stands behind it: at both ends of a
full socket there can be a millisecond's worth of somebody's tensors. So a large body does not go as fast as it would be
taken. A PING after a part asks, and its PONG says that the peer's program has read all before it: no more than a few
parts are beyond that. It is no bound of safety (that is ``WireLimits``), and needs nothing of the peer but what every
peer does.

*Busy* is a connection that carries small frames too: there one part is under way at a time. The others, and a far
peer, get what keeps the way full.
"""

from __future__ import annotations

import math

# Under way at a time, while small frames flow and while none do. Small calls beside 1 MiB calls over tcp, p99 to that
# of small calls alone: 2.4 with 64 KiB, 2.4 with 32 KiB in parts of 32 KiB (and two thirds of the large calls), 2.7
# with 128 KiB, and 3.4 where the kernel alone decides.
BUSY_BYTES = 64 * 1024
# So many of the large parts of a calm connection.
CALM_PARTS = 4
# So long after the last small frame a connection is calm.
CALM_AFTER_S = 0.05
# A peer that is far is owed as much as is under way at this rate: the wait for it is small beside the way itself.
_FAR_BYTES_PER_S = 125e6
_MOST_BYTES = 4 * 1024 * 1024


class Pace:
    """``sent`` and ``asks`` when something leaves, ``answered`` at a PONG; ``has_room``: may more of a body leave?"""

    __slots__ = (
        "_asked_at_s",
        "_asked_bytes",
        "_calm_bytes",
        "_far_bytes",
        "_least_s",
        "_small_at_s",
        "_under_way_bytes",
        "is_calm",
    )

    def __init__(self) -> None:
        self.is_calm = False
        self._calm_bytes = 0
        self._small_at_s = -math.inf
        self._under_way_bytes = 0
        self._asked_bytes = 0  # what the next PONG stands for; 0: nobody has asked
        self._asked_at_s = 0.0
        self._least_s = math.inf  # the shortest way there and back so far
        self._far_bytes = 0.0

    @property
    def has_room(self) -> bool:
        bound = self._calm_bytes if self.is_calm else BUSY_BYTES
        return self._under_way_bytes < max(bound, self._far_bytes)

    def look(self, now_s: float, *, has_small: bool, calm_bytes: int) -> None:
        """Before something leaves. *has_small*: small frames do, or did since the last look. *calm_bytes*: so much may
        be under way on a calm connection."""
        self._calm_bytes = calm_bytes
        if has_small:
            self._small_at_s = now_s
        self.is_calm = now_s - self._small_at_s > CALM_AFTER_S

    def sent(self, size: int) -> None:
        self._under_way_bytes += size

    def asks(self, now_s: float) -> bool:
        """Whether a PING is due now."""
        if self._asked_bytes or not self._under_way_bytes:
            return False
        self._asked_bytes, self._asked_at_s = self._under_way_bytes, now_s
        return True

    def answered(self, now_s: float) -> None:
        """A PONG has come. One that answers a heartbeat is taken for ours, and ours then for nobody's."""
        if self._asked_bytes:
            if now_s - self._asked_at_s < self._least_s:
                self._least_s = now_s - self._asked_at_s
                self._far_bytes = min(_FAR_BYTES_PER_S * self._least_s, _MOST_BYTES)
            self._under_way_bytes -= self._asked_bytes
            self._asked_bytes = 0
