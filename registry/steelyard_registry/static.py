"""``static://host:port,host:port``: a fixed list, for a cluster that something else keeps (or for a first try).

The list answers every service key that is asked for: it says where servers are, not what they serve. Facts about the
nodes are provider-URL keys, for all addresses in the query and for one address after a semicolon; the address wins:

    static://10.0.0.1:20880,10.0.0.2:20880?zone=a
    static://10.0.0.1:20880;hw.kind=gpu;weight=200,[fd00::2]:20880;pool=ads?hw.cores=8

(commas, semicolons and slashes inside a value are percent-encoded). ``protocol=grpc`` says of a server that it is no
Steelyard provider; without it each is asked.

A provider may start with a static registry: ``register`` succeeds, announces nothing, and says so once in the log. An
error would only force everybody who tries a provider alone to write a second configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from .backend import Backend, Entry
from .base import Registration, Subscription
from .errors import MalformedUrl
from .feed import Feed, select
from .locator import Locator, split_address
from .node import Node, ServiceKey
from .url import PROTOCOLS, node_from_pairs, split_query

log = logging.getLogger(__name__)


class StaticRegistry(Backend):
    """See the module. ``services()`` is empty: a list of addresses does not know what they serve."""

    def __init__(self, locator: Locator) -> None:
        locator.reject_credentials()
        if locator.path.strip("/"):
            raise MalformedUrl("static:// has no path; a slash inside a value is written %2F")
        shared = split_query(locator.query)
        self._nodes = [_node(text, shared) for text in locator.authority.split(",") if text.strip()]
        if not self._nodes:
            raise MalformedUrl("static:// needs at least one host:port")
        super().__init__("static://" + locator.authority + (f"?{locator.query}" if locator.query else ""))
        self._feeds: set[Feed] = set()
        self._has_told = False

    async def _start(self, wait_s: float | None) -> None:
        pass

    async def _stop(self) -> None:
        for feed in self._feeds:
            feed.end()
        self._feeds.clear()

    async def register(self, node: Node) -> Registration:
        self.require_open()
        if not self._has_told:
            self._has_told = True
            log.warning("static:// announces nobody: %s is found only by consumers that list its address", node.address)
        return _StaticEntry(node, self)

    async def subscribe(self, service: ServiceKey) -> Subscription:
        self.require_open()
        feed = Feed(service, on_close=self._drop)
        version, group = (("" if asked == "*" else asked) for asked in (service.version, service.group))
        nodes = [replace(node, interface=service.interface, version=version, group=group) for node in self._nodes]
        feed.publish(select(service, nodes))
        self._feeds.add(feed)
        return feed

    async def services(self) -> tuple[str, ...]:
        self.require_open()
        return ()

    async def _drop(self, feed: Feed) -> None:
        self._feeds.discard(feed)


def _node(text: str, shared: Mapping[str, str]) -> Node:
    address, *facts = text.split(";")
    host, port = split_address(address)
    own = split_query("&".join(facts))
    pairs = {**shared, **own}
    protocol = pairs.pop("protocol", "tri")
    if protocol not in PROTOCOLS:
        raise MalformedUrl(
            f"static:// {host}:{port}: protocol={protocol[:40]!r} is not {' or '.join(sorted(PROTOCOLS))}"
        )
    for key in ("version", "group", "interface"):
        if key in shared or key in own:
            raise MalformedUrl(f"static:// answers every {key}; take {key}= out")
    return node_from_pairs("any", host, port, pairs, protocol=protocol)


class _StaticEntry(Entry):
    """Nothing to keep: it only remembers its node."""

    async def _publish(self, node: Node) -> None:
        pass

    async def _remove(self) -> None:
        pass
