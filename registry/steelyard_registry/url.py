"""Node <-> Dubbo provider URL, and the name such a URL has as a child in ZooKeeper.

``tri://host:port/interface?application=..&timestamp=..&weight=100&hw.kind=gpu&..``, percent-encoded as a whole when it
is a node name (Dubbo keeps the URL in the *name*; the body is unused).

Inside the URL, Dubbo's Java client writes values as they are, its Go and Python clients percent-encode them. So this
module escapes only what would break the structure (``% & + # ;``, blanks and control characters), which all three
read alike, and decodes values leniently. Keys are sorted: the same node always has the same name.

Reading is strict about structure and about the keys it knows: a URL that is broken, or whose scheme this package cannot
call, raises MalformedUrl, so that the caller skips and counts it. Every other key lands in ``Node.tags`` and is
written back.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import quote, unquote, unquote_plus

from .errors import MalformedUrl
from .locator import is_host
from .node import EMPTY, Hardware, Node, NodeState, ServiceKey

PROTOCOLS = frozenset({"tri", "grpc"})
"""Both are gRPC on the wire; Triple brings headers of its own."""
MAX_URL_BYTES = 64 * 1024
"""Longer ones are refused before they are parsed. Dubbo's own are below 2 KiB; ZooKeeper's packet limit is 1 MiB."""

_HARDWARE = tuple(f"hw.{fact}" for fact in ("kind", "model", "cores", "quota", "memory", "accelerators"))
# Written when the node has no tag of that name, and dropped on reading when they hold just this value, so that a node
# of ours reads back equal to itself.
_CONSTANT = {"dubbo": "2.0.2", "dynamic": "true", "side": "provider"}
_KNOWN = frozenset(
    ("application", "group", "interface", "methods", "state", "timestamp", "version", "weight", "zone")
) | frozenset(_HARDWARE)
_STATES = frozenset(state.value for state in NodeState)
_PATH_TAG = "dubbo.path"
_TAG_PREFIX = "tag."


def node_name(node: Node) -> str:
    """The name of *node* as a child of ``/{root}/{interface}/providers``. Raises MalformedUrl (see provider_url)."""
    return encode(provider_url(node))


def parse_node_name(name: str) -> Node:
    """The Node behind a child's name. Raises MalformedUrl."""
    return parse_provider_url(decode(name))


def encode(text: str) -> str:
    """Percent-encoding of the whole string, as Dubbo does it."""
    try:
        return quote(text, safe="")
    except UnicodeEncodeError as error:
        raise MalformedUrl("text with lone surrogates cannot be encoded") from error


def decode(name: str) -> str:
    """The reverse of ``encode``, for names written by Java's URLEncoder too (a blank is ``+``). Raises MalformedUrl."""
    _check_length(name)
    if re.search(r"%(?![0-9A-Fa-f]{2})", name):
        raise MalformedUrl(f"node name {name[:80]!r} has a broken percent escape")
    try:
        return unquote_plus(name, errors="strict")
    except UnicodeDecodeError as error:
        raise MalformedUrl(f"node name {name[:80]!r} is not UTF-8") from error


def provider_url(node: Node) -> str:
    """The provider URL of *node*. Raises MalformedUrl when the node cannot be written so that it reads back."""
    _check_endpoint(node.protocol, node.host, node.port)
    tags = dict(node.tags)
    path = tags.pop(_PATH_TAG, node.interface)
    if not node.interface or not path:
        raise MalformedUrl("a node without an interface has no URL")
    if "" in tags:
        raise MalformedUrl(f"a tag of {node.identity} has no name")
    pairs = {_escape(key, "="): _escape(value) for key, value in _CONSTANT.items()}
    pairs |= {_escape(_tag_key(key), "="): _escape(value) for key, value in tags.items()}
    pairs |= _known_pairs(node)
    query = "&".join(f"{key}={value}" for key, value in sorted(pairs.items()))
    url = f"{node.protocol}://{node.address}/{_escape(path, '?')}?{query}"
    _check_length(url)
    return url


