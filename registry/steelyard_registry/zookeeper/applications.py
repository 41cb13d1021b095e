"""``zookeeper://..?discovery=application``: Dubbo 3's application-level discovery, read and written (see ``instance``).

With ``discovery=both`` it stands beside the interface-level registry as one (``multi``): own nodes are registered both
ways, and a service's nodes are those of both lists, where the interface's are believed first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from ..backend import Backend, Entry
from ..base import Registration, Subscription
from ..errors import MalformedUrl, RegistryError, RegistryUnreachable
from ..feed import Feed
from ..instance import parse_mapping, write_instance, write_offers
from ..locator import Locator
from ..node import Node, ServiceKey
from ..url import provider_url
from .appwatch import ApplicationWatch
from .place import Place
from .placement import Placement
from .registry import ANSWER_WAIT_S, LEAVE_WAIT_S
from .session import AWAY, Session
from .shared import Lease

log = logging.getLogger(__name__)


class ApplicationRegistry(Backend):
    """An instance a process, application and address. A node has to name its application."""

    def __init__(self, locator: Locator) -> None:
        self._place = Place.of(locator)
        super().__init__(f"{self._place.door.url}/{self._place.services}")
        self._lease: Lease | None = None
        self._watches: dict[Feed, ApplicationWatch] = {}
        self._instances: dict[tuple[str, str], _Process] = {}

    async def _start(self, wait_s: float | None) -> None:
        lease = self._lease = Lease(self._place)
        try:
            await lease.session.answered(wait_s)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(lease.release()))
            raise

    async def _stop(self) -> None:
        for feed in self._watches:
            feed.end()
        watches, self._watches = list(self._watches.values()), {}
        await asyncio.gather(*(watch.cancel() for watch in watches))
        processes, self._instances = list(self._instances.values()), {}
        lease = self._lease
        if lease is not None:
            is_there = lease.session.is_connected and not lease.is_last
            for process in processes:
                if is_there:
                    await process.placement.remove(LEAVE_WAIT_S)
                await process.placement.cancel()
            await lease.release()

    async def register(self, node: Node) -> Registration:
        session = self._require_session()
        if self._place.door.is_read_only:
            raise RegistryError(f"{self._url} was opened as a read-only observer; nothing can be registered through it")
        provider_url(node)
        if not node.application or "/" in node.application:
            raise MalformedUrl(
                f"{node.identity}: application-level discovery needs the name of an application, not "
                f"{node.application[:80]!r}; give the provider one, or use discovery=interface"
            )
        key = node.application, node.address
        process = self._instances.get(key)
        if process is None:
            process = self._instances[key] = _Process(session, self._place, *key)
        entry = _ApplicationEntry(node, self, process)
        process.nodes[node.service_key] = node
        try:
            await self.publish(process)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self.take_out(process, node)))
            raise
        return entry

    async def publish(self, process: _Process) -> None:
        """Make the instance say what its nodes say. First what it leads readers to: the metadata, the mapping."""
        session = self._require_session()
        try:
            revision, document = write_offers(process.application, process.nodes.values())
            path = f"{self._place.root}/metadata/{process.application}/{revision}"
            if revision not in process.written:
                await _create(session, path, document)
                process.written.add(revision)
            for interface in {node.interface for node in process.nodes.values()} - process.written:
                await _add_to_mapping(session, f"{self._place.root}/mapping/{interface}", process.application)
                process.written.add(interface)
        except AWAY:
            log.warning("%s: away; %s will be registered when it is back", self._url, process.address)
        except KazooException as error:
            raise RegistryError(f"{self._url} refused {process.address}: {type(error).__name__}") from error
        if not await process.placement.rewrite(write_instance(process.application, process.nodes.values())):
            log.warning("%s: away; %s is written when it is back", self._url, process.address)

    async def take_out(self, process: _Process, node: Node) -> None:
        process.nodes.pop(node.service_key, None)
        if process.nodes and not self._is_closed():
            await self.publish(process)
        elif self._instances.pop((process.application, process.address), None) is not None:
            is_connected = self._lease is not None and self._lease.session.is_connected
            await process.placement.remove(LEAVE_WAIT_S if is_connected else 0.0)
            await process.placement.cancel()

    async def subscribe(self, service: ServiceKey) -> Subscription:
        session = self._require_session()
        feed = Feed(service, on_close=self._drop)
        watch = self._watches[feed] = ApplicationWatch(session, self._place, feed)
        await watch.start_for(feed, ANSWER_WAIT_S)
        return feed

    async def services(self) -> tuple[str, ...]:
        """The interfaces of the mapping. It only ever grows, so not all of them need have an instance."""
        session = self._require_session()
        try:
            return tuple(sorted(map(str, await session.call("get_children", f"{self._place.root}/mapping"))))
        except NoNodeError:
            return ()
        except AWAY as error:
            raise RegistryUnreachable(f"{self._url} does not answer now") from error
        except KazooException as error:
            raise RegistryError(f"{self._url} refused to list its services: {type(error).__name__}") from error

    async def _drop(self, feed: Feed) -> None:
        watch = self._watches.pop(feed, None)
        if watch is not None:
            await watch.cancel()

    def _require_session(self) -> Session:
        self.require_open()
        assert self._lease is not None
        return self._lease.session


class _Process:
    """One instance: the nodes at one address, and what of them is in ZooKeeper."""

    def __init__(self, session: Session, place: Place, application: str, address: str) -> None:
        self.application = application
        self.address = address
        self.nodes: dict[str, Node] = {}
        self.written: set[str] = set()
        folder = f"/{place.services}/{application}"
        self.placement = _Body(session, place, folder, address, f"instance {application} {address}")


class _Body(Placement):
    """A placement whose entry has a body that changes."""

    def __init__(self, session: Session, place: Place, folder: str, name: str, label: str) -> None:
        super().__init__(session, place, folder, name, label)
        self._is_started = False

    async def rewrite(self, body: bytes) -> bool:
        """Whether the entry has *body* now; otherwise its task goes on trying."""
        self.body = body
        if not self._is_started:
            self._is_started = True
            self.start()
            return await self.first_pass(ANSWER_WAIT_S)
        return await self._want(self._wanted, ANSWER_WAIT_S)

    async def _ensure(self, path: str) -> None:
        await super()._ensure(path)
        found, stat = await self._session.call("get", path)
        if bytes(found) != self.body and stat.ephemeralOwner == self._session.session_id:
            await self._session.call("set", path, self.body)


class _ApplicationEntry(Entry):
    def __init__(self, node: Node, registry: ApplicationRegistry, process: _Process) -> None:
        super().__init__(node, registry)
        self._registry = registry
        self._process = process

    async def _publish(self, node: Node) -> None:
        nodes: Mapping[str, Node] = self._process.nodes
        if node.service_key in nodes:
            self._process.nodes[node.service_key] = node
            await self._registry.publish(self._process)

    async def _remove(self) -> None:
        try:
            await self._registry.take_out(self._process, self.node)
        except RegistryError as error:  # goes with the session
            log.warning("%s: not taken out: %s", self.node.identity, error)


async def _create(session: Session, path: str, body: bytes) -> None:
    try:
        await session.call("create", path, body, makepath=True)
    except NodeExistsError:
        pass


async def _add_to_mapping(session: Session, path: str, application: str) -> None:
    """Applications add themselves, each without losing another's."""
    while True:
        try:
            body, stat = await session.call("get", path)
            names = parse_mapping(bytes(body))
            if application not in names:
                await session.call("set", path, ",".join((*names, application)).encode(), version=stat.version)
            return
        except NoNodeError:
            try:
                await session.call("create", path, application.encode(), makepath=True)
                return
            except NodeExistsError:
                continue
        except BadVersionError:
            continue
