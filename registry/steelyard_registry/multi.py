"""Several registries as one: register in one or more, subscribe to all, merge what they say.

    MultiRegistry([Member(open_registry(a)), Member(open_registry(b), is_registered=False)], mode="merge")
    multi://merge?1=zookeeper%3A%2F%2Fzk-a&2=zookeeper%3A%2F%2Fzk-b&2.register=false
    multi://prefer?1=...&2=...          the first that has nodes; the others only while it has none
    multi://zone?zone=a&1=...&1.zone=a&2=...&2.zone=b      those of the own zone, the others only while these have none

For a move from one ZooKeeper to another, for two data centres, for a fixed list that stands in while the registry is
young. "While it has none" means a list that is empty or whose registry cannot vouch for it *and* has nothing to show: a
registry that is away keeps its last nodes and so its turn, because a short outage of one registry must not move all
traffic to another city.

A member that does not answer does not keep the others from opening; it goes on trying behind them, and its lists come
when it is there. Only when none answers, opening fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from .backend import Backend, Entry
from .base import Registration, Registry, Snapshot, Subscription
from .errors import MalformedUrl, RegistryClosed, RegistryError, RegistryUnreachable
from .feed import Feed
from .locator import Locator
from .node import Node, ServiceKey
from .rule_urls import RuleUrlsView
from .rules import GROUP, Rule

log = logging.getLogger(__name__)

Mode = Literal["merge", "prefer", "zone"]
MODES: tuple[Mode, ...] = ("merge", "prefer", "zone")
_REOPEN_S = 1.0


@dataclass(frozen=True, slots=True)
class Member:
    """One of the registries. ``is_registered``: whether own nodes are announced there; ``zone``: where it stands."""

    registry: Registry
    is_registered: bool = True
    zone: str = ""


class MultiRegistry(Backend):
    """Owns its members: opens and closes them. ``zone`` is the own zone, for the mode ``zone``."""

    def __init__(self, members: Sequence[Member], *, mode: Mode = "merge", zone: str = "") -> None:
        if not members:
            raise MalformedUrl("multi:// needs at least one registry: multi://merge?1=...&2=...")
        if mode not in MODES:
            raise MalformedUrl(f"multi:// knows the modes {', '.join(MODES)}, not {mode!r}")
        if mode == "zone" and not zone:
            raise MalformedUrl("multi://zone needs the own zone: multi://zone?zone=a&...")
        super().__init__(" + ".join(member.registry.url for member in members))
        self._members = tuple(members)
        self.keeps_rules = any(member.registry.keeps_rules for member in members)
        self._mode: Mode = mode
        self._zone = zone
        self._from_cache = False
        self._open_members: list[Member] = []
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._feeds: dict[Feed, _Merge] = {}
        self._entries: set[_MultiEntry] = set()

    @property
    def members(self) -> tuple[Member, ...]:
        return self._members

    async def open(self, wait_s: float | None = 10.0, *, from_cache: bool = False) -> None:
        self._from_cache = from_cache  # each member starts from its own
        await super().open(wait_s)

    async def _start(self, wait_s: float | None) -> None:
        opening = (member.registry.open(wait_s, from_cache=self._from_cache) for member in self._members)
        found = await asyncio.gather(*opening, return_exceptions=True)
        errors = [error for error in found if error is not None]
        refused = [error for error in errors if not isinstance(error, RegistryUnreachable)]
        away = [member for member, error in zip(self._members, found, strict=True) if error is not None]
        if refused or len(away) == len(self._members):
            raise (refused or errors)[0]  # those that are open stay so for another try, and are closed with this
        self._open_members = [member for member in self._members if member not in away]
        for member in away:
            log.warning("%s does not answer; going on with the other registries", member.registry.url)
            task = asyncio.get_running_loop().create_task(self._open_later(member))
            self._opening[id(member)] = task

    async def _open_later(self, member: Member) -> None:
        while True:
            try:
                await member.registry.open(None)
                break
            except RegistryError as error:
                log.debug("%s: %s", member.registry.url, error)
                await asyncio.sleep(_REOPEN_S)
        log.warning("%s answers now", member.registry.url)
        self._open_members.append(member)
        for merge in self._feeds.values():
            merge.follow(member)
        for entry in self._entries:
            await entry.join(member)

    async def _stop(self) -> None:
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        feeds, self._feeds = self._feeds, {}
        for feed in feeds:
            feed.end()
        await asyncio.gather(*(merge.close() for merge in feeds.values()))
        await asyncio.gather(*(member.registry.close() for member in self._members), return_exceptions=True)

    async def register(self, node: Node) -> Registration:
        self.require_open()
        entry = _MultiEntry(node, self)
        self._entries.add(entry)
        try:
            for member in self._open_members:
                await entry.join(member)
        except BaseException:
            await entry.withdraw()
            raise
        return entry

    async def subscribe(self, service: ServiceKey) -> Subscription:
        self.require_open()
        feed = Feed(service, on_close=self._drop)
        merge = _Merge(feed, self._members, self._mode, self._zone)
        self._feeds[feed] = merge
        try:
            await asyncio.gather(*(merge.begin(member) for member in self._open_members))
        except BaseException:
            await feed.close()
            raise
        merge.show()
        return feed

    async def services(self) -> tuple[str, ...]:
        self.require_open()
        found = await asyncio.gather(*(m.registry.services() for m in self._open_members), return_exceptions=True)
        lists = [each for each in found if not isinstance(each, BaseException)]
        errors = [each for each in found if isinstance(each, BaseException)]
        if errors and not lists:
            raise errors[0]
        return tuple(sorted({name for names in lists for name in names}))

    async def rule(self, key: str, group: str = GROUP) -> Rule:
        return await self._rule_keeper().rule(key, group)

    async def publish_rule(self, key: str, text: str | None, group: str = GROUP) -> None:
        await self._rule_keeper().publish_rule(key, text, group)

    async def rule_urls(self, interface: str, category: str) -> RuleUrlsView:
        return await self._rule_keeper().rule_urls(interface, category)

    def _rule_keeper(self) -> Registry:
        """Rules are not merged: the first member that keeps any has the say."""
        self.require_open()
        for member in self._members:
            if member.registry.keeps_rules:
                return member.registry
        raise RegistryError(f"{self._url}: none of these keeps rules")

    def forget(self, entry: _MultiEntry) -> None:
        self._entries.discard(entry)

    async def _drop(self, feed: Feed) -> None:
        merge = self._feeds.pop(feed, None)
        if merge is not None:
            await merge.close()


class _Merge:
    """One service: a subscription at every member, merged into one feed."""

    def __init__(self, feed: Feed, members: Sequence[Member], mode: Mode, zone: str) -> None:
        self._feed = feed
        self._members = members
        self._mode = mode
        self._zone = zone
        self._views: dict[int, Subscription] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, member: Member) -> None:
        """Returns with the first list of *member*."""
        view = self._views[id(member)] = await member.registry.subscribe(self._feed.service)
        self._own(self._watch(view))

    def follow(self, member: Member) -> None:
        """As begin, behind the scenes."""

        async def begin() -> None:
            with contextlib.suppress(RegistryError):
                await self.begin(member)
                self.show()

        self._own(begin())

    def show(self) -> None:
        shown = [self._views[id(member)].snapshot for member in self._members if id(member) in self._views]
        turn = [snapshot for snapshot in self._turn() if snapshot.nodes] or shown
        nodes: dict[str, Node] = {}
        for snapshot in turn:
            for node in snapshot.nodes:
                nodes.setdefault(node.identity, node)  # of two registries the one named first is believed
        lost = {node.identity: node for snapshot in turn for node in snapshot.lost if node.identity not in nodes}
        self._feed.publish(
            tuple(nodes[identity] for identity in sorted(nodes)),
            skipped=sum(snapshot.skipped for snapshot in turn),
            is_stale=any(snapshot.is_stale for snapshot in turn) or not shown,
            lost=tuple(lost.values()),
        )

    def _turn(self) -> list[Snapshot]:
        """The lists of those whose turn it is."""
        present = [(member, self._views[id(member)].snapshot) for member in self._members if id(member) in self._views]
        having = [(member, snapshot) for member, snapshot in present if snapshot.nodes]
        if self._mode == "prefer":
            having = having[:1]
        elif self._mode == "zone":
            having = [pair for pair in having if pair[0].zone == self._zone] or having
        return [snapshot for _, snapshot in having]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(view.close() for view in self._views.values()), return_exceptions=True)

    async def _watch(self, view: Subscription) -> None:
        with contextlib.suppress(RegistryClosed):
            version = view.snapshot.version
            while True:
                version = (await view.changed(version)).version
                self.show()

    def _own(self, work: asyncio._CoroutineLike[None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _MultiEntry(Entry):
    """One node at several registries."""

    def __init__(self, node: Node, registry: MultiRegistry) -> None:
        super().__init__(node, registry)
        self._registry = registry
        self._parts: list[Registration] = []

    async def join(self, member: Member) -> None:
        if member.is_registered and not self._is_withdrawn:
            self._parts.append(await member.registry.register(self._node))

    async def _publish(self, node: Node) -> None:
        await asyncio.gather(*(part.update(node) for part in self._parts))

    async def _remove(self) -> None:
        self._registry.forget(self)
        await asyncio.gather(*(part.withdraw() for part in self._parts))


def of_locator(locator: Locator, opened: Callable[[str], Registry]) -> MultiRegistry:
    """From ``multi://mode?1=URL&1.zone=..&1.register=..&2=URL``; *opened* makes a registry of a URL."""
    locator.reject_credentials()
    numbers = sorted((key for key in locator.options if key.isdigit()), key=int)
    locator.require_options("zone", *_options_of(numbers))
    if locator.path.strip("/"):
        raise MalformedUrl("multi:// has no path; registries go into the query: multi://merge?1=...&2=...")
    members = []
    for number in numbers:
        url = locator.options[number]
        if url.startswith("multi:"):
            raise MalformedUrl("multi:// does not nest")
        members.append(
            Member(
                opened(url),
                is_registered=locator.flag(f"{number}.register", default=True),
                zone=locator.options.get(f"{number}.zone", ""),
            )
        )
    return MultiRegistry(members, mode=cast(Mode, locator.authority or "merge"), zone=locator.options.get("zone", ""))


def _options_of(numbers: Iterable[str]) -> list[str]:
    return [f"{number}{suffix}" for number in numbers for suffix in ("", ".zone", ".register")]
