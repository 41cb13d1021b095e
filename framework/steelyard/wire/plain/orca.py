"""Load reports in ORCA's form (``xds.data.orca.v3.OrcaLoadReport``; gRFC A51 and A64, xds/data/orca/v3).

It travels in the trailer ``endpoint-load-metrics-bin`` of replies, and out of band by ``OpenRcaService``. gRPC's own
weighted round robin takes ``application_utilization``, or else ``cpu_utilization``, and the rates of calls and errors;
so all of these are told, the first being what our own balancer would take for the load.

gRPC's core keeps that trailer to itself (grpcio 1.85: a Python client never sees it), so that servers are heard out of
band here; Envoy's form of the header (``endpoint-load-metrics: TEXT cpu=0.3``) is an ordinary one and read as well.

protobuf does not write a 0.0 that was measured: there, "idle" and "not told" look alike. Ours are written all the same,
which every reader understands, and what a foreign report does not hold is absent here and not 0.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from steelyard.model import LoadReport

from . import message

TRAILER = "endpoint-load-metrics-bin"
HEADER = "endpoint-load-metrics"
REPORT_BYTES = 8 * 1024
"""Longer ones are not read; a dozen resources take 400 bytes."""

_CPU, _MEMORY, _CALLS, _ERRORS, _APPLICATION = 1, 2, 6, 7, 9
_UTILIZATION, _NAMED = 5, 8
_RESOURCES = 64
_IN_FLIGHT, _QUEUE = "steelyard.in_flight", "steelyard.queue_depth"


def encode_report(report: LoadReport, load: float | None = None) -> bytes:
    """*load* is the one number for the whole node, in [0, 1] (None: not told)."""
    others = dict(report.utilization)
    parts = []
    for field, name in ((_CPU, "cpu"), (_MEMORY, "memory")):
        if name in others:
            parts.append(message.double(field, others.pop(name)))
    parts.append(message.doubles(_UTILIZATION, others))
    for field, rate in ((_CALLS, report.calls_per_s), (_ERRORS, report.errors_per_s), (_APPLICATION, load)):
        if rate is not None:
            parts.append(message.double(field, rate))
    counts = ((_IN_FLIGHT, report.in_flight), (_QUEUE, report.queue_depth))
    parts.append(message.doubles(_NAMED, {name: float(count) for name, count in counts if count is not None}))
    return b"".join(parts)


def decode_report(encoded: bytes) -> LoadReport:
    """Raises ValueError for what is no report. Whether its numbers can be believed is for the balancer to say."""
    if len(encoded) > REPORT_BYTES:
        raise ValueError(f"a load report of {len(encoded)} bytes; at most {REPORT_BYTES} are read")
    utilization: dict[str, float] = {}
    named: dict[str, float] = {}
    calls_per_s = errors_per_s = None
    for field, value in message.fields(encoded):
        if field == _CPU:
            utilization["cpu"] = message.as_double(value)
        elif field == _MEMORY:
            utilization["memory"] = message.as_double(value)
        elif field == _APPLICATION:
            utilization["application"] = message.as_double(value)
        elif field == _CALLS:
            calls_per_s = message.as_double(value)
        elif field == _ERRORS:
            errors_per_s = message.as_double(value)
        elif field in (_UTILIZATION, _NAMED):
            name, amount = message.as_entry(value)
            (utilization if field == _UTILIZATION else named)[name] = amount
        if len(utilization) > _RESOURCES or len(named) > _RESOURCES:
            raise ValueError(f"a load report with more than {_RESOURCES} resources")
    return LoadReport(
        utilization=utilization,
        in_flight=_count(named.get(_IN_FLIGHT)),
        queue_depth=_count(named.get(_QUEUE)),
        calls_per_s=calls_per_s,
        errors_per_s=errors_per_s,
    )


def read_header(value: str) -> LoadReport:
    """Envoy's form: ``TEXT cpu_utilization=0.3,utilization.gpu=0.9``, ``JSON {...}`` or ``BIN base64``. Raises
    ValueError."""
    kind, _, rest = value.partition(" ")
    if len(rest) > REPORT_BYTES:
        raise ValueError(f"a load report of {len(rest)} characters; at most {REPORT_BYTES} are read")
    if kind == "BIN":
        return decode_report(base64.b64decode(rest, validate=True))
    if kind == "TEXT":
        pairs = dict(part.partition("=")[::2] for part in rest.split(",") if part)
    elif kind == "JSON":
        pairs = _flat(json.loads(rest))
    else:
        raise ValueError("a load report that is neither TEXT, JSON nor BIN")
    numbers = {key.strip(): float(amount) for key, amount in pairs.items()}
    prefix = "utilization."
    found = {key.removeprefix(prefix): amount for key, amount in numbers.items() if key.startswith(prefix)}
    found |= {_NAMES[key]: amount for key, amount in numbers.items() if key in _NAMES}
    return LoadReport(found, calls_per_s=numbers.get("rps_fractional"), errors_per_s=numbers.get("eps"))


_NAMES = {
    **dict.fromkeys(("cpu", "cpu_utilization", "cpuUtilization"), "cpu"),
    **dict.fromkeys(("mem", "mem_utilization", "memUtilization"), "memory"),
    **dict.fromkeys(("application_utilization", "applicationUtilization"), "application"),
}


def _flat(report: Any) -> dict[str, Any]:
    """``{"utilization": {"gpu": 1}}`` as ``{"utilization.gpu": 1}``. Raises ValueError for what is no object."""
    if not isinstance(report, dict):
        raise ValueError("a load report that is no object")  # noqa: TRY004  # somebody else's text
    flat: dict[str, Any] = {}
    for key, value in report.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": amount for name, amount in value.items() if isinstance(amount, int | float)}
        elif isinstance(value, int | float):
            flat[key] = value
    return flat


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value < 2**53 else None
