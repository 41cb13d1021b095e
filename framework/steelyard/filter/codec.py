"""codec: values on the user's side of this filter, encoded bodies on the wire's side.

It is a filter, and not a part of the proxy or of the wire, so that the stack shows where the change happens: filters
outside see arguments and results, filters inside see bytes, and a retry inside never encodes twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from steelyard.codec import MethodCodec, Unpackable, text_of, unpacked
from steelyard.errors import InternalError, InvalidArgument, RemoteError, RpcError
from steelyard.invoke import Bound, Filter, Invoker
from steelyard.model import Invocation, Packed, Reply

log = logging.getLogger(__name__)

Codecs = Mapping[tuple[str, str], MethodCodec]
"""Codecs by (service key, method)."""


def client_codec(codecs: Codecs) -> Filter:
    """Encodes arguments, decodes replies, and raises declared exceptions as themselves."""

    def bind(following: Invoker) -> Invoker:
        async def codec(invocation: Invocation) -> Reply:
            method = codecs[invocation.service, invocation.method]
            spec = invocation.spec
            if spec is None or spec.stream_at is None:
                sent = _encoded(invocation, method.encode_arguments(invocation.args))
            else:
                sent = _with_items(invocation, method, spec.stream_at)
            try:
                reply = await following(sent)
            except RemoteError as error:
                raise rebuilt(method, error) from error.__cause__
            body: Any = reply.body
            if body is not None:
                if type(body) is Packed:
                    body = await unpacked_reply(body)
                return Reply(method.decode_result(body), None, None, reply.attachments, reply.in_flight)
            if reply.stream is not None:
                stream = MappedStream(reply.stream, method.decode_result, lambda error: rebuilt(method, error))
                return Reply(stream=stream, attachments=reply.attachments)
            return reply

        return codec

    return Bound(bind)


def server_codec(codecs: Codecs) -> Filter:
    """Decodes arguments, encodes replies, and turns what a handler raises into an error that can travel."""

    async def codec(invocation: Invocation, following: Invoker) -> Reply:
        method = codecs[invocation.service, invocation.method]
        body: Any = invocation.body
        if type(body) is Packed:
            body = await _unpacked(body, InvalidArgument)
        args = method.decode_arguments(body or b"")
        spec = invocation.spec
        if spec is not None and spec.stream_at is not None:
            args = (*args[: spec.stream_at], _items_of(invocation, method), *args[spec.stream_at :])
        received = _decoded(invocation, args)
        try:
            reply = await following(received)
            if reply.stream is not None:
                stream = MappedStream(
                    reply.stream,
                    lambda value: encoded(method, value),
                    lambda error: _broken(method, error, invocation),
                )
                return Reply(None, None, stream, reply.attachments, None, "" if spec is None else spec.compress)
            answer = encoded(method, reply.value)
            return Reply(None, answer, None, reply.attachments, None, "" if spec is None else spec.compress)
        except RpcError:
            raise  # a refusal on the way, or the handler's own choice of a status
        except BaseException as error:
            if ends_the_task(error):
                raise
            raise travelling(method, error, invocation) from error

    return codec


async def unpacked_reply(body: Packed) -> bytes:
    """Raises InternalError for what cannot be unpacked."""
    return await _unpacked(body, InternalError)


async def _unpacked(body: Packed, kind: type[RpcError]) -> bytes:
    """Raises *kind* for what cannot be unpacked: it is the fault of whoever has sent it."""
    try:
        return await unpacked(body)
    except Unpackable as error:
        raise kind(str(error)) from error


class MappedStream(AsyncIterator[Any]):
    """A stream whose items and errors are translated one by one; closing it closes what it wraps."""

    __slots__ = ("_convert", "_stream", "_translate")

    def __init__(
        self,
        stream: AsyncIterator[Any],
        convert: Callable[[Any], Any],
        translate: Callable[[BaseException], BaseException],
    ) -> None:
        self._stream = stream
        self._convert = convert
        self._translate = translate

    async def __anext__(self) -> Any:
        try:
            item = await anext(self._stream)
            if type(item) is Packed:
                item = await _unpacked(item, InternalError)
            return self._convert(item)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            translated = self._translate(error)
            if translated is error:
                raise
            raise translated from error

    async def aclose(self) -> None:
        close: Callable[[], Awaitable[None]] | None = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()


class SentItems(AsyncIterator[bytes]):
    """A caller's stream, encoded item by item. ``is_started``: something of it was taken, so that the call cannot be
    made a second time."""

    __slots__ = ("_codec", "_items", "is_started")

    def __init__(self, items: AsyncIterator[Any], codec: MethodCodec) -> None:
        self._items = items
        self._codec = codec
        self.is_started = False

    async def __anext__(self) -> bytes:
        self.is_started = True
        item = await anext(self._items)
        try:
            return self._codec.encode_result(item)
        except InternalError as error:
            raise InvalidArgument(f"an item of the caller's stream cannot be sent: {error.message}") from error

    async def aclose(self) -> None:
        close: Callable[[], Awaitable[None]] | None = getattr(self._items, "aclose", None)
        if close is not None:
            await close()


def _item_codec(method: MethodCodec) -> MethodCodec:
    """A method without a contract has one codec for everything."""
    items: MethodCodec = getattr(method, "items", method)
    return items


def _with_items(invocation: Invocation, method: MethodCodec, at: int) -> Invocation:
    args = invocation.args
    body = method.encode_arguments((*args[:at], *args[at + 1 :]))
    return msgspec.structs.replace(_encoded(invocation, body), stream=SentItems(aiter(args[at]), _item_codec(method)))


def _items_of(invocation: Invocation, method: MethodCodec) -> AsyncIterator[Any]:
    if invocation.stream is None:
        raise InvalidArgument(f"{invocation.service}.{invocation.method} takes a stream, and the caller sends none")
    return MappedStream(invocation.stream, _item_codec(method).decode_result, _misread)


def _misread(error: BaseException) -> BaseException:
    """An item that is not what the contract says is the caller's fault."""
    if isinstance(error, InternalError):
        return InvalidArgument(f"an item of the caller's stream: {error.message}", may_have_run=True)
    return error


