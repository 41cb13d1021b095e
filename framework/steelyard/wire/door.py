"""The door of a lane that speaks TLS: who comes agrees on that first, a few at a time and not for long.

asyncio could do the handshake itself (``create_server(ssl=...)``), but then nobody could say how many are under way,
and every connection would get the context of the start. Here each gets that of now, so a new certificate needs no
restart, and whoever comes and says nothing costs a socket until the next one takes its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from typing import Any, cast

from steelyard.security import Tls

from .limits import WireLimits
from .socket_carrier import Link, told
from .strangers import FAIR_SHARE, Strangers

log = logging.getLogger(__name__)


class Door:
    """``knock`` is a protocol factory for a server; *enter* gets each Link that has come in. *admits* is asked before a
    handshake is begun."""

    def __init__(
        self, tls: Tls, limits: WireLimits, enter: Callable[[Link], None], admits: Callable[[], bool] = lambda: True
    ) -> None:
        self._tls = tls
        self._limits = limits
        self._enter = enter
        self._admits = admits
        self._knocking: Strangers[asyncio.Task[None]] = Strangers(
            limits.strangers, limits.connect_timeout_s * FAIR_SHARE
        )
        self._tasks: dict[asyncio.Task[None], asyncio.Transport] = {}
        self.refused = 0

    @property
    def knocking(self) -> int:
        """Handshakes under way."""
        return len(self._knocking)

    def knock(self) -> asyncio.BaseProtocol:
        return _Knock(self)

    def came(self, transport: asyncio.Transport) -> None:
        if not self._admits():
            transport.abort()
            self.refused += 1
            return
        loop = asyncio.get_running_loop()
        link = Link(self._limits, self._enter)
        link.prepare()
        try:
            agreeing = _Begun(
                loop.start_tls(
                    transport,
                    link,
                    self._tls.server_context(),
                    server_side=True,
                    ssl_handshake_timeout=self._limits.connect_timeout_s,
                )
            )
        except Exception:
            transport.abort()
            raise
        task = loop.create_task(self._agree(transport, link, agreeing))
        self._tasks[task] = transport
        task.add_done_callback(self._forget)
        leaves = self._knocking.add(task, loop.time())
        if leaves is not None:
            self._end(leaves)
            self.refused += 1

    async def close(self) -> None:
        """Ends the handshakes under way."""
        tasks = tuple(self._tasks)
        for task in tasks:
            self._end(task)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._tasks[task].abort()  # here and not by the task: one that has not begun never does

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        self._knocking.discard(task)

    async def _agree(self, transport: asyncio.Transport, link: Link, agreeing: _Begun) -> None:
        secured: Any = None
        try:
            secured = await agreeing
        except OSError as error:
            self.refused += 1
            log.info("a caller was not let in: %s", told(error))
        finally:
            if secured is None or secured.is_closing():  # lost in the meantime
                secured = None
                transport.abort()
        if secured is not None:
            link.connection_made(secured)


class _Begun:
    """A coroutine whose first step is taken here and now, and the rest by whoever awaits this.

    uvloop reads a new connection as soon as ``connection_made`` returns, whoever has paused it; had the handshake not
    taken the connection over by then, its first bytes would be lost. (Python 3.12 has this as eager tasks.)
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._steps = coroutine.__await__()
        self._first = next(self._steps)

    def __await__(self) -> Generator[Any, Any, Any]:
        try:
            yield self._first
        except BaseException as error:
            return self._steps.throw(error)
        return (yield from self._steps)


class _Knock(asyncio.Protocol):
    def __init__(self, door: Door) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._door.came(cast(asyncio.Transport, transport))
