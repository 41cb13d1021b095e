"""Dubbo 3's application-level discovery: an *instance* is one process of an application; which services it has stands
elsewhere, once for all instances that have the same.

    /services/{application}/{host:port}         an instance: Curator's JSON with Dubbo's payload
    /{root}/metadata/{application}/{revision}   the services behind a revision (where ``storage-type`` is remote)
    /{root}/mapping/{interface}                 the applications that have it, with commas between

Where the services of a revision are kept in the instance's own memory (``storage-type`` local, Dubbo's default), they
can be had only by calling it. Then the mapping is believed: the instance is taken to have what was asked for.

Our own instances carry their provider URLs beside that (``steelyard.urls``), so that no fact of a node is lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import MalformedUrl
from .node import Node, ServiceKey
from .url import node_from_pairs, parse_provider_url, provider_url

MAX_BODY_BYTES = 1024 * 1024
URLS = "steelyard.urls"
_PAYLOAD_CLASS = "org.apache.dubbo.registry.zookeeper.ZookeeperInstance"


@dataclass(frozen=True, slots=True)
class Instance:
    """One process. ``endpoints`` are ports by protocol; ``facts`` is Dubbo's metadata."""

    application: str
    host: str
    port: int
    endpoints: Mapping[str, int]
    facts: Mapping[str, str]
    registered_at_ms: int = 0

    @property
    def revision(self) -> str:
        """Of its services; empty where it does not say."""
        return self.facts.get("dubbo.metadata.revision", "")

    @property
    def keeps_services(self) -> bool:
        """Whether its services can be had only by calling it."""
        return self.facts.get("dubbo.metadata.storage-type", "local") != "remote"


@dataclass(frozen=True, slots=True)
class Offer:
    """One service in a metadata document."""

    interface: str
    group: str
    version: str
    protocol: str
    params: Mapping[str, str]


def parse_instance(application: str, body: bytes) -> Instance:
    """Raises MalformedUrl."""
    found = _json(body, "an instance")
    payload = _mapping(found.get("payload") or {}, "payload")
    facts = _texts(_mapping(payload.get("metadata") or {}, "metadata"))
    host, port = found.get("address"), found.get("port")
    if not isinstance(host, str) or not host or not isinstance(port, int) or not 1 <= port <= 65535:
        raise MalformedUrl(f"an instance of {application!r} without address and port")
    registered = found.get("registrationTimeUTC")
    return Instance(
        application=application,
        host=host,
        port=port,
        endpoints=_endpoints(facts.get("dubbo.endpoints", "")),
        facts=facts,
        registered_at_ms=registered if isinstance(registered, int) and registered > 0 else 0,
    )


def parse_offers(body: bytes) -> tuple[Offer, ...]:
    """The services of a metadata document. Raises MalformedUrl."""
    services = _mapping(_json(body, "service metadata").get("services") or {}, "services")
    offers = []
    for one in services.values():
        facts = _mapping(one, "a service")
        texts = _texts(facts)
        params = _texts(_mapping(facts.get("params") or {}, "params"))
        if texts.get("name"):
            offers.append(
                Offer(
                    texts["name"],
                    texts.get("group", params.get("group", "")),
                    texts.get("version", params.get("version", "")),
                    texts.get("protocol", ""),
                    params,
                )
            )
    return tuple(offers)


def parse_mapping(body: bytes) -> tuple[str, ...]:
    """The applications; those that are no path part are left out."""
    names = body.decode("utf-8", "replace").split(",")
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip() and "/" not in name and len(name) < 512))


