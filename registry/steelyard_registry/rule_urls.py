"""Rules of Dubbo up to 2.6, which stand as URLs under a service's own node and not as documents:

    /{root}/{interface}/configurators/{enc(override://0.0.0.0/ads.Ctr?category=configurators&dynamic=false&weight=200)}
    /{root}/{interface}/routers/{enc(condition://0.0.0.0/ads.Ctr?category=routers&force=true&rule=..)}

dubbo-admin of those days wrote them, and they are still in force for Dubbo's consumers that find them. Here they are
read and taken apart; what they do to a call is the governance's matter, as with documents (``rules``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import unquote

from .errors import MalformedUrl, RegistryClosed
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
class RuleUrls:
    """``skipped`` counts URLs that could not be read. Sorted as Dubbo applies them: by priority, then by name."""

    version: int = 0
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


class RuleUrlsView:
    """A live view; as a Subscription, for rules. ``publish``, ``mark_stale`` and ``end`` are the backend's."""

    def __init__(self, interface: str, category: str, on_close: Callable[[RuleUrlsView], Awaitable[None]]) -> None:
        self.interface = interface
        self.category = category
        self._rules = RuleUrls()
        self._turn = asyncio.Event()
        self._on_close = on_close
        self._is_closed = False

    @property
    def rules(self) -> RuleUrls:
        """The newest; never blocks."""
        return self._rules

    async def changed(self, after: int) -> RuleUrls:
        """The first rules whose version is greater than *after*. Raises RegistryClosed when the view is closed."""
        while not self._is_closed:
            if self._rules.version > after:
                return self._rules
            await self._turn.wait()
        raise RegistryClosed(f"the view of {self.category} of {self.interface} is closed")

    async def close(self) -> None:
        """Idempotent."""
        if not self._is_closed:
            self.end()
            await self._on_close(self)

    def end(self) -> None:
        self._is_closed = True
        self._next_turn()

    def publish(self, urls: tuple[RuleUrl, ...], *, skipped: int = 0, is_stale: bool = False) -> None:
        old = self._rules
        if self._is_closed or (old.version and (old.urls, old.skipped, old.is_stale) == (urls, skipped, is_stale)):
            return
        self._rules = RuleUrls(old.version + 1, urls, is_stale, skipped)
        self._next_turn()

    def mark_stale(self) -> None:
        self.publish(self._rules.urls, skipped=self._rules.skipped, is_stale=True)

    def _next_turn(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()
