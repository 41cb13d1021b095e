"""What of a list is shown: the empty list is doubted, the vanished node is lost and not gone. See ``watch``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from ..feed import Feed
from ..node import Node, NodeState
from .place import Place
from .session import Session

log = logging.getLogger(__name__)

AUDIT_S = 30.0
"""One look without any reason."""


class Showing:
    """Feeds *feed*. *shows* (identity) says whether a node is in the list now."""

    def __init__(self, session: Session, place: Place, feed: Feed, shows: Callable[[str], bool]) -> None:
        self._session = session
        self._place = place
        self._feed = feed
        self._shows = shows
        self._loop = asyncio.get_running_loop()
        self._lost: dict[str, tuple[Node, float]] = {}
        self._empty_since_s: float | None = None

    def went_away(self) -> None:
        self._empty_since_s = None
        self._feed.mark_stale()

    def show(self, nodes: tuple[Node, ...], gone: Sequence[Node], skipped: int) -> float:
        """Publish; seconds until the next look."""
        now_s = self._loop.time()
        self._lose(gone, now_s)
        last = self._feed.snapshot.nodes
        if nodes or not last:
            self._empty_since_s = None
            is_stale = self._session.is_read_only
            self._feed.publish(nodes, skipped=skipped, is_stale=is_stale, lost=self._still_lost(now_s))
            return AUDIT_S
        if self._empty_since_s is None or self._session.is_read_only:
            self._empty_since_s = now_s
        kept = tuple(node for node in last if node.state is not NodeState.DRAINING)
        grace_s = self._place.empty_grace_s if kept else 0.0
        left_s = self._empty_since_s + grace_s - now_s
        if left_s > 0:
            if self._feed.publish(kept, skipped=skipped, is_stale=True):
                log.warning(
                    "%s: the list of %s is empty; its last %d nodes stay for %g s",
                    self._place.url,
                    self._feed.service,
                    len(kept),
                    grace_s,
                )
            return left_s
        log.warning("%s: no provider of %s is left", self._place.url, self._feed.service)
        self._empty_since_s = None
        self._feed.publish((), skipped=skipped, lost=self._still_lost(now_s))
        return AUDIT_S

    def _lose(self, gone: Sequence[Node], now_s: float) -> None:
        for node in gone:
            if node.state is not NodeState.DRAINING:
                self._lost[node.identity] = node, now_s

    def _still_lost(self, now_s: float) -> tuple[Node, ...]:
        if not self._lost:
            return ()
        since_s = now_s - self._place.lost_s
        self._lost = {
            identity: (node, at_s)
            for identity, (node, at_s) in self._lost.items()
            if at_s > since_s and not self._shows(identity)
        }
        return tuple(node for node, _ in self._lost.values())
