"""Streams as their readers see them: a server stream at the consumer, a client stream at the handler.

Two objects, because the connection must not keep a stream alive that its reader has dropped: the connection holds the
buffer, the reader holds the ReplyStream, and when that is collected the provider hears a CANCEL.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from .mux import OpenCall

if TYPE_CHECKING:
    from .consuming import ConsumerConnection


class StreamBuffer:
    """What has arrived and was not read yet; the mux's credit bounds it."""

    __slots__ = ("error", "is_over", "items", "waiter")

    def __init__(self) -> None:
        self.items: deque[bytes] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.is_over = False
        self.error: BaseException | None = None

    def put(self, body: bytes) -> None:
        self.items.append(body)
        self._wake()

    def end(self, error: BaseException | None = None) -> None:
        self.is_over = True
        self.error = error
        self._wake()

    def _wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class ReceivedStream:
    """What has arrived, for one reader. *consumed* is told of each body that was read."""

    __slots__ = ("_buffer", "_consumed", "_loop")

    def __init__(self, buffer: StreamBuffer, consumed: Callable[[bytes], None]) -> None:
        self._buffer = buffer
        self._consumed = consumed
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        buffer = self._buffer
        while not buffer.items:
            if buffer.is_over:
                error, buffer.error = buffer.error, None
                if error is not None:
                    raise error
                raise StopAsyncIteration
            if buffer.waiter is not None:
                raise RuntimeError("a stream has one reader")
            buffer.waiter = self._loop.create_future()
            try:
                await buffer.waiter
            except asyncio.CancelledError:
                self._left()
                raise
            finally:
                buffer.waiter = None
        body = buffer.items.popleft()
        self._consumed(body)
        return body

    def _left(self) -> None:
        """The reader was cancelled while it waited."""


class ReplyStream(ReceivedStream):
    """An async iterator of the bodies of a server stream.

    Raises the RpcError that ended the stream after the bodies that came before it. ``aclose``, cancelling the
    reader, or dropping the iterator tells the provider to stop.
    """

    __slots__ = ("_call", "_connection")

    def __init__(self, connection: ConsumerConnection, call: OpenCall, buffer: StreamBuffer) -> None:
        super().__init__(buffer, lambda body: connection.consumed(call, body))
        self._connection = connection
        self._call = call

    async def aclose(self) -> None:
        """Stops the stream; later reads end at once."""
        self._left()

    def _left(self) -> None:
        if not self._buffer.is_over:
            self._buffer.end()
            self._connection.abandon(self._call)
        self._buffer.items.clear()
        self._buffer.error = None

    def __del__(self) -> None:
        # May run in any thread, at any moment, and after the loop: only hand it over.
        if not self._buffer.is_over and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._connection.abandon, self._call)
            except RuntimeError:
                pass  # the loop closed between the two lines
