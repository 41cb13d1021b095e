"""Who is calling, as far as somebody has vouched for it.

Names carry where they come from (``dns:``, ``uri:``, ``sub:``, ``uid:``), because a rule for one kind must never be met
by another: whoever may choose a token's subject must not become a certificate's host by choosing its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

ANONYMOUS = "anonymous"
"""What rules and statistics call a caller that nobody has vouched for."""

_NO_CLAIMS: Mapping[str, Any] = MappingProxyType({})


class Identity(msgspec.Struct, frozen=True):
    """A caller that was made sure of.

    ``kind``: ``certificate`` (its TLS certificate), ``bearer`` (a verified token), ``local`` (a process of this
    machine, by the kernel's word) or what an authenticator of your own calls it. ``name`` is the one for logs and
    statistics, ``names`` are all that were vouched for, also those of the connection under a bearer's. ``claims`` is
    what a token says beside that.
    """

    name: str
    kind: str
    names: tuple[str, ...] = ()
    claims: Mapping[str, Any] = _NO_CLAIMS


def names_of(caller: Identity | None) -> tuple[str, ...]:
    """What rules may speak of: at least ``anonymous``."""
    if caller is None:
        return (ANONYMOUS,)
    return caller.names or (caller.name,)
