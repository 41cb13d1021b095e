"""Plain gRPC, for every client that is not ours: ``/{service}/{method}``, unary or server-streaming.

The body is passed as it is; what it means (protobuf, msgpack) is for whoever knows the method. A handler cannot know
beforehand whether the invoker will answer with one body or a stream, and need not: on the wire a unary reply is a
stream of one, so every method is served by gRPC's server-streaming handler.

The service key comes from the path and Dubbo Triple's headers ``tri-service-version`` and ``tri-service-group``. A
client that sends none asks by the bare interface name; the dispatcher resolves that when it is unique.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio

from steelyard.errors import DeadlineExceeded, InternalError, Overloaded, RemoteError, RpcError, Unavailable
from steelyard.model import Invocation, Reply
from steelyard.security import identity_of_grpc
from steelyard_registry.node import ServiceKey

from .serving import Acceptor

log = logging.getLogger(__name__)

_VERSION = "tri-service-version"
_GROUP = "tri-service-group"
_HIDDEN = frozenset((_VERSION, _GROUP, "user-agent", "content-type", "te", "accept-encoding"))
MESSAGE_CHARACTERS = 2048
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class PlainHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Serves every path that nothing else on the server serves."""

    def __init__(self, acceptor: Acceptor) -> None:
        self._acceptor = acceptor
        self._running = 0

    def service(self, details: Any) -> Any:
        service, slash, method = details.method.lstrip("/").rpartition("/")
        if not slash or not service or not method:
            return None
        metadata = tuple(details.invocation_metadata or ())

        async def handle(body: bytes, context: Any) -> None:
            await self._handle(service, method, metadata, body, context)

        return grpc.unary_stream_rpc_method_handler(handle)

    async def _handle(
        self, service: str, method: str, metadata: Iterable[tuple[str, Any]], body: bytes, context: Any
    ) -> None:
        acceptor = self._acceptor
        met, began_s, deadline_at = acceptor.in_flight.count, time.monotonic(), math.inf
        problem: BaseException | None = None
        self._running += 1
        acceptor.in_flight.count += 1
        try:
            remaining_s = context.time_remaining()
            deadline_at = math.inf if remaining_s is None else began_s + remaining_s
            invocation = Invocation(
                service=_service_key(service, metadata),
                method=method,
                body=body,
                deadline_at=deadline_at,
                attachments=self._attachments(metadata),
                caller=identity_of_grpc(context.auth_context()),
            )
            self._admit(invocation)
            await _answer(await acceptor.invoker(invocation), acceptor.limits.message_bytes, context)
        except RpcError as error:
            problem = error
            await _abort(context, error)
        except (asyncio.CancelledError, grpc.aio.AbortError) as error:
            problem = error
            raise
        except Exception as error:
            problem = error
            log.exception("%s/%s raised", service, method)
            await _abort(context, RemoteError(f"{type(error).__name__}: {error}"))
        finally:
            self._running -= 1
            acceptor.in_flight.count -= 1
            acceptor.tally.ended(met, began_s, deadline_at, problem)
            acceptor.check_calm()

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
        found = {
            key: value
            for key, value in metadata
            if type(value) is str and key not in _HIDDEN and not key.startswith((":", "grpc-"))
        }
        if len(found) > limits.attachments:
            raise Overloaded(f"{len(found)} attachments; the bound is attachments={limits.attachments}")
        size = sum(len(key) + len(value) for key, value in found.items())
        if size > limits.attachment_bytes:
            raise Overloaded(f"{size} bytes of attachments; the bound is {limits.attachment_bytes}")
        return found


async def _answer(reply: Reply, message_bytes: int, context: Any) -> None:
    if reply.attachments:
        await context.send_initial_metadata(_headers(reply))
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
    if type(body) is not bytes:
        raise InternalError(f"a reply without a body of bytes: {type(body).__name__}", may_have_run=True)
    if len(body) > message_bytes:
        raise Overloaded(f"a reply of {len(body)} bytes; the bound is {message_bytes}", may_have_run=True)
    return body


def _headers(reply: Reply) -> tuple[tuple[str, str], ...]:
    """Attachments that gRPC can carry: its keys are lower-case and its values printable ASCII."""
    return tuple(
        (key.lower(), value)
        for key, value in reply.attachments.items()
        if key.isascii() and value.isascii() and value.isprintable() and not key.endswith("-bin")
    )


async def _abort(context: Any, error: RpcError) -> None:
    text = str(error.message)[:MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()
    await context.abort(_CODES.get(int(error.status), grpc.StatusCode.UNKNOWN), text)


def _service_key(interface: str, metadata: Iterable[tuple[str, Any]]) -> str:
    version = group = ""
    for key, value in metadata:
        if key == _VERSION and type(value) is str:
            version = value
        elif key == _GROUP and type(value) is str:
            group = value
    return str(ServiceKey(interface=interface, version=version, group=group)) if version or group else interface
