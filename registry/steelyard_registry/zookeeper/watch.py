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
from collections.abc import Callable, Sequence

from kazoo.exceptions import NoNodeError

from ..errors import MalformedUrl
from ..feed import Feed, select
from ..node import Node, NodeState
from ..url import parse_node_name
from .place import Place
from .reconciler import Reconciler
from .session import Session

log = logging.getLogger(__name__)

AUDIT_S = 30.0
"""One read of the list without any reason."""
_GATHER_S = 0.03
"""Reads of one list are at least this far apart: a hundred restarts in a moment are a few reads, not a hundred."""

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
        self._lost: dict[str, tuple[Node, float]] = {}
        self._parsed: dict[str, Node | None] = {}
        self._empty_since_s: float | None = None
        self._read_at_s = -1.0

    def _went_away(self) -> None:
        self._empty_since_s = None
        self.feed.mark_stale()

    async def show_kept(self, names: Sequence[str]) -> None:
        """Before the first answer: what was kept on disk, stale."""
        nodes, skipped = await self._parse(names)
        if not self.feed.snapshot.version:
            self.feed.publish(select(self.feed.service, nodes), skipped=skipped, is_stale=True)

    async def _pass(self) -> float | None:
        self._follow(self.path)
        early_s = self._read_at_s + _GATHER_S - self._loop.time()
        if early_s > 0:
            await asyncio.sleep(early_s)
            self._wake.clear()
        names = await self._read()
        self._read_at_s = self._loop.time()
        nodes, skipped = await self._parse(names)
        self._keep(self.feed.service.interface, self._readable)
        return self._show(select(self.feed.service, nodes), skipped)

    def _readable(self) -> list[str]:
        return [name for name, node in self._parsed.items() if node is not None]

    async def _read(self) -> list[str]:
        """The names. Sets a watch in any case: on the children, or on the coming of the folder."""
        while True:
            try:
                return list(await self._session.call("get_children", self.path, watch=self._session.watcher))
            except NoNodeError:
                if await self._session.call("exists", self.path, watch=self._session.watcher) is None:
                    return []

    async def _parse(self, names: Sequence[str]) -> tuple[list[Node], int]:
        """The nodes and the number of names that are none. Names seen before are not parsed again, and a first list of
        ten thousand (0.4 s of parsing) leaves the loop to others in between."""
        old = self._parsed
        fresh = [name for name in names if name not in old]
        if fresh or len(names) != len(old):
            found: dict[str, Node | None] = {}
            for number, name in enumerate(fresh, 1):
                found[name] = self._parse_one(name)
                if number % _PARSE_BATCH == 0:
                    await asyncio.sleep(0)
            kept = {name: old[name] for name in old.keys() & set(names)}
            # Sorted, so that every consumer decides alike between two entries of one node.
            self._parsed = dict(sorted((kept | found).items(), key=_name)) if kept or found else {}
        nodes = [node for node in self._parsed.values() if node is not None]
        return nodes, len(self._parsed) - len(nodes)

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

    def _show(self, nodes: tuple[Node, ...], skipped: int) -> float:
        """Publish; seconds until the next look."""
        last = self.feed.snapshot.nodes
        if nodes or not last:
            self._empty_since_s = None
            self.feed.publish(nodes, skipped=skipped, lost=self._lose(last, nodes))
            return AUDIT_S
        now_s = self._loop.time()
        if self._empty_since_s is None:
            self._empty_since_s = now_s
        kept = tuple(node for node in last if node.state is not NodeState.DRAINING)
        grace_s = self._place.empty_grace_s if kept else 0.0
        left_s = self._empty_since_s + grace_s - now_s
        if left_s > 0:
            if self.feed.publish(kept, skipped=skipped, is_stale=True):
                log.warning(
                    "%s: the list of %s is empty; its last %d nodes stay for %g s",
                    self._place.url,
                    self.feed.service,
                    len(kept),
                    grace_s,
                )
            return left_s
        log.warning("%s: no provider of %s is left", self._place.url, self.feed.service)
        self._empty_since_s = None
        self.feed.publish((), skipped=skipped, lost=self._lose(kept, ()))
        return AUDIT_S

    def _lose(self, before: tuple[Node, ...], now: tuple[Node, ...]) -> tuple[Node, ...]:
        """The nodes that are lost at the moment."""
        now_s = self._loop.time()
        here = {node.identity for node in now}
        for node in before:
            if node.identity not in here and node.state is not NodeState.DRAINING:
                self._lost[node.identity] = (node, now_s)
        since_s = now_s - self._place.lost_s
        self._lost = {
            identity: (node, at_s)
            for identity, (node, at_s) in self._lost.items()
            if identity not in here and at_s > since_s
        }
        return tuple(node for node, _ in self._lost.values())


def _name(item: tuple[str, Node | None]) -> str:
    return item[0]
