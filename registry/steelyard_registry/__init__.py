"""Who is there: nodes, their hardware tags, and the registries that keep them."""

from .base import Registration, Registry, Snapshot, Subscription
from .errors import MalformedUrl, RegistryClosed, RegistryError, RegistryUnreachable
from .feed import Feed, select
from .multi import Member, MultiRegistry
from .node import Hardware, Node, NodeState, ServiceKey
from .opening import DEFAULT_URL, open_registry
from .rule_urls import RuleUrl, RuleUrls, RuleUrlsView
from .rules import Document, Rule
from .url import parse_provider_url, provider_url

__all__ = [
    "DEFAULT_URL",
    "Document",
    "Feed",
    "Hardware",
    "MalformedUrl",
    "Member",
    "MultiRegistry",
    "Node",
    "NodeState",
    "Registration",
    "Registry",
    "RegistryClosed",
    "RegistryError",
    "RegistryUnreachable",
    "Rule",
    "RuleUrl",
    "RuleUrls",
    "RuleUrlsView",
    "ServiceKey",
    "Snapshot",
    "Subscription",
    "open_registry",
    "parse_provider_url",
    "provider_url",
    "select",
]