def nodes_of(instance: Instance, offers: Iterable[Offer] | None, service: ServiceKey) -> list[Node]:
    """What *instance* has of *service* and this package can call. *offers* is None where nobody could tell. Raises
    MalformedUrl."""
    if URLS in instance.facts:
        nodes = [parse_provider_url(url) for url in _strings(instance.facts[URLS])]
        return [node for node in nodes if service.accepts(node)]
    if instance.endpoints and "tri" not in instance.endpoints:
        return []
    if offers is None:
        version, group = (("" if asked == "*" else asked) for asked in (service.version, service.group))
        offers = [Offer(service.interface, group, version, "tri", {})]
    found = []
    for offer in offers:
        if offer.interface == service.interface and offer.protocol in ("tri", ""):
            node = _node(instance, offer)
            if service.accepts(node):
                found.append(node)
    return found


def _node(instance: Instance, offer: Offer) -> Node:
    own = {key: value for key, value in instance.facts.items() if not key.startswith("dubbo.")}
    pairs = {**own, **offer.params, "version": offer.version, "group": offer.group}
    pairs.setdefault("timestamp", str(instance.registered_at_ms or ""))
    pairs["application"] = instance.application
    # Values are plain here, and still escaped where node_from_pairs reads them.
    escaped = {key: value.replace("%", "%25") for key, value in pairs.items()}
    escaped.pop("interface", None)
    port = instance.endpoints.get("tri", instance.port)
    return node_from_pairs(offer.interface, instance.host, port, escaped)


def write_offers(application: str, nodes: Iterable[Node]) -> tuple[str, bytes]:
    """The revision of what *nodes* (of one process) have, and the document that tells it."""
    services = {}
    for node in sorted(nodes, key=lambda node: node.service_key):
        params = {"methods": ",".join(node.methods), "side": "provider", "version": node.version, "group": node.group}
        services[f"{node.service_key}:tri"] = {
            "name": node.interface,
            "group": node.group or None,
            "version": node.version or None,
            "protocol": "tri",
            "path": node.interface,
            "params": {key: value for key, value in params.items() if value},
        }
    content = json.dumps(services, sort_keys=True)
    revision = hashlib.md5(f"{application} {content}".encode(), usedforsecurity=False).hexdigest()
    return revision, json.dumps({"app": application, "revision": revision, "services": services}).encode()


def write_instance(application: str, nodes: Iterable[Node]) -> bytes:
    """The instance that *nodes*, all at one address, are."""
    nodes = sorted(nodes, key=lambda node: node.service_key)
    first = nodes[0]
    revision, _ = write_offers(application, nodes)
    name = first.address
    facts = {
        "dubbo.endpoints": json.dumps([{"port": first.port, "protocol": "tri"}]),
        "dubbo.metadata.revision": revision,
        "dubbo.metadata.storage-type": "remote",
        "timestamp": str(first.started_at_ms),
        URLS: json.dumps([provider_url(node) for node in nodes]),
    }
    return json.dumps(
        {
            "name": application,
            "id": name,
            "address": first.host,
            "port": first.port,
            "sslPort": None,
            "payload": {"@class": _PAYLOAD_CLASS, "id": name, "name": application, "metadata": facts},
            "registrationTimeUTC": first.started_at_ms,
            "serviceType": "DYNAMIC",
            "uriSpec": None,
        }
    ).encode()


def _json(body: bytes, what: str) -> dict[str, Any]:
    if len(body) > MAX_BODY_BYTES:
        raise MalformedUrl(f"{what} of {len(body)} bytes; at most {MAX_BODY_BYTES}")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedUrl(f"{what} that is no JSON: {str(error)[:80]}") from None
    return _mapping(found, what)


def _mapping(found: Any, what: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise MalformedUrl(f"{what} is no JSON object")
    return found


def _texts(found: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in found.items() if isinstance(value, str | int | float)}


def _strings(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise MalformedUrl(f"{URLS} is no list of URLs")
    return found


def _endpoints(text: str) -> dict[str, int]:
    """``[{"port":20880,"protocol":"tri"}]``; what cannot be read is left out."""
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return {}
    listed = found if isinstance(found, list) else []
    return {
        one["protocol"]: one["port"]
        for one in listed
        if isinstance(one, dict) and isinstance(one.get("protocol"), str) and isinstance(one.get("port"), int)
    }
