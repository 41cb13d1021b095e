"""From what a Provider or Consumer was told of telemetry to the Telemetry that it uses."""

from __future__ import annotations

import os
from collections.abc import Mapping

from opentelemetry import metrics, trace

from steelyard.errors import ConfigError

from .otlp import setup
from .telemetry import Telemetry

ENVIRONMENT = "STEELYARD_TELEMETRY"


def telemetry_for(
    setting: Telemetry | str | None, *, service_name: str | None = None, environ: Mapping[str, str] = os.environ
) -> Telemetry:
    """The telemetry that a setting asks for; whoever asks must close it.

    None: what $STEELYARD_TELEMETRY says, by default what the application set up. "otlp": an SDK that sends to an
    OTLP collector (see ``setup``; *service_name* is then the default that $OTEL_SERVICE_NAME overrides). "none":
    nothing. A Telemetry: the same providers; closing the answer leaves the given one as it is. Raises ConfigError.
    """
    if isinstance(setting, Telemetry):
        return setting.shared()
    field = "telemetry"
    if setting is None:
        setting, field = environ.get(ENVIRONMENT, "").strip().lower(), f"${ENVIRONMENT}"
    if setting == "":
        return Telemetry()
    if setting == "none":
        return Telemetry(tracer_provider=trace.NoOpTracerProvider(), meter_provider=metrics.NoOpMeterProvider())
    if setting == "otlp":
        return setup(environ.get("OTEL_SERVICE_NAME") or service_name)
    raise ConfigError(f"{field} must be 'otlp', 'none' or a Telemetry (None: what there is), not {setting!r}")
