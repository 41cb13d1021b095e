from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading

import pytest
from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider
from support.otel import Recorder

from steelyard.errors import ConfigError
from steelyard.telemetry import NodeReading, Telemetry, conventions, telemetry_for

SILENT = {"tracer_provider": NoOpTracerProvider(), "meter_provider": NoOpMeterProvider()}


def test_nobody_listens() -> None:
    telemetry = Telemetry(**SILENT)
    assert not telemetry.is_tracing
    assert not telemetry.is_metering
    assert telemetry.client is None
    assert telemetry.server is None
    assert not telemetry.tracer.start_span("x").is_recording()


def test_somebody_listens() -> None:
    telemetry = Recorder().telemetry
    assert telemetry.is_tracing
    assert telemetry.is_metering
    assert telemetry.client is not None
    assert telemetry.server is not None


def test_one_signal_alone() -> None:
    recorder = Recorder()
    telemetry = Telemetry(tracer_provider=recorder.tracers, meter_provider=NoOpMeterProvider())
    assert (telemetry.is_tracing, telemetry.is_metering) == (True, False)


def test_a_disabled_sdk_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    telemetry = Recorder().telemetry
    assert (telemetry.is_tracing, telemetry.is_metering) == (False, False)


def test_looking_for_an_sdk_is_done_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [0.0], []
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: looks.append(now[0]) or NoOpTracerProvider())
    telemetry = Telemetry(meter_provider=NoOpMeterProvider(), clock=lambda: now[0])
    for now[0] in (0.0, 0.1, 0.9, 1.0, 1.5, 2.5):
        assert not telemetry.is_tracing
        assert not telemetry.is_metering
    assert looks == [0.0, 1.0, 2.5]


LATE = """
from steelyard.telemetry import NodeReading, Telemetry
now = [0.0]
early = Telemetry(clock=lambda: now[0])
late = Telemetry(clock=lambda: now[0])
early.observe("s", lambda: [NodeReading(node="a", share=0.5)])
assert not early.is_tracing and not early.is_metering
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
reader = InMemoryMetricReader()
trace.set_tracer_provider(TracerProvider())
metrics.set_meter_provider(MeterProvider([reader]))
assert late.is_tracing and late.is_metering, "the first call must see it"
assert not early.is_tracing, "looked already, and not again within the second"
now[0] = 1.0
assert early.is_tracing and early.is_metering, "and then it must"
late.observe("s", lambda: [NodeReading(node="b", share=0.25)])
data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
(shares,) = [m for m in data if m.name == "steelyard.node.share"]
print(sorted((p.attributes["steelyard.node"], p.value) for p in shares.data.data_points))
"""


def test_an_sdk_set_up_after_import_is_found() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[('a', 0.5), ('b', 0.25)]"
    assert "already exists" not in done.stderr


def test_the_api_alone_is_imported() -> None:
    script = "import sys, steelyard.telemetry; print([m for m in sys.modules if m.startswith('opentelemetry.sdk')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_of_nothing_is_what_there_is() -> None:
    assert not telemetry_for(None, environ={}).is_tracing


def test_of_none_is_silent_whatever_there_is() -> None:
    for telemetry in (telemetry_for("none"), telemetry_for(None, environ={"STEELYARD_TELEMETRY": " None "})):
        assert (telemetry.is_tracing, telemetry.is_metering) == (False, False)


def test_of_a_telemetry_shares_its_providers_and_not_its_end() -> None:
    recorder = Recorder()
    ends: list[float] = []
    given = Telemetry(
        tracer_provider=recorder.tracers,
        meter_provider=recorder.meters,
        on_close=ends.append,
    )
    borrowed = telemetry_for(given)
    borrowed.tracer.start_span("x").end()
    borrowed.close()
    assert ends == []
    assert [span.name for span in recorder.spans] == ["x"]
    given.close(3)
    given.close(3)
    assert ends == [3]


