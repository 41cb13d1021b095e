"""A real OpenTelemetry SDK that keeps what it gets in memory, owned by one test."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from steelyard.telemetry import Telemetry


class Recorder:
    """``recorder.telemetry`` tells it; ``spans``, ``points`` and ``values`` read it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(tracer_provider=self.tracers, meter_provider=self.meters)

    @property
    def spans(self) -> list[ReadableSpan]:
        """Those that have ended, in order."""
        return list(self._exporter.get_finished_spans())

    def span(self) -> ReadableSpan:
        (span,) = self.spans
        return span

    def points(self, name: str) -> list[Point]:
        data = self._reader.get_metrics_data()
        metrics = [
            metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]
        return [
            Point(metric.unit, dict(point.attributes or {}), point)
            for metric in metrics
            for point in metric.data.data_points
        ]

    def values(self, name: str, label: str) -> dict[Any, float]:
        """The values of a counter or gauge by one of its labels."""
        return {point.attributes[label]: point.raw.value for point in self.points(name)}


@dataclass
class Point:
    unit: str
    attributes: dict[str, Any]
    raw: Any
