"""Who is there: nodes, their hardware tags, and the registries that keep them."""

from .base import Registration, Registry, Snapshot, Subscription
from .errors import MalformedUrl, RegistryClosed, RegistryError, RegistryUnreachable
from .node import Hardware, Node, NodeState, ServiceKey

__all__ = [
    "Hardware",
    "MalformedUrl",
    "Node",
    "NodeState",
    "Registration",
    "Registry",
    "RegistryClosed",
    "RegistryError",
    "RegistryUnreachable",
    "ServiceKey",
    "Snapshot",
    "Subscription",
]
