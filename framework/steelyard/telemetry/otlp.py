"""An OpenTelemetry SDK set up for those who want it done for them, sending to an OTLP collector over HTTP.

Nothing global is set: the providers live in the Telemetry that is returned, so two of them, or one beside the
application's own SDK, do not meet. Spans of the application's own therefore do not go there: whoever wants one picture
of everything sets up the SDK in the usual way and gives nothing to Steelyard.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

from steelyard.errors import ConfigError

from .telemetry import Telemetry

log = logging.getLogger(__name__)

_MISSING = "telemetry 'otlp' needs the OTLP exporter, which is not installed: pip install 'steelyard[otlp]'"


def setup(
    service_name: str | None = None,
    endpoint: str | None = None,
    *,
    attributes: Mapping[str, str] | None = None,
    metrics_every_s: float | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Telemetry:
    """Telemetry that sends traces and metrics to a collector; ``close`` (or ``aclose``) flushes and ends it.

    *endpoint* is the collector's base URL ("http://collector:4318"), to which /v1/traces and /v1/metrics are added.
    What is not given comes from the standard environment: OTEL_EXPORTER_OTLP_* (endpoint, headers, certificate,
    timeout, compression), OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_BSP_*,
    OTEL_METRIC_EXPORT_INTERVAL, OTEL_TRACES_EXPORTER=none, OTEL_METRICS_EXPORTER=none, OTEL_SDK_DISABLED.
    *attributes* are added to the resource. *metrics_every_s* is the time between exports of metrics [60 s].

    Raises ConfigError without the extra ``otlp``, for an endpoint that is no http(s) URL, and where the environment
    asks for OTLP over gRPC, which is not carried.
    """
    _check(endpoint, metrics_every_s, environ)
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(_MISSING) from error
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = {SERVICE_NAME: service_name} if service_name else {}
    resource = Resource.create({**(attributes or {}), **named})
    base = None if endpoint is None else endpoint.rstrip("/")
    # Without their exit handlers, which would wait for a collector that is away: closing is bounded, and ours.
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    if environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() != "none":
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=base and f"{base}/v1/traces")))
    readers = []
    if environ.get("OTEL_METRICS_EXPORTER", "").strip().lower() != "none":
        exporter = OTLPMetricExporter(endpoint=base and f"{base}/v1/metrics")
        every_ms = None if metrics_every_s is None else metrics_every_s * 1000
        readers.append(PeriodicExportingMetricReader(exporter, export_interval_millis=every_ms))
    meters = MeterProvider(resource=resource, metric_readers=readers, shutdown_on_exit=False)
    return Telemetry(
        tracer_provider=tracers,
        meter_provider=meters,
        on_close=lambda timeout_s: _shut_down((tracers.shutdown, meters.shutdown), timeout_s),
    )


def _check(endpoint: str | None, metrics_every_s: float | None, environ: Mapping[str, str]) -> None:
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"telemetry endpoint must be an http:// or https:// URL, not {endpoint!r}")
    if metrics_every_s is not None and not 0 < metrics_every_s < float("inf"):
        raise ConfigError(f"metrics_every_s must be a number of seconds above 0, not {metrics_every_s!r}")
    for name in ("", "TRACES_", "METRICS_"):
        variable = f"OTEL_EXPORTER_OTLP_{name}PROTOCOL"
        protocol = environ.get(variable, "").strip().lower()
        if protocol not in ("", "http/protobuf"):
            raise ConfigError(f"${variable} must be 'http/protobuf', the one that is carried, not {protocol!r}")


def _shut_down(steps: tuple[Callable[[], object], ...], timeout_s: float) -> None:
    """Run *steps* side by side for *timeout_s* at most. The SDK's own shutdown may wait half a minute for a collector
    that is away; what has not ended then is given up (daemon threads) and said so."""
    threads = [threading.Thread(target=_quietly, args=(step,), daemon=True) for step in steps]
    for thread in threads:
        thread.start()
    give_up_at = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, give_up_at - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        log.warning("telemetry could not be flushed within %s s; the rest of it is lost", timeout_s)


def _quietly(step: Callable[[], object]) -> None:
    try:
        step()
    except Exception as error:
        log.warning("telemetry could not be flushed: %s", error)
