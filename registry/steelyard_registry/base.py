"""What every registry promises: register a node, subscribe to a service, list what is there.

One interface over ZooKeeper, a SQLite file, a fixed list and plain memory; one conformance suite proves it for
all of them. Everything is asyncio-facing: a backend whose client has threads of its own (kazoo, SQLite) crosses
over inside the backend, and its callbacks only enqueue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from .errors import RegistryError
from .live import Versioned
from .node import Node, ServiceKey
from .rule_urls import RuleUrlsView
from .rules import GROUP, Rule


@dataclass(frozen=True, slots=True)
class Snapshot(Versioned):
    """The nodes of one service at one moment; built aside and swapped whole, so nobody sees half a list.

    ``is_stale`` says that the registry cannot vouch for the list now (it is
    away, or it told us of an empty list, which keeps the last one). ``skipped`` counts entries that could not be
    read; one bad entry never costs the list.

    ``lost`` are nodes whose entries vanished without a goodbye (they had not said that they drain), within a bounded
    time: a session ended. That proves that they cannot reach the registry, not that they cannot be called. Only
    registries whose entries end with a session have them; whoever holds connections may keep those that answer.
    """

    nodes: tuple[Node, ...] = ()
    is_stale: bool = False
    skipped: int = 0
    lost: tuple[Node, ...] = ()


class Registration(ABC):
    """One node's own entry, kept alive until it is withdrawn."""

    @property
    @abstractmethod
    def node(self) -> Node: ...

    @abstractmethod
    async def update(self, node: Node) -> None:
        """Publish changed facts (state, weight, tags) of the same node. Raises ValueError for another identity,
        RegistryClosed after ``withdraw``. For slow facts, at a bounded rate (ten at once, then one a second; of those
        that wait the newest is published): what changes all the time, load, does not go through here."""

    @abstractmethod
    async def withdraw(self) -> None:
        """Take the entry out. Idempotent; never raises because the registry is away."""


class Subscription(ABC):
    """A live view of one service."""

    @property
    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The newest snapshot; never blocks."""

    @abstractmethod
    async def changed(self, after: int) -> Snapshot:
        """The first snapshot whose version is greater than *after*; at once when it is already there.
        Raises RegistryClosed when the subscription is closed."""

    @abstractmethod
    async def close(self) -> None:
        """Idempotent."""


class Registry(ABC):
    """Where providers say that they are there.

    ``async with registry:`` opens and closes it. ``open`` waits at most ``wait_s`` seconds for the first answer of
    the registry and then raises RegistryUnreachable (None: waits for ever). With ``from_cache`` it does not raise when
    lists were kept on disk by an earlier run: it opens with these, marked stale, and says so in the log.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is, without secrets."""

    @abstractmethod
    async def open(self, wait_s: float | None = 10.0, *, from_cache: bool = False) -> None: ...

    @abstractmethod
    async def register(self, node: Node) -> Registration:
        """Announce *node*. It is there when this returns; should the registry be away just now, this returns after a
        bounded wait all the same, and the node appears when the registry is back. Raises MalformedUrl for a node that
        cannot be published, RegistryError when the registry refuses."""

    @abstractmethod
    async def subscribe(self, service: ServiceKey) -> Subscription:
        """A view of *service*; the first snapshot (version 1 or later) is there when this returns. Should the registry
        be away just now, it is empty and stale, and fills by itself."""

    @abstractmethod
    async def services(self) -> tuple[str, ...]:
        """The interfaces that are known, sorted. For operators, not for the way of a call."""

    keeps_rules: bool = False
    """Whether ``rule`` and ``publish_rule`` can be used."""

    async def rule(self, key: str, group: str = GROUP) -> Rule:
        """A live view of a rule document; its first version is there when this returns. Should the registry be away
        just now, it has no text and is stale. Raises RegistryError where no rules are kept, MalformedUrl for a bad
        key."""
        raise RegistryError(f"{self.url} keeps no rules")

    async def publish_rule(self, key: str, text: str | None, group: str = GROUP) -> None:
        """Replace the document, or take it out (None). Raises RegistryError, RegistryUnreachable, MalformedUrl."""
        raise RegistryError(f"{self.url} keeps no rules")

    async def rule_urls(self, interface: str, category: str) -> RuleUrlsView:
        """A live view of the rules that stand as URLs under *interface*, as Dubbo's up to 2.6 do (``configurators`` or
        ``routers``): read and taken apart, not applied. Its first version is there when this returns. Raises
        RegistryError where there are none (everywhere but in ZooKeeper), MalformedUrl for another category."""
        raise RegistryError(f"{self.url} keeps no rules as URLs")

    @abstractmethod
    async def close(self) -> None:
        """Withdraw what was registered, close what was subscribed. Idempotent."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
