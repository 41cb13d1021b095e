"""The list of one service, kept true: children of ``/{root}/{interface}/providers``, read, built aside, swapped.

An empty list is doubted. It is what a wiped tree, a ZooKeeper that came back without its data, or providers that are
all about to register again under new sessions look like, and believing it turns a registry's bad minute into an outage.
So the last nodes stay, marked stale, until ``empty_grace_s`` (10 s) of *uninterrupted* empty answers have
passed: three audits of our own providers, which restore themselves within one. Then the list is empty: no ghosts for
ever. Nodes that said they were draining before they went have left on purpose and are not kept.

A node that vanishes from a list without having said that it drains is ``lost``: its session ended. Whether it died or
was only cut off from ZooKeeper cannot be seen from here, so it is named in the snapshot for ``lost_s``, and those who
are connected to it decide.

The watch never writes, so a consumer needs no right to, and an operator can delete the tree under it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from ..errors import MalformedUrl
from ..feed import Feed
from ..listing import Listing
from ..node import Node
from ..url import parse_node_name
from .children import DOUBT_S, Children
from .place import Place
from .reconciler import Reconciler
from .session import Session
from .showing import Showing

log = logging.getLogger(__name__)

_PARSE_BATCH = 100
_TOLD = 20
"""So many broken entries have a line in the log each: a folder full of them must not become a full disk."""


Keep = Callable[[str, Callable[[], list[str]]], None]


class ProviderWatch(Reconciler):
    """Feeds *feed*. Its task runs until ``cancel``."""

    def __init__(self, session: Session, place: Place, feed: Feed, keep: Keep) -> None:
        """*keep* (interface, names) hears of every list that is vouched for."""
        super().__init__(session, place, place.folder(feed.service.interface, "providers"))
        self.feed = feed
        self._keep = keep
        self._told = 0
        self._children = Children(session, self.path, self.wake)
        self._listing = Listing(feed.service)
        self._showing = Showing(session, place, feed, self._listing.shows)

    async def cancel(self) -> None:
        self._children.close()
        await super().cancel()

    def _went_away(self) -> None:
        self._children.went_away()
        self._showing.went_away()

    async def show_kept(self, names: Sequence[str]) -> None:
        """Before the first answer: what was kept on disk, stale."""
        parsed = await self._parse(names)
        if not self.feed.snapshot.version:
            nodes = self._listing.change(parsed, ()).nodes
            self.feed.publish(nodes, skipped=self._listing.skipped, is_stale=True)

    async def _pass(self) -> float | None:
        self._follow(self.path)
        come, gone = await self._children.catch_up(self._listing.names)
        parsed = await self._parse(come)
        difference = self._listing.change(parsed, gone)
        if come or gone or not self.feed.snapshot.version:
            self._keep(self.feed.service.interface, lambda: self._listing.readable)
        pause_s = self._showing.show(difference.nodes, difference.gone, self._listing.skipped)
        return pause_s if self._children.is_settled else min(DOUBT_S, pause_s)

    async def _parse(self, names: Collection[str]) -> dict[str, Node | None]:
        """The nodes behind *names*, None for a name that is none. A first list of ten thousand (0.4 s of parsing)
        leaves the loop to others in between."""
        found: dict[str, Node | None] = {}
        for number, name in enumerate(names, 1):
            found[name] = self._parse_one(name)
            if number % _PARSE_BATCH == 0:
                await asyncio.sleep(0)
        return found

    def _parse_one(self, name: str) -> Node | None:
        try:
            return parse_node_name(name)
        except MalformedUrl as error:
            self._told += 1
            level = logging.WARNING if self._told <= _TOLD else logging.DEBUG
            log.log(level, "%s: skipped an entry of %s: %s", self._place.url, self.feed.service, error)
            if self._told == _TOLD:
                log.warning("%s: further ones of %s are only counted", self._place.url, self.feed.service)
            return None