def parse_provider_url(text: str) -> Node:
    """The Node of a provider URL (not encoded as a whole; see parse_node_name). Raises MalformedUrl."""
    _check_length(text)
    head, _, query = text.partition("?")
    protocol, separator, rest = head.partition("://")
    if not separator:
        raise MalformedUrl(f"provider URL {text[:80]!r} has no scheme")
    authority, _, path = rest.partition("/")
    host, port = _split_authority(authority.rpartition("@")[2], text)
    _check_endpoint(protocol, host, port)
    pairs = split_query(query)
    path = _unescape(path)
    # Dubbo's Java and Go clients write `interface`; apache-dubbo for Python writes only `service`, and no path.
    interface = _unescape(pairs.pop("interface", "")) or path or _unescape(pairs.get("service", ""))
    if not interface:
        raise MalformedUrl(f"provider URL {text[:80]!r} names no interface")
    extra = {_PATH_TAG: path} if path and path != interface else {}
    return node_from_pairs(interface, host, port, pairs, protocol=protocol, extra_tags=extra)


def node_from_pairs(
    interface: str,
    host: str,
    port: int,
    pairs: Mapping[str, str],
    *,
    protocol: str = "tri",
    extra_tags: Mapping[str, str] = EMPTY,
) -> Node:
    """A node from the still escaped key/value pairs of a URL; unknown keys become tags. Raises MalformedUrl."""
    known = {key: value for key, value in pairs.items() if key in _KNOWN}
    tags = {_user_key(key): _unescape(value) for key, value in pairs.items() if key not in _KNOWN}
    for key, value in _CONSTANT.items():
        if tags.get(key) == value:
            del tags[key]
    state = known.get("state", NodeState.READY.value)
    if state not in _STATES:
        raise MalformedUrl(f"state={state[:40]!r} is not one of {', '.join(NodeState)}")
    weight = _integer(known, "weight")
    return Node(
        interface=interface,
        host=host,
        port=port,
        protocol=protocol,
        version=_unescape(known.get("version", "")),
        group=_unescape(known.get("group", "")),
        application=_unescape(known.get("application", "")),
        methods=_names(known.get("methods", "")),
        weight=100 if weight is None else weight,
        state=NodeState(state),
        started_at_ms=_integer(known, "timestamp") or 0,
        zone=_unescape(known.get("zone", "")),
        hardware=_hardware(*(known.get(key, "") for key in _HARDWARE)),
        tags=MappingProxyType({**tags, **extra_tags}),
    )


@lru_cache(256)
def _hardware(*texts: str) -> Hardware:
    """A cluster has a few kinds of machine and thousands of them: equal ones are one object."""
    facts = dict(zip(_HARDWARE, texts, strict=True))
    return Hardware(
        kind=_unescape(facts["hw.kind"]) or "cpu",
        model=_unescape(facts["hw.model"]),
        cores=_positive(facts, "hw.cores"),
        quota=_positive(facts, "hw.quota"),
        memory_bytes=_integer(facts, "hw.memory"),
        accelerators=_names(facts["hw.accelerators"]),
    )


def consumer_url(service: ServiceKey, *, host: str, pid: int, started_at_ms: int, application: str = "") -> str:
    """The URL that a consumer leaves under ``consumers/``, so that operators see who uses a service."""
    pairs = {
        "application": application,
        "category": "consumers",
        "check": "false",
        "dubbo": _CONSTANT["dubbo"],
        "group": service.group,
        "interface": service.interface,
        "pid": str(pid),
        "side": "consumer",
        "timestamp": str(started_at_ms),
        "version": service.version,
    }
    query = "&".join(f"{key}={_escape(value)}" for key, value in sorted(pairs.items()) if value)
    shown = f"[{host}]" if ":" in host else host
    return f"consumer://{shown}/{_escape(service.interface, '?')}?{query}"


