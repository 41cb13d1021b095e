"""A foreign server's stream, as its reader sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc.aio

if TYPE_CHECKING:
    from .consuming import PlainCall, PlainConnection


class PlainStream(AsyncIterator[bytes]):
    """An async iterator of bodies; gRPC reads ahead no further than its window. ``aclose``, cancelling the reader, or
    dropping the iterator cancels the call."""

    __slots__ = ("_call", "_connection", "_is_over", "_loop", "_remote")

    def __init__(self, remote: Any, call: PlainCall, connection: PlainConnection) -> None:
        self._remote = remote
        self._call = call
        self._connection = connection
        self._is_over = False
        self._loop = asyncio.get_running_loop()

    async def __anext__(self) -> bytes:
        if self._is_over:
            raise StopAsyncIteration
        try:
            body = await self._remote.read()
            if body is not grpc.aio.EOF:
                self._connection.heard()
                return body  # type: ignore[no-any-return]
        except BaseException as error:
            self._is_over = True
            self._remote.cancel()
            raise await self._connection.failed(self._call, error) from None
        self._is_over = True
        await self._connection.ended(self._call)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stops the stream; later reads end at once."""
        if not self._is_over:
            self._is_over = True
            await self._connection.left(self._call)

    def __del__(self) -> None:
        # May run in any thread, at any moment, and after the loop: only hand it over.
        if not self._is_over and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._connection.abandon, self._call)
            except RuntimeError:
                pass  # the loop closed between the two lines
