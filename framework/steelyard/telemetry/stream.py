"""A stream whose end is seen exactly once, in whatever way it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from opentelemetry.context import Context, attach, detach


class WatchedStream(AsyncIterator[Any]):
    """Passes *stream* on and calls *on_end* once: with None at its proper end, with the error it raised, and with
    ``CancelledError`` when the reader left (closed it, dropped it, was cancelled).

    With *context*, each step runs inside it, so that what the producer of the stream calls is traced as its child.

    A class and not an async generator, because a generator that is never started never runs its ``finally``.
    """

    def __init__(
        self,
        stream: AsyncIterator[Any],
        on_end: Callable[[BaseException | None], None],
        context: Context | None = None,
    ) -> None:
        self._stream = stream
        self._on_end: Callable[[BaseException | None], None] | None = on_end
        self._context = context

    def __aiter__(self) -> WatchedStream:
        return self

    async def __anext__(self) -> Any:
        token = None if self._context is None else attach(self._context)
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            self._end(None)
            raise
        except BaseException as error:
            self._end(error)
            raise
        finally:
            if token is not None:
                detach(token)

    async def aclose(self) -> None:
        """The reader leaves. Idempotent."""
        self._end(asyncio.CancelledError())
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()

    def _end(self, error: BaseException | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(error)

    def __del__(self) -> None:
        self._end(asyncio.CancelledError())
