"""A server stream that is accounted to its node when it ends, in whatever way it ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from steelyard.balance import Candidate
from steelyard.errors import RpcError
from steelyard.model import Outcome

from .verdict import is_transport, outcome_for_node


class AccountedStream(AsyncIterator[Any]):
    """A class and not an async generator, because a generator that is never started never runs its ``finally``."""

    _is_open = False

    def __init__(
        self,
        stream: AsyncIterator[Any],
        end: Callable[..., None],
        candidate: Candidate,
        started_s: float,
    ) -> None:
        """*end* (candidate, outcome, started_s, is_transport=) accounts the attempt. Made on the loop that accounts."""
        self._loop = asyncio.get_running_loop()
        self._stream = stream
        self._account = end
        self._candidate = candidate
        self._started_s = started_s
        self._is_open = True

    def __aiter__(self) -> AccountedStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._stream)
        except StopAsyncIteration:
            self._end(Outcome.OK)
            raise
        except RpcError as error:
            error.node = self._candidate.node.identity
            self._end(outcome_for_node(error), is_transport(error))
            raise
        except BaseException:
            self._end(Outcome.IGNORED)
            raise

    async def aclose(self) -> None:
        self._end(Outcome.IGNORED)
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()

    def _end(self, outcome: Outcome, is_transport: bool = False) -> None:
        if self._is_open:
            self._is_open = False
            self._account(self._candidate, outcome, self._started_s, is_transport=is_transport)

    def __del__(self) -> None:
        # May run in any thread, at any moment, and after the loop: only hand it over. The policy has no locks.
        if self._is_open and not self._loop.is_closed():
            self._is_open = False
            account = functools.partial(self._account, self._candidate, Outcome.IGNORED, self._started_s)
            with contextlib.suppress(RuntimeError):  # the loop closed between the two lines
                self._loop.call_soon_threadsafe(account)
