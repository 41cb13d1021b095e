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
from ..errors import RegistryError, RegistryUnreachable
from ..feed import Feed
from ..locator import Locator
from ..node import Node, ServiceKey
from ..url import consumer_url, encode, node_name
from .place import Place
from .placement import Placement
from .session import AWAY, Session
from .watch import ProviderWatch

log = logging.getLogger(__name__)

_ANSWER_WAIT_S = 5.0
"""How long register, update and subscribe wait for a server that is away, before they leave it to their tasks."""
_LEAVE_WAIT_S = 3.0


class ZooKeeperRegistry(Backend):
    """``zookeeper://[user:password@]host:port[,host:port]/root?session_timeout_s=10&empty_grace_s=10&application=name``

    (root: ``dubbo``). When the server goes away after ``open``, nothing raises: ``register`` and ``update`` return
    after five seconds and are made true when it is back, ``subscribe`` gives an empty stale list that fills by itself.
    What the server *refuses* (access lists) raises RegistryError.
    """

    def __init__(self, locator: Locator) -> None:
        self._place = Place.of(locator)
        super().__init__(self._place.url)
        self._session: Session | None = None
        self._placements: set[Placement] = set()
        self._watches: dict[Feed, tuple[ProviderWatch, Placement]] = {}
        self._own_host = "127.0.0.1"

    async def _start(self, wait_s: float | None) -> None:
        session = self._session = Session(self._place)
        try:
            await session.start(wait_s)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(session.stop()))
            raise
        self._own_host = await asyncio.to_thread(_host_towards, self._place.hosts[0])

    async def _stop(self) -> None:
        for feed in self._watches:
            feed.end()
        tasks = [*self._placements, *(task for pair in self._watches.values() for task in pair)]
        self._placements.clear()
        self._watches.clear()
        await asyncio.gather(*(task.cancel() for task in tasks))
        if self._session is not None:
            await self._session.stop()

    async def register(self, node: Node) -> Registration:
        session = self._require_session()
        folder = self._place.folder(node.interface, "providers")
        placement = Placement(session, folder, node_name(node), node.identity)
        self._placements.add(placement)
        placement.start()
        try:
            if not await placement.first_pass(_ANSWER_WAIT_S):
                log.warning("%s: away; %s will be registered when it is back", self._url, node.identity)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self.remove(placement)))
            raise
        return _ZooKeeperEntry(node, self, placement)

    async def subscribe(self, service: ServiceKey) -> Subscription:
        session = self._require_session()
        feed = Feed(service, on_close=self._drop)
        watch = ProviderWatch(session, feed)
        own = consumer_url(
            service,
            host=self._own_host,
            pid=os.getpid(),
            started_at_ms=time.time_ns() // 1_000_000,
            application=self._place.application,
        )
        folder = self._place.folder(service.interface, "consumers")
        placement = Placement(session, folder, encode(own), f"consumer of {service}")
        self._watches[feed] = (watch, placement)
        watch.start()
        placement.start()  # for operators only: neither waited for nor able to fail the subscription
        try:
            if not await watch.first_pass(_ANSWER_WAIT_S):
                feed.mark_stale()
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(feed.close()))
            raise
        return feed

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

    async def remove(self, placement: Placement) -> None:
        """Take an own entry out. When the server is away its task goes on trying, until the registry is closed."""
        if placement not in self._placements:
            return
        if await placement.remove(_LEAVE_WAIT_S if self._session and self._session.is_connected else 0.0):
            self._placements.discard(placement)
            await placement.cancel()
        elif placement in self._placements:  # not closed meanwhile
            log.warning("%s: away; taken out when it is back, or with the end of the session", placement)

    async def _drop(self, feed: Feed) -> None:
        pair = self._watches.pop(feed, None)
        if pair is not None:
            watch, placement = pair
            self._placements.add(placement)  # before any wait: close() must find it
            await watch.cancel()
            await self.remove(placement)

    def _require_session(self) -> Session:
        self.require_open()
        assert self._session is not None
        return self._session


class _ZooKeeperEntry(Entry):
    def __init__(self, node: Node, registry: ZooKeeperRegistry, placement: Placement) -> None:
        super().__init__(node, registry)
        self._registry = registry
        self._placement = placement

    async def _publish(self, node: Node) -> None:
        if not await self._placement.rename(node_name(node), _ANSWER_WAIT_S):
            log.warning("%s: away; the update of %s is made when it is back", self._registry.url, node.identity)

    async def _remove(self) -> None:
        await self._registry.remove(self._placement)


def _host_towards(server: tuple[str, int]) -> str:
    """The own address on the way to *server* (nothing is sent): what operators read in consumer entries."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(*server, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
