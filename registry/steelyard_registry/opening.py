"""From a URL to a registry. A backend is imported only when its scheme is asked for, so that a process with a static
list loads neither kazoo nor sqlite3."""

from __future__ import annotations

from collections.abc import Callable

from .base import Registry
from .errors import MalformedUrl
from .locator import Locator, redacted

DEFAULT_URL = "embedded://"
"""A file in the user's runtime folder: nothing to install, found by all processes of the user on this machine."""


def open_registry(url: str = DEFAULT_URL) -> Registry:
    """The registry of *url*, not opened yet (``async with`` or ``await registry.open()``).

    ``zookeeper://[user:password@]host:port[,host:port]/root``, ``embedded:///path/to/file`` (``embedded://`` is the
    user's own), ``static://host:port,host:port``, ``dns://name:port``, ``memory://name``, and ``multi://merge?1=..&2=..``
    over several of them. Raises MalformedUrl, which names what is wrong.
    """
    locator = Locator.parse(url)
    backend = _BACKENDS.get(locator.scheme)
    if backend is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_BACKENDS))
        raise MalformedUrl(f"registry URL {redacted(url)!r}: unknown scheme {locator.scheme!r}; known: {known}")
    return backend(locator)


def _dns(locator: Locator) -> Registry:
    from .dns import DnsRegistry

    return DnsRegistry(locator)


def _multi(locator: Locator) -> Registry:
    from .multi import of_locator

    return of_locator(locator, open_registry)


def _embedded(locator: Locator) -> Registry:
    from .embedded import EmbeddedRegistry

    return EmbeddedRegistry(locator)


def _memory(locator: Locator) -> Registry:
    from .memory import MemoryRegistry

    return MemoryRegistry(locator)


def _static(locator: Locator) -> Registry:
    from .static import StaticRegistry

    return StaticRegistry(locator)


def _zookeeper(locator: Locator) -> Registry:
    """``discovery=interface`` (default: Dubbo's layout up to 2.7, which Dubbo 3 still reads and writes),
    ``application`` (Dubbo 3's), or ``both``: registered both ways, and found in either."""
    from .multi import Member, MultiRegistry
    from .zookeeper import ApplicationRegistry, ZooKeeperRegistry

    match locator.options.get("discovery", "interface"):
        case "interface":
            return ZooKeeperRegistry(locator)
        case "application":
            return ApplicationRegistry(locator)
        case "both":
            return MultiRegistry([Member(ZooKeeperRegistry(locator)), Member(ApplicationRegistry(locator))])
        case other:
            raise MalformedUrl(f"zookeeper:// option discovery={other[:40]!r} is none of interface, application, both")


_BACKENDS: dict[str, Callable[[Locator], Registry]] = {
    "dns": _dns,
    "embedded": _embedded,
    "memory": _memory,
    "multi": _multi,
    "static": _static,
    "zookeeper": _zookeeper,
}
