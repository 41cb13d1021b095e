"""OpenTelemetry: what is told of calls and nodes, under which names, and to whom."""

from . import conventions
from .attempt import CallSpan, current_call_span, note_attempt
from .naming import Ending, ending_of, method_name
from .otlp import setup
from .setting import telemetry_for
from .stream import WatchedStream
from .telemetry import BatchInstruments, CallInstruments, NodeReading, Telemetry

__all__ = [
    "BatchInstruments",
    "CallInstruments",
    "CallSpan",
    "Ending",
    "NodeReading",
    "Telemetry",
    "WatchedStream",
    "conventions",
    "current_call_span",
    "ending_of",
    "method_name",
    "note_attempt",
    "setup",
    "telemetry_for",
]
