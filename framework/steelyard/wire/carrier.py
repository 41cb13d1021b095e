"""What moves packets: the one seam between the protocol and a transport.

A carrier keeps the edges and the order of packets, and applies back-pressure by letting ``send`` wait. It knows
nothing of frames. ``receive`` and ``send`` are each used by one task at a time. Sockets do not come this way: see
``socket_carrier.Link``, which calls in from the loop instead of being awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from steelyard.errors import SteelyardError

from .limits import WireLimits


class CarrierLost(SteelyardError):
    """The transport failed or could not be opened; the text says how."""


class Carrier(Protocol):
    async def send(self, data: bytes) -> None:
        """Raises CarrierLost."""

    async def receive(self) -> bytes | None:
        """The next packet; None when the other side has ended in an orderly way. Raises CarrierLost."""

    async def close(self) -> None:
        """Ends it, at once and harmlessly often."""


Connector = Callable[[str, WireLimits], Awaitable[Any]]
"""(address, limits) -> an open Carrier, or a ``socket_carrier.Link``; raises CarrierLost. It may be cancelled."""
