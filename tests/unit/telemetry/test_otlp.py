from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from steelyard.errors import ConfigError
from steelyard.telemetry import Telemetry, setup, telemetry_for


class Collector:
    """An OTLP collector over HTTP that keeps what it gets."""

    def __init__(self) -> None:
        self.received: list[tuple[str, bytes, dict[str, str]]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.received.append((self.path, body, dict(self.headers)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def bodies(self, path: str) -> list[bytes]:
        return [body for at, body, _ in self.received if at == path]

    def spans(self) -> dict[str, str]:
        """Span name -> service name."""
        found = {}
        for body in self.bodies("/v1/traces"):
            for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                attributes = {a.key: a.value.string_value for a in part.resource.attributes}
                found.update({s.name: attributes["service.name"] for scope in part.scope_spans for s in scope.spans})
        return found

    def metrics(self) -> set[str]:
        return {
            metric.name
            for body in self.bodies("/v1/metrics")
            for part in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in part.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OTEL_", "STEELYARD_")):
            monkeypatch.delenv(name)


def use(telemetry: Telemetry) -> None:
    assert telemetry.is_tracing
    assert telemetry.is_metering
    telemetry.tracer.start_span("a span").end()
    assert telemetry.client is not None
    telemetry.client.calls.add(1, {})


def test_arguments(collector: Collector) -> None:
    telemetry = setup("shop", collector.url + "/", attributes={"team": "ads"})
    use(telemetry)
    telemetry.close()
    assert collector.spans() == {"a span": "shop"}
    assert collector.metrics() == {"steelyard.client.calls"}


def test_nothing_global_is_set(collector: Collector) -> None:
    before = (trace.get_tracer_provider(), metrics.get_meter_provider())
    with setup("shop", collector.url):
        assert (trace.get_tracer_provider(), metrics.get_meter_provider()) == before


def test_two_at_once_stay_apart(collector: Collector) -> None:
    other = Collector()
    try:
        with setup("one", collector.url) as one, setup("two", other.url) as two:
            one.tracer.start_span("from one").end()
            two.tracer.start_span("from two").end()
        assert collector.spans() == {"from one": "one"}
        assert other.spans() == {"from two": "two"}
    finally:
        other.close()


def test_standard_environment(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEELYARD_TELEMETRY", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "from-outside")
    telemetry = telemetry_for(None, service_name="default")
    use(telemetry)
    telemetry.close()
    assert collector.spans() == {"a span": "from-outside"}
    assert {headers.get("x-key") for _, _, headers in collector.received} == {"secret"}


def test_the_default_name_is_used_without_one_outside(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    with telemetry_for("otlp", service_name="default") as telemetry:
        use(telemetry)
    assert collector.spans() == {"a span": "default"}


def test_one_signal_can_be_left_out(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    with setup("shop", collector.url) as telemetry:
        use(telemetry)
    assert collector.spans() == {"a span": "shop"}
    assert collector.metrics() == set()


def test_metrics_go_out_at_the_given_pace(collector: Collector) -> None:
    telemetry = setup("shop", collector.url, metrics_every_s=0.05)
    use(telemetry)
    give_up_at = time.monotonic() + 20
    while len(collector.bodies("/v1/metrics")) < 2:
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
    telemetry.close()


def test_a_collector_that_is_away_cannot_hold_the_end_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts and never answers
        telemetry = setup("shop", f"http://127.0.0.1:{silent.getsockname()[1]}")
        use(telemetry)
        started_at = time.perf_counter()
        telemetry.close(timeout_s=0.3)
        assert time.perf_counter() - started_at < 5
        assert "could not be flushed within 0.3 s" in caplog.text
        for thread in set(threading.enumerate()) - before:  # or they would still be trying when the tests are over
            thread.join(30)


@pytest.mark.parametrize("module", ["trace_exporter", "metric_exporter"])
def test_without_the_extra_the_error_says_how_to_get_it(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"opentelemetry.exporter.otlp.proto.http.{module}", None)
    with pytest.raises(ConfigError, match=r"pip install 'steelyard\[otlp\]'"):
        setup("shop")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"endpoint": "collector:4318"}, "endpoint must be an http:// or https:// URL, not 'collector:4318'"),
        ({"metrics_every_s": 0}, "metrics_every_s must be a number of seconds above 0, not 0"),
        ({"environ": {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}}, "PROTOCOL must be 'http/protobuf', .*not 'grpc'"),
        ({"environ": {"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}}, "METRICS_PROTOCOL must be"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        setup("shop", **settings)
