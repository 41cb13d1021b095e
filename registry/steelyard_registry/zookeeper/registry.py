"""The ZooKeeper registry: one session, a placement for each own entry, a watch for each subscription."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from urllib.parse import unquote

from kazoo.exceptions import KazooException, NoNodeError

from ..backend import Backend, Entry
from ..base import Registration, Subscription
from ..cache import Cache
from ..errors import MalformedUrl, RegistryClosed, RegistryError, RegistryUnreachable
from ..feed import Feed
from ..locator import Locator
from ..node import Node, ServiceKey
from ..rule_urls import CATEGORIES, RuleUrlsView
from ..rules import GROUP, Rule, check_rule
from ..url import consumer_url, encode, node_name
from .document import DocumentWatch, document_path, write_document
from .keeper import Keeper
from .place import Place
from .placement import Placement
from .reconciler import Reconciler
from .rule_watch import RuleUrlsWatch
from .session import AWAY, Session
from .shared import Lease
from .watch import ProviderWatch

log = logging.getLogger(__name__)

ANSWER_WAIT_S = 5.0
"""How long register, update and subscribe wait for a server that is away, before they leave it to their tasks."""
LEAVE_WAIT_S = 3.0


class ZooKeeperRegistry(Backend):
    """``zookeeper://[user:password@]host:port[,host:port]/root?session_timeout_s=10&empty_grace_s=10&application=name``

    (root: ``dubbo``; all options: ``Place.of``). When the server goes away after ``open``, nothing raises: ``register``
    and ``update`` return after five seconds and are made true when it is back; ``subscribe`` gives the list that was
    kept on disk, or an empty one, marked stale, and fills by itself. What the server *refuses* (access lists) raises
    RegistryError.
    """

    keeps_rules = True

    def __init__(self, locator: Locator) -> None:
        self._place = Place.of(locator)
        super().__init__(self._place.url)
        self._lease: Lease | None = None
        self._leaving: asyncio.Future[None] | None = None
        self._placements: set[Placement] = set()
        self._watches: dict[Feed, tuple[ProviderWatch, Placement | None]] = {}
        self._rules: dict[Rule, DocumentWatch] = {}
        self._rule_urls: dict[RuleUrlsView, RuleUrlsWatch] = {}
        self._keeper: Keeper | None = None
        self._own_host = "127.0.0.1"

    def _has_cache(self) -> bool:
        return not Cache(self._url, self._place.cache).is_empty

    async def _start(self, wait_s: float | None) -> None:
        self._leaving = asyncio.get_running_loop().create_future()
        lease = self._lease = Lease(self._place)
        answered = asyncio.ensure_future(lease.session.answered(wait_s))
        try:
            await asyncio.wait((answered, self._leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answered.done():  # closed while it was opening; the session may go on for others
                raise RegistryClosed(f"{self._url} was closed while it was being opened")
            answered.result()
        except BaseException:
            answered.cancel()
            await asyncio.gather(answered, return_exceptions=True)
            await asyncio.shield(asyncio.ensure_future(lease.release()))
            raise
        await self._begin()

    async def _start_away(self) -> None:
        self._lease = Lease(self._place)
        await self._begin()

    async def _begin(self) -> None:
        self._keeper = Keeper(await asyncio.to_thread(Cache, self._url, self._place.cache))
        self._own_host = await asyncio.to_thread(_host_towards, self._place.door.hosts[0])

    async def _stop(self) -> None:
        if self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(None)
        lease, keeper = self._lease, self._keeper
        views: list[Feed | Rule | RuleUrlsView] = [*self._watches, *self._rules, *self._rule_urls]
        for view in views:
            view.end()
        lists = [watch for watch, _ in self._watches.values()]
        watches: list[Reconciler] = [*lists, *self._rules.values(), *self._rule_urls.values()]
        self._rules.clear()
        self._rule_urls.clear()
        own = [placement for _, placement in self._watches.values() if placement is not None]
        placements = [*self._placements, *own]
        self._placements.clear()
        self._watches.clear()
        await asyncio.gather(*(watch.cancel() for watch in watches))
        if lease is not None:
            if not lease.is_last:  # the session lives on for others, so each entry has to be taken out
                await asyncio.gather(*(self._take_out(lease.session, placement) for placement in placements))
            else:
                await asyncio.gather(*(placement.cancel() for placement in placements))
            await lease.release()
        if keeper is not None:
            await keeper.flush()

    async def _take_out(self, session: Session, placement: Placement) -> None:
        if await placement.remove(LEAVE_WAIT_S if session.is_connected else 0.0):
            await placement.cancel()
        else:
            session.leave_to(placement)

    async def register(self, node: Node) -> Registration:
        session = self._require_session()
        if self._place.door.is_read_only:
            raise RegistryError(f"{self._url} was opened as a read-only observer; nothing can be registered through it")
        folder = self._place.folder(node.interface, "providers")
        placement = Placement(session, self._place, folder, node_name(node), node.identity)
        self._placements.add(placement)
        placement.start()
        try:
            if not await placement.first_pass(ANSWER_WAIT_S):
                log.warning("%s: away; %s will be registered when it is back", self._url, node.identity)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self.remove(placement)))
            raise
        return _ZooKeeperEntry(node, self, placement)

    async def subscribe(self, service: ServiceKey) -> Subscription:
        session = self._require_session()
        assert self._keeper is not None
        feed = Feed(service, on_close=self._drop)
        watch = ProviderWatch(session, self._place, feed, self._keeper.keep)
        placement = self._announcement(session, service)
        self._watches[feed] = (watch, placement)
        try:
            is_away = not session.is_connected
            if is_away:
                await self._show_kept(watch)
            watch.start()
            if not (is_away and feed.snapshot.nodes) and not await watch.first_pass(ANSWER_WAIT_S):
                if not is_away:
                    await self._show_kept(watch)
                feed.mark_stale()
        except BaseException:
            _start(placement)
            await asyncio.shield(asyncio.ensure_future(feed.close()))
            raise
        _start(placement)  # after the list: a thousand subscriptions at once are first of all a thousand lists
        return feed

    def _announcement(self, session: Session, service: ServiceKey) -> Placement | None:
        """The consumer's own entry. For operators only: neither waited for nor able to fail the subscription."""
        if self._place.door.is_read_only:
            return None
        own = consumer_url(
            service,
            host=self._own_host,
            pid=os.getpid(),
            started_at_ms=time.time_ns() // 1_000_000,
            application=self._place.application,
        )
        folder = self._place.folder(service.interface, "consumers")
        return Placement(session, self._place, folder, encode(own), f"consumer of {service}")

    async def _show_kept(self, watch: ProviderWatch) -> None:
        assert self._keeper is not None
        service = watch.feed.service
        kept = await self._keeper.load(service.interface)
        if kept is not None:
            await watch.show_kept(kept.entries)
            count = len(watch.feed.snapshot.nodes)
            log.warning(
                "%s: away; %d nodes of %s from the list that was kept %.0f s ago", self._url, count, service, kept.age_s
            )

    async def services(self) -> tuple[str, ...]:
        session = self._require_session()
        try:
            names = [str(name) for name in await session.call("get_children", self._place.root)]
            paths = [f"{self._place.root}/{name}/providers" for name in names]
            found = await asyncio.gather(*(session.call("exists", path) for path in paths))
        except NoNodeError:
            return ()
        except AWAY as error:
            raise RegistryUnreachable(f"{self._url} does not answer now") from error
        except KazooException as error:
            raise RegistryError(f"{self._url} refused to list its services: {type(error).__name__}") from error
        # The root also holds `config`, `mapping`, `metadata`, which have no providers.
        return tuple(
            sorted(unquote(name) for name, stat in zip(names, found, strict=True) if stat and stat.numChildren)
        )

    async def rule(self, key: str, group: str = GROUP) -> Rule:
        check_rule(key, group)
        session = self._require_session()
        rule = Rule(key, group, on_close=self._drop_rule)
        watch = self._rules[rule] = DocumentWatch(session, self._place, rule)
        await watch.start_for(rule, ANSWER_WAIT_S)
        return rule

    async def publish_rule(self, key: str, text: str | None, group: str = GROUP) -> None:
        check_rule(key, group, text)
        session = self._require_session()
        try:
            await write_document(session, document_path(self._place, group, key), text)
        except AWAY as error:
            raise RegistryUnreachable(f"{self._url} does not answer now; it may have taken the rule") from error
        except KazooException as error:
            raise RegistryError(f"{self._url} refused rule {group}/{key}: {type(error).__name__}") from error

    async def rule_urls(self, interface: str, category: str) -> RuleUrlsView:
        if category not in CATEGORIES:
            raise MalformedUrl(f"rules stand under {' and '.join(CATEGORIES)}, not under {category[:40]!r}")
        session = self._require_session()
        view = RuleUrlsView(interface, category, self._drop_rule_urls)
        watch = self._rule_urls[view] = RuleUrlsWatch(session, self._place, view)
        await watch.start_for(view, ANSWER_WAIT_S)
        return view

    async def _drop_rule_urls(self, view: RuleUrlsView) -> None:
        watch = self._rule_urls.pop(view, None)
        if watch is not None:
            await watch.cancel()

    async def _drop_rule(self, rule: Rule) -> None:
        watch = self._rules.pop(rule, None)
        if watch is not None:
            await watch.cancel()

    async def remove(self, placement: Placement) -> None:
        """Take an own entry out. When the server is away its task goes on trying, until the registry is closed."""
        if placement not in self._placements:
            return
        is_connected = self._lease is not None and self._lease.session.is_connected
        if await placement.remove(LEAVE_WAIT_S if is_connected else 0.0):
            self._placements.discard(placement)
            await placement.cancel()
        elif placement in self._placements:  # not closed meanwhile
            log.warning("%s: away; taken out when it is back, or with the end of the session", placement)

    async def _drop(self, feed: Feed) -> None:
        pair = self._watches.pop(feed, None)
        if pair is not None:
            watch, placement = pair
            if placement is not None:
                self._placements.add(placement)  # before any wait: close() must find it
            await watch.cancel()
            if placement is not None:
                await self.remove(placement)

    def _require_session(self) -> Session:
        self.require_open()
        assert self._lease is not None
        return self._lease.session


class _ZooKeeperEntry(Entry):
    def __init__(self, node: Node, registry: ZooKeeperRegistry, placement: Placement) -> None:
        super().__init__(node, registry)
        self._registry = registry
        self._placement = placement

    async def _publish(self, node: Node) -> None:
        if not await self._placement.rename(node_name(node), ANSWER_WAIT_S):
            log.warning("%s: away; the update of %s is made when it is back", self._registry.url, node.identity)

    async def _remove(self) -> None:
        await self._registry.remove(self._placement)


def _start(placement: Placement | None) -> None:
    if placement is not None and not placement.is_cancelled:
        placement.start()


def _host_towards(server: tuple[str, int]) -> str:
    """The own address on the way to *server* (nothing is sent): what operators read in consumer entries."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(*server, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