def _encoded(invocation: Invocation, body: bytes) -> Invocation:
    return Invocation(
        invocation.service,
        invocation.method,
        invocation.args,
        body,
        invocation.deadline_at,
        invocation.attachments,
        invocation.priority,
        invocation.key,
        invocation.spec,
    )


def _decoded(invocation: Invocation, args: tuple[Any, ...]) -> Invocation:
    return Invocation(
        invocation.service,
        invocation.method,
        args,
        None,
        invocation.deadline_at,
        invocation.attachments,
        invocation.priority,
        invocation.key,
        invocation.spec,
        None,
        invocation.caller,
    )


def rebuilt(method: MethodCodec, error: BaseException) -> BaseException:
    """The exception that the contract declares, where *error* carries one; else *error* itself."""
    if isinstance(error, RemoteError) and error.details is not None:
        return method.decode_exception(error.details) or error
    return error


def encoded(method: MethodCodec, value: Any) -> bytes:
    """What a handler returned, as bytes. Raises RpcError when it cannot be sent."""
    try:
        return method.encode_result(value)
    except RpcError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise InternalError(f"the handler's result cannot be sent: {error}", may_have_run=True) from error


def ends_the_task(error: BaseException) -> bool:
    """Whether *error* is meant for the task that runs the handler, and not the handler's own.

    A handler that calls ``sys.exit`` must not end its provider with all other calls, and one that awaits something
    cancelled has failed: only a task that is itself being cancelled has been told to stop.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)


def travelling(method: MethodCodec, error: BaseException, invocation: Invocation) -> RpcError:
    """What a handler raised, as an RpcError."""
    details = method.encode_exception(error)
    if details is None:
        log.error("%s.%s raised", invocation.service, invocation.method, exc_info=error)
    return RemoteError(f"{type(error).__name__}: {text_of(error)}", may_have_run=True, details=details)


def _broken(method: MethodCodec, error: BaseException, invocation: Invocation) -> BaseException:
    """What ended a stream. Its call has been answered, so it has run, whatever the error says of another one."""
    if ends_the_task(error):
        return error
    if not isinstance(error, RpcError):
        return travelling(method, error, invocation)
    error.may_have_run = True
    return error