@pytest.mark.parametrize(
    ("choice", "environ", "message"),
    [
        ("jaeger", {}, "telemetry must be 'otlp', 'none' or a Telemetry .*not 'jaeger'"),
        (None, {"STEELYARD_TELEMETRY": "yes"}, r"\$STEELYARD_TELEMETRY must be .*not 'yes'"),
        (7, {}, "telemetry must be .*not 7"),
    ],
)
def test_of_what_cannot_be(choice: object, environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        telemetry_for(choice, environ=environ)  # type: ignore[arg-type]


def test_gauges_show_what_is_known_of_each_node() -> None:
    recorder = Recorder()
    readings = [
        NodeReading(node="a", share=0.75, refuse_ratio=0.0, availability=0.99, utilization=0.6),
        NodeReading(node="b", share=0.25, refuse_ratio=0.5, utilization=float("nan")),
    ]
    recorder.telemetry.observe("g/s:1", lambda: readings)
    assert recorder.values(conventions.NODE_SHARE, "steelyard.node") == {"a": 0.75, "b": 0.25}
    assert recorder.values(conventions.NODE_REFUSE_RATIO, "steelyard.node") == {"a": 0.0, "b": 0.5}
    assert recorder.values(conventions.NODE_AVAILABILITY, "steelyard.node") == {"a": 0.99}
    assert recorder.values(conventions.NODE_UTILIZATION, "steelyard.node") == {"a": 0.6}
    (point, _) = recorder.points(conventions.NODE_SHARE)
    assert point.attributes["steelyard.service"] == "g/s:1"
    assert point.unit == "1"


def test_a_provider_shows_its_own_utilization() -> None:
    recorder = Recorder()
    recorder.telemetry.observe_utilization(lambda: {"cpu": 0.5, "gpu": 1.0})
    assert recorder.values(conventions.SERVER_UTILIZATION, "steelyard.resource") == {"cpu": 0.5, "gpu": 1.0}


def test_a_consumer_shows_how_far_protection_goes() -> None:
    recorder = Recorder()
    end = recorder.telemetry.observe_protection("g/s:1", lambda: (2, 0.25))
    assert recorder.values(conventions.PROTECTION_LEVEL, "steelyard.service") == {"g/s:1": 2}
    assert recorder.values(conventions.PROTECTION_DEGRADED_SHARE, "steelyard.service") == {"g/s:1": 0.25}
    end()
    assert recorder.points(conventions.PROTECTION_LEVEL) == []


def test_gauges_of_several_consumers_stand_together_and_end_apart() -> None:
    recorder = Recorder()
    other = telemetry_for(recorder.telemetry)
    end = recorder.telemetry.observe("s", lambda: [NodeReading(node="a", share=0.1)])
    other.observe("s", lambda: [NodeReading(node="b", share=0.2)])
    assert recorder.values(conventions.NODE_SHARE, "steelyard.node") == {"a": 0.1, "b": 0.2}
    end()
    end()
    assert recorder.values(conventions.NODE_SHARE, "steelyard.node") == {"b": 0.2}
    other.close()
    assert recorder.points(conventions.NODE_SHARE) == []


def test_a_gauge_that_raises_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()

    def broken() -> list[NodeReading]:
        raise LookupError("no such node")

    recorder.telemetry.observe("bad", broken)
    recorder.telemetry.observe("good", lambda: [NodeReading(node="a", share=0.1)])
    for _ in range(2):
        assert recorder.values(conventions.NODE_SHARE, "steelyard.service") == {"good": 0.1}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "a gauge has no value"
    ]


def test_one_collection_reads_each_callback_once() -> None:
    recorder = Recorder()
    reads: list[int] = []
    recorder.telemetry.observe("s", lambda: reads.append(1) or [NodeReading(node="a", share=0.1, availability=1.0)])
    assert recorder.points(conventions.NODE_SHARE)
    assert len(reads) == 1


async def test_what_belongs_to_a_loop_is_read_on_it() -> None:
    recorder = Recorder()
    threads: list[int] = []
    recorder.telemetry.observe("s", lambda: threads.append(threading.get_ident()) or [NodeReading(node="a", share=0.1)])
    values = await asyncio.to_thread(recorder.values, conventions.NODE_SHARE, "steelyard.node")
    assert values == {"a": 0.1}
    assert threads == [threading.get_ident()]


async def test_read_from_the_loop_itself_does_not_wait_for_it() -> None:
    recorder = Recorder()
    recorder.telemetry.observe("s", lambda: [NodeReading(node="a", share=0.1)])
    assert recorder.values(conventions.NODE_SHARE, "steelyard.node") == {"a": 0.1}


def test_a_loop_that_has_ended_shows_nothing() -> None:
    recorder = Recorder()

    async def consumer() -> None:
        recorder.telemetry.observe("s", lambda: [NodeReading(node="a", share=0.1)])

    thread = threading.Thread(target=lambda: asyncio.run(consumer()))
    thread.start()
    thread.join()
    assert recorder.points(conventions.NODE_SHARE) == []


def test_instruments_are_shared_by_telemetries_of_one_provider(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    for telemetry in (recorder.telemetry, telemetry_for(recorder.telemetry)):
        assert telemetry.is_metering
        assert telemetry.client is not None
        telemetry.client.calls.add(1, {"k": "v"})
    assert recorder.values(conventions.CLIENT_CALLS, "k") == {"v": 2}
    assert caplog.records == []


async def test_aclose_does_not_block_the_loop() -> None:
    ended_on: list[int] = []
    telemetry = Telemetry(on_close=lambda _: ended_on.append(threading.get_ident()), **SILENT)
    await telemetry.aclose()
    await telemetry.aclose()
    assert len(ended_on) == 1
    assert ended_on[0] != threading.get_ident()
