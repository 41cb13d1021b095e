"""What the backends share: the life of a registry (new, open, closed) and of a registration.

Closing runs once, in a task of its own that no cancelled caller can tear in half; everybody who closes waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod

from .base import Registration, Registry
from .errors import RegistryClosed, RegistryUnreachable
from .node import Node, NodeState
from .url import provider_url

log = logging.getLogger(__name__)

CACHE_AFTER_S = 3.0
"""A start that may use kept lists waits no longer for the registry: a server that is there answers in milliseconds."""
UPDATES_AT_ONCE = 10
UPDATES_PER_S = 1.0
"""Every update is told to every consumer of the service; a node that flutters must not become everybody's load."""


class Backend(Registry):
    """Subclasses implement ``_start`` (cleans up after itself when it raises) and ``_stop``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_open = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self._url

    async def open(self, wait_s: float | None = 10.0, *, from_cache: bool = False) -> None:
        if self._is_closed():
            raise RegistryClosed(f"{self._url} is closed; open a new one")
        if self._is_open:
            return
        has_cache = from_cache and self._has_cache()
        if has_cache:
            wait_s = CACHE_AFTER_S if wait_s is None else min(wait_s, CACHE_AFTER_S)
        try:
            await self._start(wait_s)
        except RegistryUnreachable as error:
            if not has_cache:
                raise
            log.warning("%s; starting from the lists that were kept on disk, connecting on behind them", error)
            await self._start_away()
        if self._is_closed():  # closed while it was opening
            await self._stop()
            raise RegistryClosed(f"{self._url} was closed while it was being opened")
        self._is_open = True

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._stop())
        await asyncio.shield(self._closing)

    def _is_closed(self) -> bool:
        return self._closing is not None

    def require_open(self) -> None:
        """Raises RegistryClosed before ``open`` and after ``close``."""
        if self._is_closed():
            raise RegistryClosed(f"{self._url} is closed")
        if not self._is_open:
            raise RegistryClosed(f"{self._url} is not open yet; call open() first")

    def _has_cache(self) -> bool:
        """Whether lists were kept that this registry could start from."""
        return False

    async def _start_away(self) -> None:
        """Start without an answer. Only for backends that can have a cache."""
        raise NotImplementedError

    @abstractmethod
    async def _start(self, wait_s: float | None) -> None: ...

    @abstractmethod
    async def _stop(self) -> None: ...

    def __repr__(self) -> str:
        state = "closed" if self._is_closed() else "open" if self._is_open else "new"
        return f"<{type(self).__name__} {self._url}: {state}>"


class Entry(Registration):
    """A registration; subclasses implement ``_publish`` and ``_remove``.

    Updates are published at a bounded rate. Of those that wait together the newest is published, and all of them return
    then; a node that says that it drains does not wait."""

    def __init__(self, node: Node, owner: Backend) -> None:
        self._node = node
        self._newest = node
        self._owner = owner
        self._is_withdrawn = False
        self._turn = asyncio.Lock()
        self._is_leaving = asyncio.Event()
        self._tokens = float(UPDATES_AT_ONCE)
        self._tokens_at_s = asyncio.get_running_loop().time()

    @property
    def node(self) -> Node:
        return self._node

    async def update(self, node: Node) -> None:
        self._refuse_if_over()
        if node.identity != self._node.identity:
            raise ValueError(f"an update keeps the identity: {self._node.identity} is registered, not {node.identity}")
        provider_url(node)  # what cannot be published is refused before it can take the place of what can
        self._newest = node
        if node.state is NodeState.DRAINING:
            self._is_leaving.set()
        async with self._turn:
            if self._newest is self._node:  # another that waited has published it
                return
            await self._pause()
            newest = self._newest
            self._refuse_if_over()
            await self._publish(newest)
            self._node = newest

    async def withdraw(self) -> None:
        if not self._is_withdrawn:
            self._is_withdrawn = True
            await self._remove()

    def _refuse_if_over(self) -> None:
        if self._is_withdrawn:
            raise RegistryClosed(f"{self._node.identity} is withdrawn")
        self._owner.require_open()

    async def _pause(self) -> None:
        """Takes a token, and waits until it is there or the node leaves."""
        now_s = asyncio.get_running_loop().time()
        self._tokens = min(UPDATES_AT_ONCE, self._tokens + (now_s - self._tokens_at_s) * UPDATES_PER_S) - 1.0
        self._tokens_at_s = now_s
        if self._tokens < 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(-self._tokens / UPDATES_PER_S):
                    await self._is_leaving.wait()

    @abstractmethod
    async def _publish(self, node: Node) -> None: ...

    @abstractmethod
    async def _remove(self) -> None: ...

    def __repr__(self) -> str:
        state = "withdrawn" if self._is_withdrawn else self._node.state.value
        return f"<{type(self).__name__} {self._node.identity}: {state}>"
