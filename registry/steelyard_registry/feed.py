"""The subscription that every backend hands out: its registry pushes lists in, readers wait for versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Self

from .base import Snapshot, Subscription
from .live import Live
from .node import Node, ServiceKey


class Feed(Live[Snapshot], Subscription):
    """``publish``, ``mark_stale`` and ``end`` are for the backend, on the loop's own thread."""

    def __init__(self, service: ServiceKey, on_close: Callable[[Self], Awaitable[None]] | None = None) -> None:
        super().__init__(f"the subscription to {service}", Snapshot(), on_close)
        self.service = service

    @property
    def snapshot(self) -> Snapshot:
        return self._newest

    def publish(
        self, nodes: tuple[Node, ...], *, skipped: int = 0, is_stale: bool = False, lost: tuple[Node, ...] = ()
    ) -> bool:
        """Swap the list in. True when it differs from the last one (or is the first), which then has a new version."""
        return self._publish(Snapshot(nodes=nodes, is_stale=is_stale, skipped=skipped, lost=lost))

    def mark_stale(self) -> bool:
        """Keep the list, and say that nobody vouches for it at the moment."""
        last = self._newest
        return self.publish(last.nodes, skipped=last.skipped, is_stale=True, lost=last.lost)

    def __repr__(self) -> str:
        held = self._newest
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
