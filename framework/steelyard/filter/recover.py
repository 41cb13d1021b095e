"""recover: watches what is sent, and so decides when more may be.

It stands inside ``degrade`` and around failover: it sees every call that was let through, probes among them, once, and
as the caller would: after retries and hedges. Degrading ends only by what is seen here. A degraded share halves in a
period whose calls succeeded and stays in one whose did not; a priority that is degraded altogether sends one probe a
second for this reason alone; the queue is measured by what is under way and what is answered.

It is a position of its own, and not a part of ``degrade``, because the two see different calls: degrade answers for all
that were asked, recover judges by those that were sent.
"""

from __future__ import annotations

from collections.abc import Callable

from steelyard.errors import RpcError
from steelyard.guard import Protection
from steelyard.invoke import Bound, Filter, Invoker, outcome_of
from steelyard.model import Invocation, Outcome, Reply

_SAYS = {Outcome.OK: True, Outcome.FAILED: False, Outcome.IGNORED: None}


def recover(protection: Protection, clock: Callable[[], float]) -> Filter:
    """*clock* gives seconds (monotonic), the same as in *protection*'s other calls. A stream is over, for this purpose,
    when it opens."""

    def bind(following: Invoker) -> Invoker:
        async def watch(invocation: Invocation) -> Reply:
            method = invocation.method
            started_s = clock()
            protection.started(method, started_s)
            is_ok: bool | None = None
            try:
                reply = await following(invocation)
                is_ok = True
            except RpcError as error:
                is_ok = _SAYS[outcome_of(error)]
                raise
            finally:
                now_s = clock()
                protection.ended(method, now_s, is_ok=is_ok, latency_s=now_s - started_s)
            return reply

        return watch

    return Bound(bind)
