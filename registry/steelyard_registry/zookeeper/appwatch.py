"""One service by way of its applications: mapping, instances and metadata, read as a whole and kept true.

Unlike interface-level entries, whose names say everything, each instance is a body of its own with a watch of its own.
Bodies are read again only when their watch says so; a revision's services never change and are read once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from kazoo.exceptions import NoNodeError

from ..errors import MalformedUrl
from ..feed import Feed, select
from ..instance import Instance, Offer, nodes_of, parse_instance, parse_mapping, parse_offers
from ..node import Node
from .place import Place
from .reconciler import Reconciler
from .session import Session
from .showing import Showing

log = logging.getLogger(__name__)

MOST_APPLICATIONS = 64
"""Of one interface. Dubbo's mapping only ever grows."""


class ApplicationWatch(Reconciler):
    """Feeds *feed*. Its task runs until ``cancel``."""

    def __init__(self, session: Session, place: Place, feed: Feed) -> None:
        super().__init__(session, place, f"{place.root}/mapping/{feed.service.interface}")
        self.feed = feed
        self._showing = Showing(session, place, feed, lambda identity: identity in self._shown)
        self._shown: dict[str, Node] = {}
        self._instances: dict[str, Instance | None] = {}  # by path; what is not here has to be read
        self._offers: dict[tuple[str, str], tuple[Offer, ...] | None] = {}
        self._paths: dict[str, Any] = {}
        self._told: set[str] = set()

    async def cancel(self) -> None:
        for path, on_event in self._paths.items():
            self._session.unfollow(path, on_event)
        self._paths.clear()
        await super().cancel()

    def _went_away(self) -> None:
        self._instances.clear()  # their watches went with the connection
        self._showing.went_away()

    async def _pass(self) -> float | None:
        self._follow(self.path)
        body = await self._body(self.path)
        applications = () if body is None else parse_mapping(body)[:MOST_APPLICATIONS]
        paths = [path for application in applications for path in await self._list(application)]
        await self._read(paths)
        there = set(paths)
        for path in [path for path in self._instances if path not in there]:
            del self._instances[path]
        nodes, skipped = await self._nodes(paths)
        before, self._shown = self._shown, {node.identity: node for node in nodes}
        gone = [node for identity, node in before.items() if identity not in self._shown]
        self._heed({self.path, *there, *(self._folder(application) for application in applications)})
        return self._showing.show(nodes, gone, skipped)

    def _folder(self, application: str) -> str:
        return f"/{self._place.services}/{application}"

    async def _list(self, application: str) -> list[str]:
        folder = self._folder(application)
        self._hear(folder)
        while True:
            try:
                names = await self._session.call("get_children", folder, watch=self._session.watcher)
                return [f"{folder}/{name}" for name in sorted(names)]
            except NoNodeError:
                if await self._session.call("exists", folder, watch=self._session.watcher) is None:
                    return []

    async def _read(self, paths: Iterable[str]) -> None:
        fresh = [path for path in paths if path not in self._instances]
        for path in fresh:
            self._hear(path)
        bodies = await asyncio.gather(*(self._body(path, is_child=True) for path in fresh), return_exceptions=True)
        for path, body in zip(fresh, bodies, strict=True):
            if isinstance(body, BaseException):
                raise body
            if body is not None:
                application = path.split("/")[-2]
                try:
                    self._instances[path] = parse_instance(application, body)
                except MalformedUrl as error:
                    self._instances[path] = None
                    self._tell(path, error)

    async def _nodes(self, paths: Iterable[str]) -> tuple[tuple[Node, ...], int]:
        nodes: list[Node] = []
        skipped = 0
        for path in paths:
            instance = self._instances.get(path)
            if instance is None:
                skipped += path in self._instances
                continue
            try:
                nodes += nodes_of(instance, await self._offers_of(instance), self.feed.service)
            except MalformedUrl as error:
                skipped += 1
                self._tell(path, error)
        return select(self.feed.service, nodes), skipped

    async def _offers_of(self, instance: Instance) -> tuple[Offer, ...] | None:
        """None: nobody can tell, so the mapping is believed."""
        if not instance.revision or instance.keeps_services:
            return None
        key = instance.application, instance.revision
        if self._offers.get(key) is None:  # not read yet, or not there yet: instances are written first
            body = await self._body(f"{self._place.root}/metadata/{key[0]}/{key[1]}", is_watched=False)
            try:
                self._offers[key] = None if body is None else parse_offers(body)
            except MalformedUrl as error:
                self._offers[key] = None
                self._tell(str(key), error)
        return self._offers[key]

    async def _body(self, path: str, *, is_child: bool = False, is_watched: bool = True) -> bytes | None:
        """None where there is no such node. Sets a watch in any case, except on a child that is not there: its folder
        has one."""
        watch = self._session.watcher if is_watched else None
        while True:
            try:
                return bytes((await self._session.call("get", path, watch=watch))[0])
            except NoNodeError:
                if is_child or not is_watched or await self._session.call("exists", path, watch=watch) is None:
                    return None

    def _hear(self, path: str) -> None:
        if path not in self._paths:

            def on_event(_kind: str) -> None:
                self._instances.pop(path, None)
                self.wake()

            self._paths[path] = on_event
            self._session.follow(path, on_event)

    def _heed(self, paths: set[str]) -> None:
        """Hear no more of what is not among *paths*."""
        for path in [path for path in self._paths if path not in paths]:
            self._session.unfollow(path, self._paths.pop(path))

    def _tell(self, path: str, error: MalformedUrl) -> None:
        level = logging.DEBUG if path in self._told or len(self._told) >= 20 else logging.WARNING
        self._told.add(path[:200])
        log.log(level, "%s: skipped %s of %s: %s", self._place.url, path[:200], self.feed.service, error)