def _known_pairs(node: Node) -> dict[str, str]:
    hardware = node.hardware
    pairs = {
        "application": _escape(node.application),
        "group": _escape(node.group),
        "interface": _escape(node.interface),
        "methods": ",".join(_escape(name, ",") for name in node.methods),
        "state": node.state.value,
        "timestamp": _number(node.started_at_ms or None),
        "version": _escape(node.version),
        "weight": _number(node.weight),
        "zone": _escape(node.zone),
        "hw.kind": _escape(hardware.kind),
        "hw.model": _escape(hardware.model),
        "hw.cores": _number(hardware.cores),
        "hw.quota": _number(hardware.quota),
        "hw.memory": _number(hardware.memory_bytes),
        "hw.accelerators": ",".join(_escape(name, ",") for name in hardware.accelerators),
    }
    return {key: value for key, value in pairs.items() if value}


def _tag_key(key: str) -> str:
    """A user's tag that is called like a key of ours travels as ``tag.KEY`` (and ``tag.KEY`` as ``tag.tag.KEY``)."""
    return _TAG_PREFIX + key if _bare(key) in _KNOWN else key


@lru_cache(256)
def _user_key(key: str) -> str:
    key = _unescape(key)
    return key.removeprefix(_TAG_PREFIX) if _bare(key) in _KNOWN else key


def _bare(key: str) -> str:
    while key.startswith(_TAG_PREFIX):
        key = key.removeprefix(_TAG_PREFIX)
    return key


def _escape(text: str, also: str = "") -> str:
    """Escape what would break the structure of the URL, and nothing else."""
    return re.sub(rf"[\x00-\x20\x7f%&+#;{re.escape(also)}]", lambda found: f"%{ord(found[0]):02X}", text)


def _unescape(text: str) -> str:
    """Lenient: a value that is not valid percent-encoded UTF-8 was written raw, and is taken as it stands."""
    if "%" not in text:
        return text
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        return text


def split_query(query: str) -> dict[str, str]:
    """Still escaped pairs. As in Dubbo: the last of two equal keys wins, and a key alone is its own value."""
    pairs: dict[str, str] = {}
    for part in query.split("&"):
        key, equals, value = part.partition("=")
        if key:
            pairs[key] = value if equals else key
    return pairs


def _split_authority(authority: str, text: str) -> tuple[str, int]:
    """host, port. IPv6 may come without brackets: Dubbo's Java client splits at the last colon."""
    host, _, port = authority.rpartition(":")
    if not re.fullmatch(r"[0-9]{1,5}", port):
        raise MalformedUrl(f"provider URL {text[:80]!r} has no port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, int(port)


def _check_endpoint(protocol: str, host: str, port: int) -> None:
    if protocol not in PROTOCOLS:
        raise MalformedUrl(f"scheme {protocol[:40]!r} cannot be called; known: {', '.join(sorted(PROTOCOLS))}")
    if not is_host(host):
        raise MalformedUrl(f"host {host[:80]!r} is neither a name nor an IP address")
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError as error:
            raise MalformedUrl(f"host {host[:80]!r} is not an IPv6 address") from error
    if not 1 <= port <= 65535:
        raise MalformedUrl(f"port {port} is not in 1..65535")


def _check_length(text: str) -> None:
    if len(text) > MAX_URL_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_URL_BYTES:
        raise MalformedUrl(f"URL of {len(text)} characters, more than {MAX_URL_BYTES} bytes: {text[:60]!r}...")


@lru_cache(256)
def _names(text: str) -> tuple[str, ...]:
    return tuple(_unescape(name) for name in text.split(",") if name)


def _integer(pairs: Mapping[str, str], key: str) -> int | None:
    text = pairs.get(key)
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise MalformedUrl(f"{key}={text[:40]!r} is not a whole number >= 0")
    return int(text)


def _positive(pairs: Mapping[str, str], key: str) -> float | None:
    text = pairs.get(key)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0 and text.isascii() and "_" not in text):
        raise MalformedUrl(f"{key}={text[:40]!r} is not a number >= 0")
    return value


def _number(value: float | None) -> str:
    if value is None:
        return ""
    if not (math.isfinite(value) and value >= 0):
        raise MalformedUrl(f"{value!r} is not a finite number >= 0 and cannot be published")
    return str(int(value)) if value == int(value) and value < 1e18 else repr(float(value))
