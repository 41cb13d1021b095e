"""``dns://``: a cluster whose nodes are the addresses of a name, kept by whoever keeps the zone.

    dns://ctr.ads.svc:20880                 A and AAAA records, all on one port
    dns://_tri._tcp.ctr.ads.svc             SRV records, which bring ports, weights and priorities
    dns://10.0.0.53:53/ctr.ads.svc:20880    asked of this server, and not of the machine's own

Facts about the nodes go into the query, as in ``static://`` (``?zone=a&hw.kind=gpu``); options are ``min_ttl_s`` [1]
and ``max_ttl_s`` [60], which bound how often the name is asked for again, and ``empty_grace_s`` [30], for which a name
that has lost all its records keeps the last ones.

The answer's TTL says when to ask again, so the system's resolver will not do: it hides TTLs and knows no SRV. Only the
most preferred priority of SRV records is used (RFC 2782: others are for when it cannot be reached, which this side
cannot tell); of a weight of 0 is made 1, since 0 takes no traffic here and little there. A server that does not answer
changes nothing: the list stays, marked stale. Like a fixed list it answers every service key and announces nobody.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from .backend import Backend, Entry
from .base import Registration, Subscription
from .errors import MalformedUrl, RegistryError, RegistryUnreachable
from .feed import Feed, select
from .locator import Locator, is_host, split_address
from .node import Node, ServiceKey
from .url import node_from_pairs, split_query

log = logging.getLogger(__name__)

_OPTIONS = ("min_ttl_s", "max_ttl_s", "empty_grace_s")
_FAILED_S = 2.0
_ASK_S = 3.0


@dataclass(frozen=True, slots=True)
class Answer:
    """``ttl_s``: how long it holds."""

    endpoints: tuple[tuple[str, int, int], ...]
    ttl_s: float


class DnsRegistry(Backend):
    """See the module."""

    def __init__(self, locator: Locator) -> None:
        locator.reject_credentials()
        server, name = (locator.authority, locator.path[1:]) if locator.path.strip("/") else ("", locator.authority)
        self._server = split_address(server, 53) if server else None
        self._name, self._port = _target(name)
        self._min_ttl_s = locator.number("min_ttl_s", 1.0, low=0.05, high=3600)
        self._max_ttl_s = locator.number("max_ttl_s", 60.0, low=self._min_ttl_s, high=86400)
        self._grace_s = locator.number("empty_grace_s", 30.0, low=0, high=86400)
        facts = {key: value for key, value in split_query(locator.query).items() if key not in _OPTIONS}
        for key in ("version", "group", "interface"):
            if key in facts:
                raise MalformedUrl(f"dns:// answers every {key}; take {key}= out")
        self._facts = facts
        node_from_pairs("any", "127.0.0.1", 1, facts)  # bad facts are refused now, not with the first answer
        super().__init__("dns://" + (f"{server}/" if server else "") + name)
        self._feeds: set[Feed] = set()
        self._nodes: list[Node] = []
        self._is_stale = False
        self._empty_since_s: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._resolver: Any = None
        self._has_told = False

    async def _start(self, wait_s: float | None) -> None:
        self._resolver = _resolver(self._server)
        try:
            async with asyncio.timeout(wait_s):
                pause_s = await self._first()
        except TimeoutError:
            raise RegistryUnreachable(f"{self._url}: no name server answered within {wait_s:g} s") from None
        self._task = asyncio.get_running_loop().create_task(self._run(pause_s))

    async def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for feed in self._feeds:
            feed.end()
        self._feeds.clear()

    async def register(self, node: Node) -> Registration:
        self.require_open()
        if not self._has_told:
            self._has_told = True
            log.warning("%s announces nobody: %s is found when its address is in the zone", self._url, node.address)
        return _DnsEntry(node, self)

    async def subscribe(self, service: ServiceKey) -> Subscription:
        self.require_open()

        async def drop(feed: Feed) -> None:
            self._feeds.discard(feed)

        feed = Feed(service, on_close=drop)
        self._feeds.add(feed)
        self._show(feed)
        return feed

    async def services(self) -> tuple[str, ...]:
        self.require_open()
        return ()

    async def _first(self) -> float:
        while True:
            try:
                return self._take(await self._ask())
            except RegistryError as error:
                log.debug("%s", error)
                await asyncio.sleep(0.2)

    async def _run(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s * random.uniform(0.9, 1.1))
            try:
                pause_s = self._take(await self._ask())
            except RegistryError as error:
                self._is_stale = True
                log.warning("%s; the last %d addresses stay in use", error, len(self._nodes))
                pause_s = _FAILED_S
            except Exception:
                log.exception("%s: unexpected error", self._url)
                pause_s = _FAILED_S
            for feed in tuple(self._feeds):
                self._show(feed)

    def _take(self, answer: Answer) -> float:
        """Takes an answer; seconds until the next question."""
        now_s = asyncio.get_running_loop().time()
        pause_s = min(max(answer.ttl_s, self._min_ttl_s), self._max_ttl_s)
        if answer.endpoints or not self._nodes:
            self._empty_since_s = None
        elif self._empty_since_s is None:
            log.warning("%s has no addresses; the last %d stay for %g s", self._url, len(self._nodes), self._grace_s)
            self._empty_since_s = now_s
        if self._empty_since_s is not None and now_s < self._empty_since_s + self._grace_s:
            self._is_stale = True
            return min(pause_s, self._empty_since_s + self._grace_s - now_s)
        self._is_stale = False
        self._nodes = [self._node(*endpoint) for endpoint in answer.endpoints]
        return pause_s

    def _node(self, host: str, port: int, weight: int) -> Node:
        node = node_from_pairs("any", host, port, self._facts)
        return node if "weight" in self._facts else replace(node, weight=weight)

    def _show(self, feed: Feed) -> None:
        service = feed.service
        version, group = (("" if asked == "*" else asked) for asked in (service.version, service.group))
        nodes = [replace(node, interface=service.interface, version=version, group=group) for node in self._nodes]
        feed.publish(select(service, nodes), is_stale=self._is_stale)

    async def _ask(self) -> Answer:
        """Raises RegistryError when nobody answers; a name without records is an empty answer."""
        if self._port is None:
            return await self._ask_srv()
        hosts, ttl_s = await self._addresses(self._name)
        return Answer(tuple((host, self._port, 100) for host in hosts), ttl_s)

    async def _ask_srv(self) -> Answer:
        records, ttl_s = await self._query(self._name, "SRV")
        best = min((record.priority for record in records), default=0)
        chosen = [record for record in records if record.priority == best and str(record.target) != "."]
        found = await asyncio.gather(*(self._addresses(str(record.target)) for record in chosen))
        endpoints = {
            (host, record.port, max(1, record.weight))
            for record, (hosts, _) in zip(chosen, found, strict=True)
            for host in hosts
        }
        return Answer(tuple(sorted(endpoints)), min([ttl_s, *(ttl for _, ttl in found)]))

    async def _addresses(self, name: str) -> tuple[list[str], float]:
        if _is_address(name):
            return [name], 1e9
        answers = await asyncio.gather(self._query(name, "A"), self._query(name, "AAAA"))
        hosts = [record.address for records, _ in answers for record in records]
        ttls_s = [ttl_s for records, ttl_s in answers if records]
        return sorted(set(hosts)), min(ttls_s, default=self._min_ttl_s)

    async def _query(self, name: str, kind: str) -> tuple[Iterable[Any], float]:
        import dns.exception
        import dns.resolver

        try:
            answer = await self._resolver.resolve(name, kind, search=True, lifetime=_ASK_S)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return (), self._min_ttl_s
        except (dns.exception.DNSException, OSError, ValueError) as error:
            raise RegistryError(f"{self._url}: {kind} of {name}: {type(error).__name__}: {error}") from error
        return list(answer), float(answer.rrset.ttl)


class _DnsEntry(Entry):
    """Nothing to keep: it only remembers its node."""

    async def _publish(self, node: Node) -> None:
        pass

    async def _remove(self) -> None:
        pass


def _target(text: str) -> tuple[str, int | None]:
    """name, port; the port is None for a name of SRV records."""
    if text.startswith("_"):
        if not is_host(text):
            raise MalformedUrl(f"dns:// name {text[:100]!r} is not a name of SRV records")
        return text, None
    if not text:
        raise MalformedUrl("dns:// needs a name, for example dns://ctr.ads.svc:20880")
    try:
        return split_address(text)
    except MalformedUrl as error:
        raise MalformedUrl(f"dns://{text[:100]}: {error}; names of SRV records begin with '_'") from None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _resolver(server: tuple[str, int] | None) -> Any:
    try:
        import dns.asyncresolver
        import dns.resolver
    except ImportError:
        raise RegistryError("dns:// needs the package dnspython: pip install 'steelyard[dns]'") from None
    if server is None:
        try:
            return dns.asyncresolver.Resolver()
        except dns.resolver.NoResolverConfiguration as error:
            raise RegistryError(f"this machine names no name server ({error}); write dns://SERVER/NAME") from error
    resolver = dns.asyncresolver.Resolver(configure=False)
    if not _is_address(server[0]):
        raise MalformedUrl(f"dns:// server {server[0]!r} has to be an IP address")
    resolver.nameservers, resolver.port = [server[0]], server[1]
    return resolver
