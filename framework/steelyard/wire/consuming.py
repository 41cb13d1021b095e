"""The consumer's end of a connection, at work: futures for calls, streams for streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from steelyard.errors import RpcError
from steelyard.model import Invocation, LoadReport

from .carrier import Carrier
from .connection import Connection
from .limits import WireLimits
from .mux import Answered, ConsumerSide, Draining, Ended, Failed, ItemArrived, Loaded, OpenCall, Opened
from .socket_carrier import Link
from .streaming import ReplyStream, StreamBuffer


class ConsumerConnection(Connection):
    """One future a call and no task; ``token`` of an open call is that future, and of a stream its buffer."""

    def __init__(
        self,
        carrier: Carrier | Link,
        limits: WireLimits,
        *,
        node: str,
        identity: str,
        on_load: Callable[[LoadReport], None],
        on_draining: Callable[[], None],
        on_ended: Callable[[str], None],
    ) -> None:
        self._side = side = ConsumerSide(limits, now_s=time.monotonic(), identity=identity, node=node)
        super().__init__(carrier, side)
        self._on_load = on_load
        self._on_draining = on_draining
        self._on_ended = on_ended
        self._is_welcome: asyncio.Future[None] = self._loop.create_future()

    @property
    def open_calls(self) -> int:
        return self._side.open_calls

    @property
    def peer_identity(self) -> str:
        """What the provider says that it is; empty when it says nothing."""
        return self._side.peer.identity if self._side.peer is not None else ""

    @property
    def is_draining(self) -> bool:
        return self._side.is_draining

    async def welcomed(self) -> None:
        """Returns when the provider's HELLO has come, or the connection has ended without it."""
        await self._is_welcome

    def submit(self, invocation: Invocation) -> OpenCall:
        """Sends a call; its answer comes to the future ``.token``. Raises the RpcError of a refused call."""
        call = self._side.call(self._loop.create_future(), invocation, time.monotonic())
        if self._is_idle:
            self._wake()
        if invocation.deadline_at < self._armed_at:
            self._arm()
        return call

    def abandon(self, call: OpenCall) -> None:
        """The caller no longer wants *call*. Harmless when it is over."""
        self._side.cancel(call)
        self._wake()

    def consumed(self, call: OpenCall, body: bytes) -> None:
        self._side.consumed(call, body)
        if self._outbox.is_waiting:
            self._wake()

    def _handle(self, data: bytes | memoryview, now_s: float) -> None:
        for event in self._side.receive(data, now_s):
            if type(event) is Answered:
                future = event.call.token
                if not future.done():
                    future.set_result(event.reply)
            else:
                self._other(event)
        if self._side.peer is not None and not self._is_welcome.done():
            self._is_welcome.set_result(None)

    def _other(self, event: Any) -> None:
        if isinstance(event, ItemArrived | Ended):
            buffer = event.call.token
            if type(buffer) is not StreamBuffer:
                return  # nobody wanted the stream any more when it was opened
            if isinstance(event, ItemArrived):
                buffer.put(event.body)
            else:
                buffer.end()
        elif isinstance(event, Failed):
            _fail(event.call.token, event.error)
        elif isinstance(event, Opened):
            self._open(event)
        elif isinstance(event, Loaded):
            self._on_load(event.report)
        elif isinstance(event, Draining):
            self._on_draining()

    def _open(self, event: Opened) -> None:
        call, future = event.call, event.call.token
        if future.done():
            return  # the caller was cancelled; its task runs soon and abandons the call
        call.token = buffer = StreamBuffer()
        future.set_result(msgspec.structs.replace(event.reply, stream=ReplyStream(self, call, buffer)))

    def _expire(self, now_s: float) -> None:
        for event in self._side.expire(now_s):
            _fail(event.call.token, event.error)

    def _ended(self, reason: str) -> None:
        for event in self._side.lost(reason):
            _fail(event.call.token, event.error)
        if not self._is_welcome.done():
            self._is_welcome.set_result(None)
        self._on_ended(reason)


def _fail(token: Any, error: RpcError) -> None:
    if type(token) is StreamBuffer:
        token.end(error)
    elif not token.done():
        token.set_exception(error)
