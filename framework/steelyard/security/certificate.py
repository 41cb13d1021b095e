"""From a peer's verified certificate to an Identity.

Both of our sources tell the alternative names by their kind: Python's sockets in a dictionary, gRPC in the call's auth
context. The common name is not one of them: it has no kind, and nobody has checked it against anything since 2000
(RFC 2818).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from steelyard.model import Identity

# What a certificate may say; more names than these are not looked at.
MOST_NAMES = 64
_KINDS = {"URI": "uri", "DNS": "dns", "email": "email", "IP Address": "ip"}
_GRPC_KINDS = {"peer_uri": "uri", "peer_dns": "dns", "peer_email": "email", "peer_ip": "ip"}


def identity_of_certificate(facts: Mapping[str, Any] | None) -> Identity | None:
    """Of ``SSLObject.getpeercert()``: verified or empty."""
    if not facts:
        return None
    return _identity((_KINDS.get(kind, ""), value) for kind, value in facts.get("subjectAltName", ()))


def identity_of_grpc(auth: Mapping[str, Sequence[bytes]]) -> Identity | None:
    """Of a gRPC call's ``auth_context()``. None where the peer has shown no certificate (or there is no TLS)."""
    if "x509_pem_cert" not in auth:
        return None
    return _identity(
        (kind, value.decode("utf-8", "replace")) for key, kind in _GRPC_KINDS.items() for value in auth.get(key, ())
    )


def identity_of_process(user: int) -> Identity:
    """Of a Unix socket's peer: its user, by the kernel's word."""
    return Identity(f"uid:{user}", "local", (f"uid:{user}",))


def _identity(pairs: Iterable[tuple[str, str]]) -> Identity:
    order = list(_KINDS.values())
    found = [(kind, value) for kind, value in pairs if kind][:MOST_NAMES]
    found.sort(key=lambda pair: (order.index(pair[0]), pair[1]))
    names = tuple(dict.fromkeys(f"{kind}:{value}" for kind, value in found))
    # A certificate without alternative names is verified, and still nobody that a rule could speak of.
    return Identity(names[0] if names else "certificate:unnamed", "certificate", names or ("certificate:unnamed",))
