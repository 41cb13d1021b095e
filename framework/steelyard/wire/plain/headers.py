"""Headers of a plain call: Dubbo Triple's, and attachments as metadata, in both directions.

``tri-service-version`` and ``tri-service-group`` complete the service key, of which the path has only the interface.
An attachment whose text gRPC cannot carry (it takes printable ASCII) travels as UTF-8 under ``KEY-bin``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from steelyard.errors import InvalidArgument
from steelyard.model import Invocation
from steelyard_registry.node import ServiceKey

VERSION = "tri-service-version"
GROUP = "tri-service-group"
TIMEOUT = "tri-service-timeout"
APPLICATION = "tri-consumer-appname"

# What belongs to the transport, to proxies on the way, or to this package, and is nobody's attachment.
_HIDDEN = frozenset(
    (VERSION, GROUP, TIMEOUT, "user-agent", "content-type", "te", "accept-encoding", "date", "server", "via")
)
_HIDDEN_PREFIXES = (":", "grpc-", "steelyard-", "endpoint-load-metrics")
_KEY = re.compile(r"[0-9a-z_.-]+")
_BINARY = "-bin"


def service_key(interface: str, metadata: Iterable[tuple[str, Any]]) -> str:
    """The service key that a call asks for; the bare interface when no header names a version or group."""
    version = group = ""
    for key, value in metadata:
        if key == VERSION and type(value) is str:
            version = value
        elif key == GROUP and type(value) is str:
            group = value
    return str(ServiceKey(interface=interface, version=version, group=group)) if version or group else interface


def timeout_s(metadata: Iterable[tuple[str, Any]]) -> float | None:
    """Triple's own header, in milliseconds, for clients that send no ``grpc-timeout``."""
    for key, value in metadata:
        if key == TIMEOUT and type(value) is str and value.isascii() and value.isdigit() and len(value) < 13:
            return int(value) / 1000
    return None


def attachments_of(metadata: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The headers that are somebody's own."""
    found: dict[str, str] = {}
    for key, value in metadata:
        if key in _HIDDEN or key.startswith(_HIDDEN_PREFIXES):
            continue
        if type(value) is str:
            found[key] = value
        elif key.endswith(_BINARY):
            told = _readable(value)
            if told is not None:
                found[key.removesuffix(_BINARY)] = told
    return found


def call_headers(invocation: Invocation, application: str) -> tuple[ServiceKey, list[tuple[str, str | bytes]]]:
    """Where a call goes, and its headers. Raises InvalidArgument for an attachment that cannot travel so."""
    key = ServiceKey.parse(invocation.service)
    headers: list[tuple[str, str | bytes]] = []
    # "*" takes any, and a server that looks for a version of that name would find none.
    if key.version not in ("", "*"):
        headers.append((VERSION, key.version))
    if key.group not in ("", "*"):
        headers.append((GROUP, key.group))
    if application and _is_plain(application):
        headers.append((APPLICATION, application))
    for name, value in invocation.attachments.items():
        header = as_header(name, value)
        if header is None:
            raise InvalidArgument(
                f"the attachment {name!r} cannot be sent to a plain gRPC server: keys are letters, digits, '_', '.' "
                "and '-', and not those of gRPC, Triple or Steelyard itself"
            )
        headers.append(header)
    return key, headers


def as_header(name: str, value: str) -> tuple[str, str | bytes] | None:
    """An attachment as metadata; None when it cannot be."""
    name = name.lower()
    is_ours = name in _HIDDEN or name.startswith(_HIDDEN_PREFIXES)
    if is_ours or name.endswith(_BINARY) or not _KEY.fullmatch(name):
        return None
    return (name, value) if _is_plain(value) else (name + _BINARY, value.encode("utf-8", "replace"))


def _is_plain(value: str) -> bool:
    # gRPC cuts blanks off both ends of a header's value.
    return value.isascii() and value.isprintable() and value == value.strip()


def _readable(value: Any) -> str | None:
    try:
        told: str = value.decode()
    except (AttributeError, UnicodeDecodeError):
        return None
    return told if all(letter.isprintable() or letter in "\t\n" for letter in told) else None
