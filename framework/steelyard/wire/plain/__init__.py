"""Plain gRPC: calls to servers that know nothing of us, and the standard services that clients expect of ours."""

from .consuming import PlainCall, PlainConnection
from .headers import as_header, attachments_of, service_key, timeout_s
from .health import HealthService
from .open_orca import OpenOrcaService
from .orca import TRAILER, decode_report, encode_report
from .peer import PlainPeer, connect_plain
from .status import code_of, text_of, trailers_of

__all__ = [
    "TRAILER",
    "HealthService",
    "OpenOrcaService",
    "PlainCall",
    "PlainConnection",
    "PlainPeer",
    "as_header",
    "attachments_of",
    "code_of",
    "connect_plain",
    "decode_report",
    "encode_report",
    "service_key",
    "text_of",
    "timeout_s",
    "trailers_of",
]
