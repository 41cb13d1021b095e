"""The filters, one module each; the default stacks are put together by ``provider`` and ``consumer``."""

from .codec import Codecs, MappedStream, client_codec, server_codec
from .deadline import server_deadline
from .degrade import degrade
from .metrics import client_metrics, server_metrics
from .recover import recover
from .switches import OWN_FALLBACK, Mode, Switches
from .tracing import client_tracing, server_tracing

__all__ = [
    "OWN_FALLBACK",
    "Codecs",
    "MappedStream",
    "Mode",
    "Switches",
    "client_codec",
    "client_metrics",
    "client_tracing",
    "degrade",
    "recover",
    "server_codec",
    "server_deadline",
    "server_metrics",
    "server_tracing",
]
