"""The bounds of a connection, in one frozen record.

Every queue, table and wait in this folder has its bound here, because a bound that lives beside its queue is the one
that nobody reviews. Both sides of a connection have their own limits; each tells the other in its HELLO what it takes,
and a sender keeps to the smaller of the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from steelyard.errors import ConfigError

KIB = 1024
MIB = 1024 * 1024

# (lowest, highest) of each field. The highest are where a mistake (bytes for MiB, ms for s) becomes certain.
_RANGES: dict[str, tuple[float, float]] = {
    "message_bytes": (1 * KIB, 1024 * MIB),
    "in_flight": (1, 1_000_000),
    "queued_bytes": (64 * KIB, 8192 * MIB),
    "methods": (1, 65_536),
    "attachments": (0, 1024),
    "attachment_bytes": (0, 1 * MIB),
    "stream_window_bytes": (1 * KIB, 256 * MIB),
    "connections": (1, 1_000_000),
    "strangers": (1, 65_536),
    "calls_per_s": (0, 1e9),
    "connects_per_s": (0, 1e9),
    "heartbeat_interval_s": (0.01, 3600.0),
    "connect_timeout_s": (0.01, 600.0),
    "backoff_base_s": (0.001, 60.0),
    "backoff_max_s": (0.001, 3600.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits:
    """What one side of a connection allows. Checked at construction; raises ConfigError naming field, range and value.

    ``message_bytes``: the largest body of a call, a reply or a stream's item (16 MiB: four times gRPC's own default,
    enough for an image batch; larger tensors belong in a stream).
    ``in_flight``: calls that a consumer has open on one connection, or a provider takes from one. 4,096 is 64 times
    what saturates two cores, so that it stops a runaway caller and nobody else.
    ``queued_bytes``: what waits to be written on one connection; a consumer refuses calls above it, a provider answers
    RESOURCE_EXHAUSTED and stops reading until the other side reads.
    ``methods``: names that one connection may intern.
    ``attachments``, ``attachment_bytes``: how many, and how long they are together when encoded.
    ``stream_window_bytes``: how much of one stream may be under way or unread; a slow reader costs no more than this
    and one item.
    ``connections``: how many a provider serves at a time, and how many its gRPC port takes; one more is closed at once.
    An idle one costs 8 KB, and 40 on the gRPC port.
    ``strangers``: of them, and of TLS handshakes, how many may be under way before their HELLO has come. One more takes
    the place of the oldest when that has had a second, and is closed otherwise (see ``strangers``).
    ``calls_per_s``: what a provider takes on one connection on average (a second's worth at once); the rest is
    RESOURCE_EXHAUSTED. 0: no bound, because a consumer's connection carries the calls of all its users.
    ``connects_per_s``: the same for connections that come by the lanes, before a handshake is begun. 0: no bound,
    because after a provider's restart all its consumers come at once; a mutual TLS handshake takes 3 ms at each end.
    ``heartbeat_interval_s``: a side that has heard nothing for so long asks; after 3 intervals of silence the
    connection is lost. It must be longer than the longest time that a handler blocks its event loop.
    ``connect_timeout_s``: for a connection with its first message.
    ``backoff_base_s``, ``backoff_max_s``: waits between attempts to reconnect grow by 1.6 with 20 % jitter (the shape
    of gRPC's connection-backoff.md, from a shorter base: a balancer has other nodes and wants this one back).
    """

    message_bytes: int = 16 * MIB
    in_flight: int = 4096
    queued_bytes: int = 64 * MIB
    methods: int = 1024
    attachments: int = 64
    attachment_bytes: int = 16 * KIB
    stream_window_bytes: int = 256 * KIB
    connections: int = 65_536
    strangers: int = 4096
    calls_per_s: float = 0.0
    connects_per_s: float = 0.0
    heartbeat_interval_s: float = 3.0
    connect_timeout_s: float = 5.0
    backoff_base_s: float = 0.1
    backoff_max_s: float = 5.0

    def __post_init__(self) -> None:
        for field in fields(self):
            _check(field.name, getattr(self, field.name), is_whole=not field.name.endswith("_s"))
        if self.backoff_max_s < self.backoff_base_s:
            raise ConfigError(
                f"WireLimits.backoff_max_s must be at least backoff_base_s ({self.backoff_base_s}), "
                f"not {self.backoff_max_s}"
            )


def _check(name: str, value: Any, *, is_whole: bool) -> None:
    low, high = _RANGES[name]
    is_number = isinstance(value, int) or (not is_whole and isinstance(value, float) and math.isfinite(value))
    if isinstance(value, bool) or not is_number or not low <= value <= high:
        kind = "a whole number" if is_whole else "a number"
        raise ConfigError(f"WireLimits.{name} must be {kind} from {low:g} to {high:g}, not {value!r}")
