"""What the backends share: the life of a registry (new, open, closed) and of a registration.

Closing runs once, in a task of its own that no cancelled caller can tear in half; everybody who closes waits for it.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod

from .base import Registration, Registry
from .errors import RegistryClosed
from .node import Node


class Backend(Registry):
    """Subclasses implement ``_start`` (cleans up after itself when it raises) and ``_stop``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_open = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self._url

    async def open(self, wait_s: float | None = 10.0) -> None:
        if self._is_closed():
            raise RegistryClosed(f"{self._url} is closed; open a new one")
        if self._is_open:
            return
        await self._start(wait_s)
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

    @abstractmethod
    async def _start(self, wait_s: float | None) -> None: ...

    @abstractmethod
    async def _stop(self) -> None: ...

    def __repr__(self) -> str:
        state = "closed" if self._is_closed() else "open" if self._is_open else "new"
        return f"<{type(self).__name__} {self._url}: {state}>"


class Entry(Registration):
    """A registration; subclasses implement ``_publish`` and ``_remove``."""

    def __init__(self, node: Node, owner: Backend) -> None:
        self._node = node
        self._owner = owner
        self._is_withdrawn = False

    @property
    def node(self) -> Node:
        return self._node

    async def update(self, node: Node) -> None:
        if self._is_withdrawn:
            raise RegistryClosed(f"{self._node.identity} is withdrawn")
        self._owner.require_open()
        if node.identity != self._node.identity:
            raise ValueError(f"an update keeps the identity: {self._node.identity} is registered, not {node.identity}")
        await self._publish(node)
        self._node = node

    async def withdraw(self) -> None:
        if not self._is_withdrawn:
            self._is_withdrawn = True
            await self._remove()

    @abstractmethod
    async def _publish(self, node: Node) -> None: ...

    @abstractmethod
    async def _remove(self) -> None: ...

    def __repr__(self) -> str:
        state = "withdrawn" if self._is_withdrawn else self._node.state.value
        return f"<{type(self).__name__} {self._node.identity}: {state}>"
