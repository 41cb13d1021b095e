"""The call that is being served, for the code that serves it.

A context variable and not an argument, so that a handler's signature is the contract's alone. Nested calls read it to
inherit the deadline; handlers read it for attachments and the time that is left.
"""

from __future__ import annotations

from contextvars import ContextVar

from steelyard.model import Invocation

serving: ContextVar[Invocation | None] = ContextVar("steelyard_serving", default=None)


def current_call() -> Invocation | None:
    """The invocation that this task serves, or None outside a handler."""
    return serving.get()
