"""Rules of Dubbo up to 2.6, which stand as URLs under a service's own node and not as documents:

    /{root}/{interface}/configurators/{enc(override://0.0.0.0/ads.Ctr?category=configurators&dynamic=false&weight=200)}
    /{root}/{interface}/routers/{enc(condition://0.0.0.0/ads.Ctr?category=routers&force=true&rule=..)}

dubbo-admin of those days wrote them, and they are still in force for Dubbo's consumers that find them. Here they are
read and taken apart; what they do to a call is the governance's matter, as with documents (``rules``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Self
from urllib.parse import unquote

from .errors import MalformedUrl
from .live import Live, Versioned
from .locator import is_host
from .node import EMPTY
from .url import decode, split_query

CATEGORIES = ("configurators", "routers")
_KINDS = {"override": "configurators", "absent": "configurators", "condition": "routers", "route": "routers"}
_KINDS |= {"tag": "routers", "script": "routers"}
_ABOUT_THE_RULE = frozenset(
    (
        "category",
        "dynamic",
        "enabled",
        "force",
        "priority",
        "rule",
        "runtime",
        "interface",
        "router",
        "compatible_config",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleUrl:
    """One rule. ``host`` and ``port`` say whom it is for: ``0.0.0.0`` is everybody, port 0 any port; ``application``
    only consumers of it (empty or ``*``: all). ``values`` are what an override sets (``weight``, ``timeout``,
    ``disabled``, ``{method}.timeout``, ..); ``rule`` is a router's text (``when => then``)."""

    kind: str
    interface: str
    host: str
    port: int = 0
    group: str = ""
    version: str = ""
    application: str = ""
    is_enabled: bool = True
    is_forced: bool = False
    priority: int = 0
    rule: str = ""
    values: Mapping[str, str] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class RuleUrls(Versioned):
    """``skipped`` counts URLs that could not be read. Sorted as Dubbo applies them: by priority, then by name."""

    urls: tuple[RuleUrl, ...] = ()
    is_stale: bool = False
    skipped: int = 0


def parse_rule_name(name: str, category: str) -> RuleUrl:
    """The rule behind a child's name. Raises MalformedUrl."""
    text = decode(name)
    head, _, query = text.partition("?")
    kind, separator, rest = head.partition("://")
    if not separator or _KINDS.get(kind) != category:
        raise MalformedUrl(f"{text[:80]!r} is no rule that stands under {category}")
    authority, _, path = rest.partition("/")
    host, _, port = authority.partition(":") if authority.count(":") <= 1 else (authority.strip("[]"), "", "")
    if not is_host(host) or not (port == "" or (port.isdecimal() and len(port) <= 5)):
        raise MalformedUrl(f"{text[:80]!r} is for no host")
    pairs = {key: unquote(value) for key, value in split_query(query).items()}
    interface = pairs.get("interface") or unquote(path)
    if not interface:
        raise MalformedUrl(f"{text[:80]!r} names no interface")
    rule = pairs.get("rule", "")
    if category == "routers" and not rule:
        raise MalformedUrl(f"{text[:80]!r} has no rule")
    whose = {key: pairs.pop(key, "") for key in ("group", "version", "application")}
    return RuleUrl(
        kind=pairs.get("router", kind) if kind == "route" else kind,
        interface=interface,
        host=host,
        port=int(port or 0),
        is_enabled=_flag(pairs, "enabled", True),
        is_forced=_flag(pairs, "force", False),
        priority=_whole(pairs, "priority"),
        rule=rule,
        values=MappingProxyType({key: value for key, value in pairs.items() if key not in _ABOUT_THE_RULE}),
        **whose,
    )


def _flag(pairs: Mapping[str, str], key: str, default: bool) -> bool:
    text = pairs.get(key, "")
    if text not in ("", "true", "false"):
        raise MalformedUrl(f"{key}={text[:40]!r} is neither true nor false")
    return default if not text else text == "true"


def _whole(pairs: Mapping[str, str], key: str) -> int:
    text = pairs.get(key, "") or "0"
    if not text.removeprefix("-").isdecimal() or len(text) > 10 or not text.isascii():
        raise MalformedUrl(f"{key}={text[:40]!r} is no whole number")
    return int(text)


class RuleUrlsView(Live[RuleUrls]):
    """A live view; as a Subscription, for rules. ``publish``, ``mark_stale`` and ``end`` are the backend's."""

    def __init__(
        self, interface: str, category: str, on_close: Callable[[Self], Awaitable[None]] | None = None
    ) -> None:
        super().__init__(f"the view of {category} of {interface}", RuleUrls(), on_close)
        self.interface = interface
        self.category = category

    @property
    def rules(self) -> RuleUrls:
        """The newest; never blocks."""
        return self._newest

    def publish(self, urls: tuple[RuleUrl, ...], *, skipped: int = 0, is_stale: bool = False) -> bool:
        """Swap the rules in; whether they differ from the last ones (or are the first)."""
        return self._publish(RuleUrls(urls=urls, is_stale=is_stale, skipped=skipped))

    def mark_stale(self) -> bool:
        return self.publish(self._newest.urls, skipped=self._newest.skipped, is_stale=True)
