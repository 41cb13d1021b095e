"""A span for every call, on both sides, joined by the call's attachments.

Client and server differ in little: the client's context goes into the attachments, the server's comes out of them, and
of the statuses fewer are errors to a server than to a client (the conventions' table for gRPC). Two endings are no
error on either side, otherwise than there: a caller that leaves (CANCELLED), and an exception that the service
declares, which is an answer; ``error.type`` names it all the same.

Both filters are plain functions, not coroutines: when nobody traces they hand on what *next* gives and cost no frame.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from steelyard.errors import RpcError
from steelyard.invoke import Bound, Filter, Invoker
from steelyard.model import Invocation, Reply
from steelyard.telemetry import (
    CallSpan,
    Telemetry,
    WatchedStream,
    conventions,
    current_call_span,
    ending_of,
    method_name,
)


def client_tracing(telemetry: Telemetry) -> Filter:
    """A CLIENT span around the call, named ``interface/method``; a stream's span lasts until the stream ends.

    The node that was asked is put on it by ``telemetry.note_attempt``, which the cluster calls, and by errors that
    name theirs.
    """

    def bind(following: Invoker) -> Invoker:
        def trace(invocation: Invocation) -> Awaitable[Reply]:
            if not telemetry.is_tracing:
                return following(invocation)
            return _client_call(telemetry, invocation, following)

        return trace

    return Bound(bind)


def server_tracing(telemetry: Telemetry, address: Callable[[], str] | None = None) -> Filter:
    """A SERVER span around the call, child of the caller's span where the attachments carry one.

    *address* gives this provider's ``host:port`` (a function, since the port is known only once it listens); with it,
    spans name the node.
    """

    def bind(following: Invoker) -> Invoker:
        def trace(invocation: Invocation) -> Awaitable[Reply]:
            if not telemetry.is_tracing:
                return following(invocation)
            return _server_call(telemetry, invocation, following, address)

        return trace

    return Bound(bind)


async def _client_call(telemetry: Telemetry, invocation: Invocation, following: Invoker) -> Reply:
    span = telemetry.tracer.start_span(
        method_name(invocation), kind=SpanKind.CLIENT, attributes=_attributes(invocation)
    )
    context = set_span_in_context(span)
    call = current_call_span.set(CallSpan(span))
    token = attach(context)
    try:
        sent = msgspec.structs.replace(invocation, attachments=telemetry.inject(invocation.attachments))
        reply = await following(sent)
    except BaseException as error:
        _end(span, SpanKind.CLIENT, invocation, error)
        raise
    finally:
        detach(token)
        current_call_span.reset(call)
    return _watched(reply, span, SpanKind.CLIENT, invocation, context)


async def _server_call(
    telemetry: Telemetry, invocation: Invocation, following: Invoker, address: Callable[[], str] | None
) -> Reply:
    parent = telemetry.extract(invocation.attachments)
    attributes = _attributes(invocation)
    if address is not None:
        attributes.update(_address_attributes(invocation.service, address()))
    span = telemetry.tracer.start_span(
        method_name(invocation), context=parent, kind=SpanKind.SERVER, attributes=attributes
    )
    context = set_span_in_context(span, parent)
    token = attach(context)
    try:
        reply = await following(invocation)
    except BaseException as error:
        _end(span, SpanKind.SERVER, invocation, error)
        raise
    finally:
        detach(token)
    return _watched(reply, span, SpanKind.SERVER, invocation, context)


def _watched(reply: Reply, span: Span, kind: SpanKind, invocation: Invocation, context: Context) -> Reply:
    if reply.stream is None:
        _end(span, kind, invocation, None)
        return reply
    end = partial(_end, span, kind, invocation)
    return msgspec.structs.replace(reply, stream=WatchedStream(reply.stream, end, context))


def _end(span: Span, kind: SpanKind, invocation: Invocation, error: BaseException | None) -> None:
    ending = ending_of(invocation, error)
    span.set_attribute(conventions.RPC_RESPONSE_STATUS_CODE, ending.status.name)
    span.set_attribute(conventions.OUTCOME, ending.outcome.value)
    if isinstance(error, RpcError) and error.node:
        span.set_attribute(conventions.NODE, error.node)
    if error is not None and ending.error_type is not None:
        span.set_attribute(conventions.ERROR_TYPE, ending.error_type)
        if not isinstance(error, RpcError):
            span.record_exception(error)  # its traceback is news; that of an RpcError is the framework's own
        if not ending.is_answer and (kind is SpanKind.CLIENT or ending.status in conventions.SERVER_FAULTS):
            span.set_status(Status(StatusCode.ERROR, error.message if isinstance(error, RpcError) else str(error)))
    span.end()


def _attributes(invocation: Invocation) -> dict[str, Any]:
    return {
        conventions.RPC_SYSTEM_NAME: conventions.SYSTEM,
        conventions.RPC_METHOD: method_name(invocation),
        conventions.SERVICE: invocation.service,
    }


def _address_attributes(service: str, address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    attributes: dict[str, Any] = {
        conventions.NODE: f"{service}@{address}",
        conventions.SERVER_ADDRESS: host.removeprefix("[").removesuffix("]"),
    }
    if port.isdigit():
        attributes[conventions.SERVER_PORT] = int(port)
    return attributes
