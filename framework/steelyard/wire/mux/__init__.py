"""The protocol without input, output, loop or clock: packets in, events out, and packets to send.

One object a side and connection. A driver (``wire.consuming``, ``wire.serving``) gives it the bytes that came and the
time, acts on the events, and writes what ``outbox.take()`` gives. Nothing here can block, so the same code runs under
gRPC, over a plain socket, in memory, in a fuzzer and under a made-up clock.
"""

from .consumer import ConsumerSide, OpenCall
from .deadlines import Deadlines
from .events import (
    Answered,
    Called,
    Cancelled,
    Completed,
    Credited,
    Drained,
    Draining,
    Ended,
    Event,
    Failed,
    Granted,
    ItemArrived,
    Loaded,
    Opened,
    Received,
    Told,
)
from .outbox import Outbox
from .provider import InFlight, ProviderSide

__all__ = [
    "Answered",
    "Called",
    "Cancelled",
    "Completed",
    "ConsumerSide",
    "Credited",
    "Deadlines",
    "Drained",
    "Draining",
    "Ended",
    "Event",
    "Failed",
    "Granted",
    "InFlight",
    "ItemArrived",
    "Loaded",
    "OpenCall",
    "Opened",
    "Outbox",
    "ProviderSide",
    "Received",
    "Told",
]
