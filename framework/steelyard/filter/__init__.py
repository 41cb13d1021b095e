"""The filters, one module each; the default stacks are put together by ``provider`` and ``consumer``."""

from .codec import (
    Codecs,
    MappedStream,
    client_codec,
    encoded,
    ends_the_task,
    rebuilt,
    server_codec,
    travelling,
    unpacked_reply,
)
from .deadline import server_deadline
from .degrade import degrade, degraded
from .limit import Limits, RunTime, run_time, server_limit
from .metrics import client_metrics, server_metrics
from .readiness import server_readiness
from .recover import recover
from .security import Refusals, client_bearer, server_authenticate, server_authorize, server_rate, server_token
from .switches import OWN_FALLBACK, Mode, Switches
from .tracing import client_tracing, server_tracing

__all__ = [
    "OWN_FALLBACK",
    "Codecs",
    "Limits",
    "MappedStream",
    "Mode",
    "Refusals",
    "RunTime",
    "Switches",
    "client_bearer",
    "client_codec",
    "client_metrics",
    "client_tracing",
    "degrade",
    "degraded",
    "encoded",
    "ends_the_task",
    "rebuilt",
    "recover",
    "run_time",
    "server_authenticate",
    "server_authorize",
    "server_codec",
    "server_deadline",
    "server_limit",
    "server_metrics",
    "server_rate",
    "server_readiness",
    "server_token",
    "server_tracing",
    "travelling",
    "unpacked_reply",
]
