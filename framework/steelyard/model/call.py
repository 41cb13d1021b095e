"""A call and what becomes of it.

These are msgspec structs and not dataclasses because one is made for every call: a frozen dataclass takes about a
microsecond to construct, a frozen struct a tenth of that.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

import msgspec

from .identity import Identity
from .spec import MethodSpec

NOTHING: Mapping[str, str] = MappingProxyType({})


class Invocation(msgspec.Struct, frozen=True):
    """One call on its way.

    ``service`` is the service key. ``args`` are the arguments in the contract's order with defaults filled in;
    ``body`` is their encoded form: inside the consumer's codec filter and on the wire there is a body, outside it
    (and inside the provider's) there are args. ``deadline_at`` is in seconds on this process's monotonic clock
    (``time.monotonic``); over the wire travels what remains. ``key`` is the 64-bit hash of the method's hash key.
    Between the two codec filters a ``Packed`` may stand for the bytes, here as in a Reply and its stream: only
    these filters look into it. ``spec`` is None until somebody who knows the contract has looked it up. ``stream``
    is what the caller streams (a client stream), as values or as bodies likewise; its place in ``args`` then holds
    None. ``caller`` is who calls, where a provider was told by somebody it believes (None: anybody).
    """

    service: str
    method: str
    args: tuple[Any, ...] = ()
    body: bytes | None = None
    deadline_at: float = math.inf
    attachments: Mapping[str, str] = NOTHING
    priority: int = 1
    key: int | None = None
    spec: MethodSpec | None = None
    stream: AsyncIterator[Any] | None = None
    caller: Identity | None = None


class Reply(msgspec.Struct, frozen=True):
    """A success: a value, a body or a stream, encoded on the wire's side of the codec filter as in Invocation.

    ``stream`` yields decoded values or encoded bodies likewise. ``in_flight`` is the number of calls the provider had
    when it answered (None: not told); every reply is thus a free probe for the balancer. ``packing``: how its bodies
    may be compressed on the wire ("": not at all).
    """

    value: Any = None
    body: bytes | None = None
    stream: AsyncIterator[Any] | None = None
    attachments: Mapping[str, str] = NOTHING
    in_flight: int | None = None
    packing: str = ""


class Outcome(Enum):
    """What a call says about the node it went to.

    IGNORED says nothing about health: a business exception, or the caller's own cancel. Overload, timeout, transport
    and internal errors are FAILED.
    """

    OK = "ok"
    FAILED = "failed"
    IGNORED = "ignored"


class LoadReport(msgspec.Struct, frozen=True):
    """How busy a provider says it is. Unset is None, and None is not 0.

    ``utilization`` maps a resource (cpu, gpu, memory, or any name) to its busy share in [0, 1]; a resource that could
    not be measured is absent. ``queue_depth`` counts calls accepted but not started. ``age_s`` is how old the sample
    was when it was sent. ``calls_per_s`` and ``errors_per_s`` are the provider's rates over all its callers.
    """

    utilization: Mapping[str, float] = msgspec.field(default_factory=dict)
    in_flight: int | None = None
    queue_depth: int | None = None
    age_s: float = 0.0
    calls_per_s: float | None = None
    errors_per_s: float | None = None
