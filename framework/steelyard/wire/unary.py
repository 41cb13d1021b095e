"""Plain gRPC, for every client that is not ours: ``/{service}/{method}``.

The body is passed as it is; what it means (protobuf, msgpack) is for whoever knows the method. Whether the invoker will
answer with one body or a stream need not be known beforehand: on the wire a unary reply is a stream of one, so every
method is served by one of gRPC's streaming handlers. Whether the caller streams must be, and *takes_stream* says it.

The service key comes from the path and Dubbo Triple's headers ``tri-service-version`` and ``tri-service-group``. A
client that sends none asks by the bare interface name; the dispatcher resolves that when it is unique.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from enum import Enum
from typing import Any

import grpc
import grpc.aio

from steelyard.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    Overloaded,
    RemoteError,
    RpcError,
    Unavailable,
)
from steelyard.model import Invocation, Reply
from steelyard.security import identity_of_grpc

from .plain import TRAILER, as_header, attachments_of, code_of, service_key, text_of, timeout_s, trailers_of
from .serving import Acceptor

log = logging.getLogger(__name__)


class Streamed(Enum):
    """What a caller sends: one body; items after the body of the other arguments; items and nothing before them."""

    NOTHING = "nothing"
    AFTER_BODY = "after_body"
    ALL = "all"


# As over our own wire, where the arguments beside a stream are always a msgpack array.
_NO_ARGUMENTS = b"\x90"

TakesStream = Callable[[str, str], Streamed]
"""(service key, method) -> Streamed, also for what is not there."""


class PlainHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves every path that nothing else on the server serves."""

    def __init__(self, acceptor: Acceptor, takes_stream: TakesStream | None = None) -> None:
        self._acceptor = acceptor
        self._takes_stream = takes_stream
        self._running = 0

    def service(self, details: Any) -> Any:
        service, slash, method = details.method.lstrip("/").rpartition("/")
        if not slash or not service or not method:
            return None
        metadata = tuple(details.invocation_metadata or ())
        key = service_key(service, metadata)
        streamed = Streamed.NOTHING if self._takes_stream is None else self._takes_stream(key, method)

        async def handle(sent: Any, context: Any) -> None:
            await self._handle(key, method, metadata, sent, streamed, context)

        if streamed is Streamed.NOTHING:
            return grpc.unary_stream_rpc_method_handler(handle)
        return grpc.stream_stream_rpc_method_handler(handle)

    async def _handle(
        self,
        service: str,
        method: str,
        metadata: Iterable[tuple[str, Any]],
        sent: Any,
        streamed: Streamed,
        context: Any,
    ) -> None:
        acceptor = self._acceptor
        body = await _body(sent, streamed)  # uncounted: whoever sends none holds no place and keeps no drain waiting
        met, began_s, deadline_at = acceptor.in_flight.count, time.monotonic(), math.inf
        problem: BaseException | None = None
        self._running += 1
        acceptor.in_flight.count += 1
        if acceptor.load_trailer:
            context.set_trailing_metadata(((TRAILER, acceptor.load_trailer),))
        try:
            remaining_s = context.time_remaining()
            if remaining_s is None:
                remaining_s = timeout_s(metadata)
            deadline_at = math.inf if remaining_s is None else began_s + remaining_s
            if body is None:
                raise InvalidArgument("the call's arguments come first, and the caller's stream was empty")
            invocation = Invocation(
                service=service,
                method=method,
                body=body,
                deadline_at=deadline_at,
                attachments=self._attachments(metadata),
                caller=identity_of_grpc(context.auth_context()),
                stream=None if streamed is Streamed.NOTHING else _items(sent, acceptor.limits.message_bytes),
            )
            self._admit(invocation)
            await _within(_own_timeout_s(context, remaining_s), self._serve(invocation, context))
        except RpcError as error:
            problem = error
            await self._abort(context, error)
        except (asyncio.CancelledError, grpc.aio.AbortError) as error:
            problem = error
            raise
        except Exception as error:
            problem = error
            log.exception("%s/%s raised", service, method)
            await self._abort(context, RemoteError(f"{type(error).__name__}: {error}", may_have_run=True))
        finally:
            self._running -= 1
            acceptor.in_flight.count -= 1
            acceptor.tally.ended(met, began_s, deadline_at, problem)
            acceptor.check_calm()

    async def _serve(self, invocation: Invocation, context: Any) -> None:
        await _answer(await self._acceptor.invoker(invocation), self._acceptor.limits.message_bytes, context)

    def _admit(self, invocation: Invocation) -> None:
        limits = self._acceptor.limits
        if self._acceptor.is_draining:
            raise Unavailable("the provider is draining")
        if self._running > limits.in_flight:
            raise Overloaded(f"{limits.in_flight} plain calls run already")
        if invocation.body is not None and len(invocation.body) > limits.message_bytes:
            raise Overloaded(f"a body of {len(invocation.body)} bytes; the bound is {limits.message_bytes}")
        if invocation.deadline_at <= time.monotonic():
            raise DeadlineExceeded("the deadline passed before the call ran")

    def _attachments(self, metadata: Iterable[tuple[str, Any]]) -> dict[str, str]:
        """Headers with text, without gRPC's own."""
        limits = self._acceptor.limits
        found = attachments_of(metadata)
        if len(found) > limits.attachments:
            raise Overloaded(f"{len(found)} attachments; the bound is attachments={limits.attachments}")
        size = sum(len(key) + len(value) for key, value in found.items())
        if size > limits.attachment_bytes:
            raise Overloaded(f"{size} bytes of attachments; the bound is {limits.attachment_bytes}")
        return found

    async def _abort(self, context: Any, error: RpcError) -> None:
        trailers = trailers_of(error)
        if self._acceptor.load_trailer:
            trailers.append((TRAILER, self._acceptor.load_trailer))
        await context.abort(code_of(error), text_of(error), tuple(trailers))


