"""What a provider counts of the calls that it serves, over all connections and ways in.

Two readers: load reports tell the rates (gRFC A58 weighs by calls and errors a second), and the answer to a probe tells
how long a call takes at the present number of calls (Prequal). Counted here, where calls arrive and leave, because that
is the only place that sees all of them, those too that never reach a handler.
"""

from __future__ import annotations

import asyncio
import time

from steelyard.balance import LatencyByLoad
from steelyard.errors import RpcError
from steelyard.invoke import outcome_of
from steelyard.model import Outcome

# The caller's own deadline and ours fall on the same moment, and its CANCEL may come first: a call that is cancelled
# with no more than this left has run out of time, and was not given up.
LATE_S = 0.05


class Tally:
    """``calls`` that are over and ``errors`` among them, since the start. An error is what speaks against the node: a
    business exception, or a caller that gave up, does not."""

    __slots__ = ("calls", "errors", "latencies")

    def __init__(self) -> None:
        self.calls = 0
        self.errors = 0
        self.latencies = LatencyByLoad()

    def ended(self, met: int, began_s: float, deadline_at: float, problem: BaseException | None) -> None:
        """A call is over that found *met* others and came at *began_s*."""
        now_s = time.monotonic()
        self.calls += 1
        if problem is not None:
            if _is_error(problem, deadline_at - now_s):
                self.errors += 1
            if isinstance(problem, RpcError) and not problem.may_have_run:
                return  # refused: how quickly that went says nothing about a call
        self.latencies.observe(met, now_s - began_s)

    def refused(self) -> None:
        """A call was turned away by the protocol's bounds."""
        self.calls += 1
        self.errors += 1


def _is_error(problem: BaseException, left_s: float) -> bool:
    if isinstance(problem, RpcError):
        return outcome_of(problem) is Outcome.FAILED
    return left_s <= LATE_S if isinstance(problem, asyncio.CancelledError) else True
