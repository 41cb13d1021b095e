"""Node: one exported service at one address, with the hardware it runs on.

The only node type in the project, from the registry to the picker: there is no second "endpoint" class
beside it. Records are frozen, so a snapshot can be shared by every reader without a lock.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType

EMPTY: Mapping[str, str] = MappingProxyType({})


class NodeState(StrEnum):
    """Where a node is in its life. Only READY nodes are picked."""

    STARTING = "starting"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a node runs on. Detected or declared, never inferred from a name.

    ``cores`` are the CPUs that the process may run on; ``quota`` is the CPU time its container may use, in
    cores (None: no limit); ``memory_bytes`` is the tightest of the machine's memory and the container's limit;
    ``accelerators`` are device names, one entry a device.
    """

    kind: str = "cpu"
    model: str = ""
    cores: float | None = None
    quota: float | None = None
    memory_bytes: int | None = None
    accelerators: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKey:
    """``[group/]interface[:version]``: what a consumer asks for and a provider exports (Dubbo's service key)."""

    interface: str
    version: str = ""
    group: str = ""

    def __str__(self) -> str:
        group = f"{self.group}/" if self.group else ""
        version = f":{self.version}" if self.version else ""
        return f"{group}{self.interface}{version}"

    @classmethod
    def parse(cls, text: str) -> ServiceKey:
        group, slash, rest = text.rpartition("/")
        interface, _, version = rest.partition(":")
        return cls(interface=interface, version=version, group=group if slash else "")

    def accepts(self, node: Node) -> bool:
        """Whether *node* serves this key; ``*`` as version or group takes any."""
        return (
            node.interface == self.interface and self.version in (node.version, "*") and self.group in (node.group, "*")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One service at one address.

    Identity is (service key, host, port): two records with the same identity are the same node at two moments.
    ``weight`` is Dubbo's static weight (100 is normal, 0 takes no traffic). ``started_at_ms`` is Unix time in
    milliseconds (Dubbo's ``timestamp``) and drives slow start. ``tags`` hold the user's own tags and every key of
    a foreign URL that this package does not know, so that a URL read and written again loses nothing.
    """

    interface: str
    host: str
    port: int
    version: str = ""
    group: str = ""
    protocol: str = "tri"
    application: str = ""
    methods: tuple[str, ...] = ()
    weight: int = 100
    state: NodeState = NodeState.READY
    started_at_ms: int = 0
    zone: str = ""
    hardware: Hardware = field(default_factory=Hardware)
    tags: Mapping[str, str] = field(default_factory=lambda: EMPTY)  # a plain default is refused by Python 3.11

    # Said once and not at each question: every look at a list of ten thousand asks each node for its identity.
    service_key: str = field(init=False, repr=False, compare=False)
    """``[group/]interface[:version]``"""
    address: str = field(init=False, repr=False, compare=False)
    """``host:port``, with IPv6 hosts in brackets."""
    identity: str = field(init=False, repr=False, compare=False)
    """``service_key@address``"""

    def __post_init__(self) -> None:
        key = sys.intern(str(ServiceKey(interface=self.interface, version=self.version, group=self.group)))
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        object.__setattr__(self, "service_key", key)
        object.__setattr__(self, "address", address)
        object.__setattr__(self, "identity", f"{key}@{address}")

    def __repr__(self) -> str:
        """Every field but for Dubbo's ``token``: a node is printed into logs, and whoever reads those may not call."""
        shown = {each.name: getattr(self, each.name) for each in fields(self) if each.repr}
        shown["tags"] = {key: "***" if key == "token" else value for key, value in self.tags.items()}
        return f"Node({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
