"""Where and how to meet ZooKeeper: hosts, root, credentials, TLS, times; read from the registry's URL.

Two things in one URL: the *door* (which servers, as whom, how secured), which decides whether two registries of a
process share one client, and what is done behind it (root, how long an empty list is doubted, ...), which does not.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from ..errors import MalformedUrl
from ..locator import Locator, split_address
from ..url import encode

DEFAULT_PORT = 2181
DEFAULT_ROOT = "dubbo"
DEFAULT_SERVICES = "services"
SESSION_TIMEOUT_S = 10.0
"""How long a killed process stays in the lists. kazoo's default; a process that pauses for less keeps its session."""
EMPTY_GRACE_S = 10.0
"""How long an empty list is doubted: see ``watch``."""


LOST_S = 600.0
"""How long a node that vanished without a goodbye may be kept by those who are connected to it: see ``watch``. Dubbo's
own providers can be taken out by an operator while they go on answering; after this time the registry is right."""

_OPTIONS = (
    "session_timeout_s", "empty_grace_s", "lost_s", "application", "cache", "own_session", "read_only",
    "discovery", "services_root", "tls", "tls_ca", "tls_cert", "tls_key", "tls_verify",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """How to get in. The password shows in no repr. ``read_only``: an observer that may be served by a server without
    a quorum, and that never writes."""

    hosts: tuple[tuple[str, int], ...]
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    session_timeout_s: float = SESSION_TIMEOUT_S
    is_read_only: bool = False
    is_tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_verify: bool = True

    @property
    def connect_string(self) -> str:
        """What kazoo and messages call it: ``host:port,host:port``."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)

    @property
    def url(self) -> str:
        return f"zookeeper://{self.connect_string}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One ZooKeeper ensemble and the root below which Dubbo's tree stands. ``cache`` is where lists are kept for a
    start without the registry: empty for the user's own folder, ``off``, or a folder. ``has_own_session``: share the
    client with nobody in this process."""

    door: Door
    root: str
    empty_grace_s: float = EMPTY_GRACE_S
    lost_s: float = LOST_S
    application: str = ""
    cache: str = ""
    has_own_session: bool = False
    services: str = DEFAULT_SERVICES
    """Where the instances of application-level discovery are: from ZooKeeper's own root on, as Dubbo has it."""

    @classmethod
    def of(cls, locator: Locator) -> Place:
        """From ``zookeeper://[user:password@]host[:port][,host..]/root``; options ``session_timeout_s`` (1 to 600),
        ``empty_grace_s`` (0 to 3600), ``lost_s`` (0 to 86400), ``application`` (shown to operators in consumer
        entries), ``discovery`` (see ``opening``), ``services_root``, ``cache`` (off, or a folder),
        ``own_session``, ``read_only``, ``tls``, ``tls_ca``, ``tls_cert``,
        ``tls_key`` (files, PEM), ``tls_verify``. The root may have several parts: what other clients call a chroot is
        its beginning."""
        locator.require_options(*_OPTIONS)
        root = locator.path.strip("/") or DEFAULT_ROOT
        services = locator.options.get("services_root", "").strip("/") or DEFAULT_SERVICES
        for path in (root, services):
            if not all(
                re.fullmatch(r"[^\x00-\x1f\x7f/]+", part) and part not in (".", "..") for part in path.split("/")
            ):
                raise MalformedUrl(f"zookeeper:// root {path[:80]!r} is not a ZooKeeper path")
        cache = locator.options.get("cache", "")
        if cache not in ("", "off") and not cache.startswith("/"):
            raise MalformedUrl(
                f"zookeeper:// option cache={cache[:80]!r} is neither 'off' nor the full path of a folder"
            )
        return cls(
            door=_door(locator),
            root="/" + root,
            empty_grace_s=locator.number("empty_grace_s", EMPTY_GRACE_S, low=0, high=3600),
            lost_s=locator.number("lost_s", LOST_S, low=0, high=86400),
            application=locator.options.get("application", ""),
            cache=cache,
            has_own_session=locator.flag("own_session"),
            services=services,
        )

    @property
    def url(self) -> str:
        return f"{self.door.url}{self.root}"

    def folder(self, interface: str, category: str) -> str:
        """``{root}/{interface}/{category}``; category is ``providers``, ``consumers``, ..."""
        return f"{self.root}/{encode(interface)}/{category}"


def _door(locator: Locator) -> Door:
    if not locator.authority:
        raise MalformedUrl("zookeeper:// needs at least one host, for example zookeeper://127.0.0.1:2181")
    if bool(locator.username) != bool(locator.password):
        raise MalformedUrl("zookeeper:// needs both user and password, or neither")
    files = {key: locator.options.get(key, "") for key in ("tls_ca", "tls_cert", "tls_key")}
    is_tls = locator.flag("tls") or any(files.values())
    if bool(files["tls_cert"]) != bool(files["tls_key"]):
        raise MalformedUrl("zookeeper:// needs both tls_cert and tls_key, or neither")
    for key, path in files.items():
        if path and not os.access(path, os.R_OK):
            raise MalformedUrl(f"zookeeper:// option {key}={path[:200]!r}: there is no such file that can be read")
    return Door(
        hosts=tuple(split_address(text, DEFAULT_PORT) for text in locator.authority.split(",")),
        username=locator.username,
        password=locator.password,
        session_timeout_s=locator.number("session_timeout_s", SESSION_TIMEOUT_S, low=1, high=600),
        is_read_only=locator.flag("read_only"),
        is_tls=is_tls,
        tls_verify=locator.flag("tls_verify", default=True),
        **files,
    )
