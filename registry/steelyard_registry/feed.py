"""The subscription that every backend hands out: its registry pushes lists in, readers wait for versions.

One implementation for all backends, so that "the version grows only when something changed", "waiting again never
misses a change" and "closing wakes everybody" are proved once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

from .base import Snapshot, Subscription
from .errors import RegistryClosed
from .node import Node, ServiceKey


class Feed(Subscription):
    """``publish``, ``mark_stale`` and ``end`` are for the backend, on the loop's own thread."""

    def __init__(self, service: ServiceKey, on_close: Callable[[Feed], Awaitable[None]] | None = None) -> None:
        self.service = service
        self._snapshot = Snapshot()
        self._turn = asyncio.Event()
        self._on_close = on_close
        self._is_closed = False

    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot

    async def changed(self, after: int) -> Snapshot:
        while not self._is_closed:
            if self._snapshot.version > after:
                return self._snapshot
            await self._turn.wait()
        raise RegistryClosed(f"the subscription to {self.service} is closed")

    async def close(self) -> None:
        if not self._is_closed:
            self.end()
            if self._on_close is not None:
                await self._on_close(self)

    def end(self) -> None:
        """Close without telling the backend: for the backend itself."""
        self._is_closed = True
        self._next_turn()

    def publish(
        self, nodes: tuple[Node, ...], *, skipped: int = 0, is_stale: bool = False, lost: tuple[Node, ...] = ()
    ) -> bool:
        """Swap the list in. True when it differs from the last one (or is the first), which then has a new version."""
        old = self._snapshot
        new = Snapshot(version=old.version + 1, nodes=nodes, is_stale=is_stale, skipped=skipped, lost=lost)
        if self._is_closed or (old.version and replace(new, version=old.version) == old):
            return False
        self._snapshot = new
        self._next_turn()
        return True

    def mark_stale(self) -> bool:
        """Keep the list, and say that nobody vouches for it at the moment."""
        last = self._snapshot
        return self.publish(last.nodes, skipped=last.skipped, is_stale=True, lost=last.lost)

    def _next_turn(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    def __repr__(self) -> str:
        held = self._snapshot
        stale = ", stale" if held.is_stale else ""
        return f"<{type(self).__name__} {self.service}: {len(held.nodes)} nodes, version {held.version}{stale}>"


def select(service: ServiceKey, nodes: Iterable[Node]) -> tuple[Node, ...]:
    """The nodes that serve *service*, one an identity, sorted by it.

    Of two records of the same identity the one that started last wins (a fast restart leaves the older entry until its
    lease or session ends), and at equal start the later one of *nodes*.
    """
    newest: dict[str, Node] = {}
    for node in nodes:
        if service.accepts(node):
            rival = newest.get(node.identity)
            if rival is None or node.started_at_ms >= rival.started_at_ms:
                newest[node.identity] = node
    return tuple(newest[identity] for identity in sorted(newest))
