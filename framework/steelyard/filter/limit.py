"""limit: more calls of a method than can be served in good time are refused before anything is spent on them.

A refusal that comes at once costs a few microseconds, is known not to have run, and tells when to try again; one that
comes after a wait in a long queue has cost the caller its deadline and everybody else the place. So this stands before
the codec: a call that is shed is not even decoded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar

import msgspec

from steelyard.errors import DeadlineExceeded, Overloaded
from steelyard.guard import ConcurrencyLimit, Ending
from steelyard.invoke import Filter, Invoker
from steelyard.model import Invocation, Reply
from steelyard.telemetry import WatchedStream

Limits = Mapping[tuple[str, str], ConcurrencyLimit]
"""Limits by (service key, method). A method that is not there has none."""


class RunTime:
    """How long the handler of one call ran, told from inside by whoever sees it begin. ``seconds`` None: not known."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds: float | None = None


run_time: ContextVar[RunTime | None] = ContextVar("steelyard_run_time", default=None)
"""The present call's, for whoever runs its handler; None where nobody wants to know."""


def server_limit(limits: Limits, clock: Callable[[], float]) -> Filter:
    """Lets in what each method's law admits; the rest is RESOURCE_EXHAUSTED with ``retry_after_s``. A stream counts for
    as long as it is open, and says nothing of the latency: its reader sets the pace."""

    def limit(invocation: Invocation, following: Invoker) -> Awaitable[Reply]:
        law = limits.get((invocation.service, invocation.method))
        return following(invocation) if law is None else _limited(law, clock, invocation, following)

    return limit


async def _limited(
    law: ConcurrencyLimit, clock: Callable[[], float], invocation: Invocation, following: Invoker
) -> Reply:
    if not law.admits(invocation.priority):
        raise Overloaded(
            f"{invocation.service}.{invocation.method}: {law.in_flight} calls are under way and the limit is now "
            f"{law.limit}; priority {invocation.priority} is refused",
            retry_after_s=law.retry_after_s(),
        )
    ran = RunTime()
    run_time.set(ran)
    mark, began_s = law.began(invocation.priority), clock()
    ending = Ending.IGNORED
    is_open = False
    try:
        reply = await following(invocation)
        if reply.stream is None:
            ending = Ending.SUCCESS
            return reply
        is_open = True
        watched = WatchedStream(reply.stream, lambda _: law.ended(mark, Ending.IGNORED, 0.0, clock()))
        return msgspec.structs.replace(reply, stream=watched)
    except (DeadlineExceeded, Overloaded):
        ending = Ending.DROPPED
        raise
    except asyncio.CancelledError:
        # The listener stops a call at its deadline; a caller who left says nothing of how full it is here.
        ending = Ending.DROPPED if clock() >= invocation.deadline_at else Ending.IGNORED
        raise
    finally:
        now_s = clock()
        if not is_open:
            law.ended(mark, ending, now_s - began_s, now_s, ran_s=ran.seconds)
