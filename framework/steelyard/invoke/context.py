"""The call that is being served, for the code that serves it.

A context variable and not an argument, so that a handler's signature is the contract's alone. Nested calls read it to
inherit the deadline; handlers read it for attachments and the time that is left.

Tasks copy their maker's context, and rightly: the calls of a ``gather`` inside of a handler are that handler's. But a
task that is left running when the call has ended works for nobody who waits, and the deadline of a call that is over
would cut it off without a word. So the mark knows when its call has ended, and binds nobody from then on.
"""

from __future__ import annotations

from contextvars import ContextVar

import msgspec

from steelyard.model import Invocation


class Served(msgspec.Struct, eq=False):
    """A call that is served. ``is_over``: it has been answered, or its stream has ended."""

    invocation: Invocation
    is_over: bool = False


serving: ContextVar[Served | None] = ContextVar("steelyard_serving", default=None)


def current_call() -> Invocation | None:
    """The invocation that this task serves, or served when it was started; None outside a handler."""
    served = serving.get()
    return None if served is None else served.invocation
