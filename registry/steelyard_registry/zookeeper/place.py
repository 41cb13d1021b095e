"""Where and how to meet ZooKeeper: hosts, root, credentials, times; read from the registry's URL."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..errors import MalformedUrl
from ..locator import Locator, split_address
from ..url import encode

DEFAULT_PORT = 2181
DEFAULT_ROOT = "dubbo"
SESSION_TIMEOUT_S = 10.0
"""How long a killed process stays in the lists. kazoo's default; a process that pauses for less keeps its session."""
EMPTY_GRACE_S = 10.0
"""How long an empty list is doubted: see ``watch``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One ZooKeeper ensemble and the root below which Dubbo's tree stands. The password shows in no repr and no URL."""

    hosts: tuple[tuple[str, int], ...]
    root: str
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    session_timeout_s: float = SESSION_TIMEOUT_S
    empty_grace_s: float = EMPTY_GRACE_S
    application: str = ""

    @classmethod
    def of(cls, locator: Locator) -> Place:
        """From ``zookeeper://[user:password@]host[:port][,host..]/root``; options ``session_timeout_s`` (1 to 600),
        ``empty_grace_s`` (0 to 3600), ``application`` (shown to operators in consumer entries)."""
        locator.require_options("session_timeout_s", "empty_grace_s", "application")
        if not locator.authority:
            raise MalformedUrl("zookeeper:// needs at least one host, for example zookeeper://127.0.0.1:2181")
        if bool(locator.username) != bool(locator.password):
            raise MalformedUrl("zookeeper:// needs both user and password, or neither")
        root = locator.path.strip("/") or DEFAULT_ROOT
        if not all(re.fullmatch(r"[^\x00-\x1f\x7f/]+", part) and part not in (".", "..") for part in root.split("/")):
            raise MalformedUrl(f"zookeeper:// root {root[:80]!r} is not a ZooKeeper path")
        return cls(
            hosts=tuple(split_address(text, DEFAULT_PORT) for text in locator.authority.split(",")),
            root="/" + root,
            username=locator.username,
            password=locator.password,
            session_timeout_s=locator.number("session_timeout_s", SESSION_TIMEOUT_S, low=1, high=600),
            empty_grace_s=locator.number("empty_grace_s", EMPTY_GRACE_S, low=0, high=3600),
            application=locator.options.get("application", ""),
        )

    @property
    def connect_string(self) -> str:
        """What kazoo and messages call it: ``host:port,host:port``."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)

    @property
    def url(self) -> str:
        return f"zookeeper://{self.connect_string}{self.root}"

    def folder(self, interface: str, category: str) -> str:
        """``/root/{interface}/{category}``; category is ``providers``, ``consumers``, ..."""
        return f"{self.root}/{encode(interface)}/{category}"
