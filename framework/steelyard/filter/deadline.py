"""deadline: calls that are over are not started, and nested calls inherit what is left."""

from __future__ import annotations

from collections.abc import Callable

from steelyard.errors import DeadlineExceeded
from steelyard.invoke import Filter, Invoker, Served, serving
from steelyard.model import Invocation, Reply


def server_deadline(clock: Callable[[], float]) -> Filter:
    """Marks the call as the one this task serves (``current_call``) and drops it when its time is over.

    Running calls are stopped by the listener, which owns their tasks; here only the start is refused. The mark is not
    taken back, because the listener runs each call in a task, and so in a context, of its own: a stream goes on
    reading it after this filter has returned. But it is told when the call is over (``Served``); of a stream the
    dispatcher knows that, which watches its end anyway.
    """

    async def deadline(invocation: Invocation, following: Invoker) -> Reply:
        if invocation.deadline_at <= clock():
            raise DeadlineExceeded(
                f"{invocation.service}.{invocation.method}: the deadline was over before the method could start",
                may_have_run=False,
            )
        served = Served(invocation)
        serving.set(served)
        try:
            reply = await following(invocation)
        except BaseException:
            served.is_over = True
            raise
        served.is_over = reply.stream is None
        return reply

    return deadline