async def _body(sent: Any, streamed: Streamed) -> bytes | None:
    """The arguments, none where a caller's stream is all there is. None: they should have come, and have not."""
    if streamed is Streamed.NOTHING:
        return sent  # type: ignore[no-any-return]
    if streamed is Streamed.ALL:
        return _NO_ARGUMENTS
    return await anext(sent, None)


async def _items(sent: AsyncIterator[bytes], message_bytes: int) -> AsyncIterator[bytes]:
    async for body in sent:
        if len(body) > message_bytes:
            raise Overloaded(f"an item of {len(body)} bytes; the bound is {message_bytes}", may_have_run=True)
        yield body


def _own_timeout_s(context: Any, remaining_s: float | None) -> float | None:
    """gRPC watches over its own deadline; one that came in Triple's header is ours to keep."""
    return remaining_s if context.time_remaining() is None else None


async def _within(own_s: float | None, serving: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(own_s) as limit:
            await serving
    except TimeoutError:
        if not limit.expired():
            raise
        raise DeadlineExceeded("the deadline passed", may_have_run=True) from None


async def _answer(reply: Reply, message_bytes: int, context: Any) -> None:
    if reply.packing:
        context.set_compression(grpc.Compression.Gzip)  # gRPC's own; it asks what the client takes
    if reply.attachments:
        headers = (as_header(key, value) for key, value in reply.attachments.items())
        await context.send_initial_metadata(tuple(header for header in headers if header is not None))
    if reply.stream is None:
        await context.write(_checked(reply.body, message_bytes))
        return
    try:
        async for body in reply.stream:
            await context.write(_checked(body, message_bytes))
    finally:
        aclose = getattr(reply.stream, "aclose", None)
        if aclose is not None:
            await aclose()


def _checked(body: Any, message_bytes: int) -> bytes:
    if type(body) is bytearray:
        body = bytes(body)  # a large one; gRPC takes nothing else
    if type(body) is not bytes:
        raise InternalError(f"a reply without a body of bytes: {type(body).__name__}", may_have_run=True)
    if len(body) > message_bytes:
        raise Overloaded(f"a reply of {len(body)} bytes; the bound is {message_bytes}", may_have_run=True)
    return body
