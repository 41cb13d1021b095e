"""``memory://name``: providers and consumers of one process, without a file or a socket. For tests and examples.

A name has to be shared between a Provider and a Consumer that know nothing of each other, so there is one table of
names. It is a weak one: a space consists of its open registries and nothing else. When the last one is closed or
forgotten the space is gone, and the next test that uses the name starts from nothing. The registries may live on
different event loops (the blocking consumer has a loop of its own).
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from weakref import WeakSet, WeakValueDictionary

from .backend import Backend, Entry
from .base import Registration, Subscription
from .feed import Feed, select
from .locator import Locator
from .node import Node, ServiceKey
from .rules import GROUP, Rule, check_rule
from .url import provider_url

_NAMES_LOCK = threading.Lock()


class _Space:
    """The open registries of one name. Nodes are kept by the registry that registered them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.members: WeakSet[MemoryRegistry] = WeakSet()
        self.order = itertools.count()
        self.documents: dict[tuple[str, str], str] = {}

    def nodes(self) -> list[Node]:
        """In the order of registration. A registry whose loop has ended without closing it counts as dead."""
        with self.lock:
            entries = [entry for member in self.members if member.is_alive for entry in member.entries.values()]
        return [entry.node for entry in sorted(entries, key=lambda entry: entry.order)]

    def notify(self) -> None:
        with self.lock:
            members = list(self.members)
        for member in members:
            member.notify()


_SPACES: WeakValueDictionary[str, _Space] = WeakValueDictionary()


def _space(name: str) -> _Space:
    with _NAMES_LOCK:
        space = _SPACES.get(name)
        if space is None:
            space = _SPACES[name] = _Space()
        return space


class MemoryRegistry(Backend):
    """See the module. Lists are exact, so they are never stale, and an empty list is believed."""

    keeps_rules = True

    def __init__(self, locator: Locator) -> None:
        locator.reject_credentials()
        locator.require_options()
        self._name = (locator.authority + locator.path).strip("/") or "default"
        super().__init__(f"memory://{self._name}")
        self.entries: dict[int, _MemoryEntry] = {}
        self._feeds: set[Feed] = set()
        self._rules: set[Rule] = set()
        self._space: _Space | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_alive(self) -> bool:
        return self._loop is not None and not self._loop.is_closed()

    async def _start(self, wait_s: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        space = _space(self._name)
        with space.lock:
            space.members.add(self)
        self._space = space

    async def _stop(self) -> None:
        space, self._space = self._space, None
        views: list[Feed | Rule] = [*self._feeds, *self._rules]
        for view in views:
            view.end()
        self._feeds.clear()
        self._rules.clear()
        if space is not None:
            with space.lock:
                space.members.discard(self)
            space.notify()

    async def register(self, node: Node) -> Registration:
        self.require_open()
        assert self._space is not None
        provider_url(node)  # what could not be published elsewhere is refused here too
        entry = _MemoryEntry(node, self, next(self._space.order))
        self.place(entry, node)
        return entry

    async def subscribe(self, service: ServiceKey) -> Subscription:
        self.require_open()
        feed = Feed(service, on_close=self._drop)
        self._feeds.add(feed)
        self._refresh()
        return feed

    async def services(self) -> tuple[str, ...]:
        self.require_open()
        assert self._space is not None
        return tuple(sorted({node.interface for node in self._space.nodes()}))

    def place(self, entry: _MemoryEntry, node: Node | None) -> None:
        """Show *entry* with *node*, or take it out (None)."""
        space = self._space
        if space is None:  # closed: everything of ours is out already
            return
        with space.lock:
            if node is None:
                self.entries.pop(entry.order, None)
            else:
                entry.show(node)
                self.entries[entry.order] = entry
        space.notify()

    def notify(self) -> None:
        """Something in the space changed. From any thread."""
        loop = self._loop
        if loop is None or not (self._feeds or self._rules):
            return
        if loop is asyncio._get_running_loop():
            self._refresh()
            return
        try:
            loop.call_soon_threadsafe(self._refresh)
        except RuntimeError:  # that loop has ended; is_alive is False from now on
            pass

    def _refresh(self) -> None:
        if self._space is not None:
            nodes = self._space.nodes()
            for feed in self._feeds:
                feed.publish(select(feed.service, nodes))
            for rule in self._rules:
                rule.publish(self._space.documents.get((rule.group, rule.key)))

    async def rule(self, key: str, group: str = GROUP) -> Rule:
        self.require_open()
        check_rule(key, group)

        async def drop(rule: Rule) -> None:
            self._rules.discard(rule)

        rule = Rule(key, group, on_close=drop)
        self._rules.add(rule)
        self._refresh()
        return rule

    async def publish_rule(self, key: str, text: str | None, group: str = GROUP) -> None:
        self.require_open()
        check_rule(key, group, text)
        assert self._space is not None
        with self._space.lock:
            if text is None:
                self._space.documents.pop((group, key), None)
            else:
                self._space.documents[group, key] = text
        self._space.notify()

    async def _drop(self, feed: Feed) -> None:
        self._feeds.discard(feed)


class _MemoryEntry(Entry):
    def __init__(self, node: Node, registry: MemoryRegistry, order: int) -> None:
        super().__init__(node, registry)
        self.order = order
        self._registry = registry

    def show(self, node: Node) -> None:
        self._node = node

    async def _publish(self, node: Node) -> None:
        provider_url(node)
        self._registry.place(self, node)

    async def _remove(self) -> None:
        self._registry.place(self, None)
