"""The embedded registry: entries and feeds over the worker that owns the file.

Lists are exact as long as the file can be read (every change is one transaction), so an empty list is believed at once;
they are stale only while reading fails. A node whose process is killed goes when its lease ends, at most half a lease
later.

A file that was removed or replaced under us is another matter: its list begins empty, and every holder writes itself
into it within a third of its lease. Until then its nodes are ``lost`` and not gone: whoever is connected keeps them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid

from ..backend import Backend, Entry
from ..base import Registration, Subscription
from ..errors import RegistryError, RegistryUnreachable
from ..feed import Feed, select
from ..locator import Locator
from ..node import Node, NodeState, ServiceKey
from ..rules import GROUP, Rule, check_rule
from ..url import provider_url
from .location import database_path
from .repair import Repair, repair_file
from .store import Store
from .worker import Lists, Worker

log = logging.getLogger(__name__)

LEASE_S = 3.0
"""A killed process is noticed within about this time; a living one has three heartbeats in it."""
POLL_S = 0.1
"""One PRAGMA on an open file, a few microseconds: how late a change is seen at most."""


class EmbeddedRegistry(Backend):
    """``embedded:///path/to/file?lease_s=3&poll_s=0.1``; the file is made, its folder is not. See the package."""

    keeps_rules = True

    def __init__(self, locator: Locator) -> None:
        locator.reject_credentials()
        locator.require_options("lease_s", "poll_s")
        self._lease_s = locator.number("lease_s", LEASE_S, low=0.2, high=600)
        self._poll_s = locator.number("poll_s", POLL_S, low=0.005, high=60)
        self._path = database_path(locator)
        super().__init__(f"embedded://{self._path}")
        self._feeds: set[Feed] = set()
        self._rules: set[Rule] = set()
        self._worker: Worker | None = None
        self._generation = 0
        self._lost: dict[Feed, tuple[Node, ...]] = {}
        self._forgetting: asyncio.TimerHandle | None = None
        # Entries sort by the moment of their registration, which decides between two claims to one address.
        self._entry_ids = (f"{time.time_ns():020d}-{uuid.uuid4().hex}-{number}" for number in itertools.count())

    async def _start(self, wait_s: float | None) -> None:
        beat_s = self._lease_s / 3
        store = Store(self._path, self._lease_s)
        worker = Worker(store, self._show, lease_s=self._lease_s, beat_s=beat_s, poll_s=self._poll_s)
        until = None if wait_s is None else asyncio.get_running_loop().time() + wait_s
        try:
            while True:
                try:
                    await worker.start()
                    break
                except RegistryUnreachable:
                    if until is not None and asyncio.get_running_loop().time() >= until:
                        raise
                    await asyncio.sleep(0.05)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(worker.stop()))
            raise
        self._worker = worker
        log.info("embedded registry %s: open", self._path)

    async def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if self._forgetting is not None:
            self._forgetting.cancel()
        views: list[Feed | Rule] = [*self._feeds, *self._rules]
        for view in views:
            view.end()
        self._feeds.clear()
        self._rules.clear()
        if worker is not None:
            await worker.stop()

    async def register(self, node: Node) -> Registration:
        self.require_open()
        entry = _EmbeddedEntry(node, self, next(self._entry_ids))
        try:
            await self.put(entry.id, node)
        except BaseException:
            self.forget(entry.id)
            raise
        log.info("embedded registry %s: registered %s", self._path, node.identity)
        return entry

    async def subscribe(self, service: ServiceKey) -> Subscription:
        self.require_open()
        worker = self._require_worker()
        interface = service.interface

        feed = Feed(service, on_close=self._drop)

        def watch() -> None:
            worker.watched.add(interface)
            worker.tell(self._show, worker.lists((interface,)), feed)

        self._feeds.add(feed)
        try:
            await worker.send(watch)
        except BaseException:
            self._feeds.discard(feed)
            raise
        return feed

    async def services(self) -> tuple[str, ...]:
        self.require_open()
        worker = self._require_worker()
        return await worker.send(worker.store.services)

    def repair(self) -> Repair:
        """Check and clean the file, for an operator; works before ``open``. Blocking. Raises RegistryError."""
        return repair_file(self._path)

    async def put(self, entry_id: str, node: Node) -> None:
        """Show *node* under *entry_id*, and keep it alive from now on."""
        worker = self._require_worker()
        url = provider_url(node)

        def put() -> None:
            worker.store.put(entry_id, node.interface, url)
            worker.own[entry_id] = (node.interface, url)

        await worker.send(put)

    def forget(self, entry_id: str) -> asyncio.Future[None] | None:
        """Take *entry_id* out and stop keeping it. None when the registry is closed, which took everything out."""
        worker = self._worker
        if worker is None:
            return None

        def remove() -> None:
            if worker.own.pop(entry_id, None) is not None:
                worker.store.remove([entry_id])

        return worker.send(remove)

    def _require_worker(self) -> Worker:
        self.require_open()
        assert self._worker is not None
        return self._worker

    async def rule(self, key: str, group: str = GROUP) -> Rule:
        check_rule(key, group)
        worker = self._require_worker()
        path = f"{group}/{key}"

        rule = Rule(key, group, on_close=self._drop_rule)

        def watch() -> None:
            worker.documents.add(path)
            worker.tell(rule.publish, worker.store.document(path))

        self._rules.add(rule)
        try:
            await worker.send(watch)
        except BaseException:
            self._rules.discard(rule)
            raise
        return rule

    async def publish_rule(self, key: str, text: str | None, group: str = GROUP) -> None:
        check_rule(key, group, text)
        worker = self._require_worker()
        await worker.send(lambda: worker.store.put_document(f"{group}/{key}", text))

    async def _drop_rule(self, rule: Rule) -> None:
        self._rules.discard(rule)
        path, worker = f"{rule.group}/{rule.key}", self._worker
        if worker is not None and not any((other.group, other.key) == (rule.group, rule.key) for other in self._rules):
            await worker.send(lambda: worker.documents.discard(path))

    def _show(self, lists: Lists | None, only: Feed | None = None) -> None:
        feeds = [feed for feed in self._feeds if only is None or feed is only]
        rules = [] if only else list(self._rules)
        if lists is None:
            views: list[Feed | Rule] = [*feeds, *rules]
            for view in views:
                view.mark_stale()
            return
        if lists.generation != self._generation and only is None:
            self._generation = lists.generation
            self._lose()
        for feed in feeds:
            if feed.service.interface in lists.nodes:
                nodes, skipped = lists.nodes[feed.service.interface]
                self._publish(feed, select(feed.service, nodes), skipped)
        for rule in rules:
            path = f"{rule.group}/{rule.key}"
            if path in lists.documents:
                rule.publish(lists.documents[path])

    def _publish(self, feed: Feed, nodes: tuple[Node, ...], skipped: int) -> None:
        lost = self._lost.get(feed, ())
        if lost:
            here = {node.identity for node in nodes}
            lost = self._lost[feed] = tuple(node for node in lost if node.identity not in here)
        feed.publish(nodes, skipped=skipped, lost=lost)

    def _lose(self) -> None:
        """Another file: what was in the old one is lost until it is in the new one, or two leases are over."""
        for feed in self._feeds:
            before = (*feed.snapshot.nodes, *self._lost.get(feed, ()))
            self._lost[feed] = tuple(node for node in before if node.state is not NodeState.DRAINING)
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forgetting = asyncio.get_running_loop().call_later(2 * self._lease_s, self._forget_lost)

    def _forget_lost(self) -> None:
        self._lost.clear()
        for feed in self._feeds:
            last = feed.snapshot
            if not last.is_stale:
                feed.publish(last.nodes, skipped=last.skipped)

    async def _drop(self, feed: Feed) -> None:
        self._feeds.discard(feed)
        self._lost.pop(feed, None)
        interface = feed.service.interface
        worker = self._worker
        if worker is not None and not any(other.service.interface == interface for other in self._feeds):
            await worker.send(lambda: worker.watched.discard(interface))


class _EmbeddedEntry(Entry):
    def __init__(self, node: Node, registry: EmbeddedRegistry, entry_id: str) -> None:
        super().__init__(node, registry)
        self.id = entry_id
        self._registry = registry

    async def _publish(self, node: Node) -> None:
        await self._registry.put(self.id, node)

    async def _remove(self) -> None:
        done = self._registry.forget(self.id)
        if done is not None:
            try:
                await asyncio.shield(done)
            except RegistryError as error:  # the lease runs out by itself: nobody keeps it any more
                log.warning("%s: entry left to its lease: %s", self.node.identity, error)
