"""How the cluster tells the call's span which node it asks.

The span belongs to a filter far outside and the node is chosen far inside. A context variable of our own joins them
and not OpenTelemetry's current span: it is empty when nobody traces, so that asking it costs some 50 ns, and it is
surely the call's own span and not one that the application opened between.
"""

from __future__ import annotations

from contextvars import ContextVar

from opentelemetry.trace import Span

from steelyard_registry.node import Node

from .conventions import ATTEMPTS, NODE, SERVER_ADDRESS, SERVER_PORT


class CallSpan:
    """The span of a call under way, and how many nodes it has asked."""

    __slots__ = ("attempts", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.attempts = 0

    def attempt(self, node: Node) -> None:
        self.attempts += 1
        self.span.set_attributes({NODE: node.identity, SERVER_ADDRESS: node.host, SERVER_PORT: node.port})
        if self.attempts > 1:
            self.span.set_attribute(ATTEMPTS, self.attempts)
            self.span.add_event("steelyard.retry", {NODE: node.identity, ATTEMPTS: self.attempts})


current_call_span: ContextVar[CallSpan | None] = ContextVar("steelyard_call_span", default=None)


def note_attempt(node: Node) -> None:
    """Tell the traced call that it is sent to *node* now. The last node's identity stays on the span; every node after
    the first is an event. Does nothing, in some 50 ns, when the call is not traced."""
    call = current_call_span.get()
    if call is not None:
        call.attempt(node)
