"""What a provider says about itself: the address others can reach, and the node it registers."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from steelyard.model import ServiceSpec
from steelyard_registry import Hardware, Node, NodeState


def hosts(host: str | None, registry_url: str) -> tuple[str, str]:
    """Where to listen, and the address to register. Registered must be what others can connect to, so that for "all
    addresses" (0.0.0.0, ::) the advertised one is found as for None. Resolves names, and so may block."""
    if host is None:
        found = advertised_host(registry_url)
        return found, found
    return host, advertised_host(registry_url) if _is_any(host) else host


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False


def advertised_host(registry_url: str) -> str:
    """The address of this machine that a consumer of the same registry most likely reaches: the one that this machine
    itself would use towards the registry. Registries without a network (embedded, memory) mean this machine alone.

    Connecting a UDP socket sends nothing; it only asks the kernel for a route.
    """
    try:
        parts = urlsplit(registry_url.split(",")[0])
        host, port = parts.hostname, parts.port or 2181
    except ValueError:
        return "127.0.0.1"
    if parts.scheme in ("embedded", "memory", "static") or not host:
        return "127.0.0.1"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return "127.0.0.1"
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def node_for(
    spec: ServiceSpec,
    *,
    host: str,
    port: int,
    application: str,
    hardware: Hardware,
    zone: str,
    weight: int,
    tags: Mapping[str, str],
    state: NodeState,
) -> Node:
    """The node of one exported service, as it is now."""
    return Node(
        interface=spec.name,
        version=spec.version,
        group=spec.group,
        host=host,
        port=port,
        application=application,
        methods=tuple(sorted(spec.methods)),
        weight=weight,
        state=state,
        started_at_ms=int(time.time() * 1000),
        zone=zone,
        hardware=hardware,
        tags=dict(tags),
    )
