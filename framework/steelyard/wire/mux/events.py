"""What a side tells its driver.

Events to a consumer name the OpenCall and not its token: the driver may give a call another token when its stream
opens, and the events of one packet are made before the first of them is acted upon.
"""

from __future__ import annotations

from typing import Any  # OpenCall, which this module must not import to stay below its maker

import msgspec

from steelyard.errors import RpcError
from steelyard.model import Invocation, LoadReport, Reply


class Event(msgspec.Struct, gc=False):
    """``gc=False``: it is acted upon at once and kept by nobody, so that no cycle goes through it."""


# To a consumer.


class Answered(Event):
    """The call has its reply and is over."""

    call: Any
    reply: Reply


class Opened(Event):
    """The call is answered by a stream; *reply* has everything but that."""

    call: Any
    reply: Reply


class ItemArrived(Event):
    call: Any
    body: bytes


class Ended(Event):
    """The stream is complete."""

    call: Any


class Failed(Event):
    """The call, or the rest of its stream, failed."""

    call: Any
    error: RpcError


class Loaded(Event):
    report: LoadReport


class Told(Event):
    """The answer to a probe: the calls that the provider has, and the seconds that one takes at that number."""

    in_flight: int
    latency_s: float


class Draining(Event):
    """The provider takes no new calls."""


class Granted(Event):
    """The provider took some of this call's own items in: more may be sent."""

    call: Any


# To a provider.


class Called(Event):
    """Run this, then answer with ``ProviderSide.reply``, ``open_stream`` or ``fail``, and always ``finished``."""

    id: int
    invocation: Invocation
    has_items: bool = False


class Received(Event):
    """An item of the caller's stream. When it is read: ``ProviderSide.consumed``."""

    id: int
    body: bytes


class Completed(Event):
    """The caller's stream is complete."""

    id: int


class Cancelled(Event):
    id: int


class Credited(Event):
    """The reader of this stream took some of it in."""

    id: int


class Drained(Event):
    """The consumer has understood DRAIN: no new call comes on this connection."""
