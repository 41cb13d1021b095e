"""Telemetry: one place for what the filters and the cluster tell, over whatever OpenTelemetry SDK there is.

The API alone is imported here. Without an SDK its tracer and instruments do nothing, but even doing nothing takes
microseconds a call in context handling and attributes. So :attr:`Telemetry.is_tracing` and
:attr:`Telemetry.is_metering` say in a tenth of that whether anybody listens, and the filters step aside when nobody
does.

An application may set up its SDK after this package was imported, but it can do so only once. So a found provider is
kept, and a missing one is looked for at the first call and then once a second (asking the API each time takes 0.9 us:
it reads an environment variable).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider, UpDownCounter
from opentelemetry.trace import Tracer, TracerProvider

from .conventions import (
    BATCH_BOUNDS,
    CLIENT_ACTIVE_CALLS,
    CLIENT_CALL_DURATION,
    CLIENT_CALLS,
    DURATION_BOUNDS_S,
    NODE,
    NODE_AVAILABILITY,
    NODE_REFUSE_RATIO,
    NODE_SHARE,
    NODE_UTILIZATION,
    PROTECTION_DEGRADED_SHARE,
    PROTECTION_LEVEL,
    RESOURCE,
    SCHEMA_URL,
    SERVER_ACTIVE_CALLS,
    SERVER_BATCH_CALLS,
    SERVER_BATCH_DURATION,
    SERVER_BATCH_WAIT,
    SERVER_CALL_DURATION,
    SERVER_CALLS,
    SERVER_UTILIZATION,
    SERVICE,
    SYSTEM,
)
from .gauges import Probe, Showing, board_of

_LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """What a consumer knows of one node, for the gauges: shares in [0, 1], None where nothing is known.

    ``node`` is the node's identity. ``utilization`` is that of its dominant resource.
    """

    node: str
    share: float | None = None
    refuse_ratio: float | None = None
    availability: float | None = None
    utilization: float | None = None


@dataclass(frozen=True, slots=True)
class CallInstruments:
    """The instruments of one side: seconds per call, calls by outcome, calls under way."""

    duration: Histogram
    calls: Counter
    active: UpDownCounter


@dataclass(frozen=True, slots=True)
class BatchInstruments:
    """Of each batch: its calls, how long its first one waited (s), and how long the handler took (s)."""

    calls: Histogram
    wait: Histogram
    duration: Histogram


class Telemetry:
    """A tracer, the instruments and the gauges, over given providers or over OpenTelemetry's global ones.

    ``tracer_provider`` and ``meter_provider``: None means the global one, now or whenever the application sets it.
    ``on_close`` is called by :meth:`close` with the seconds it may take (``setup`` shuts its own SDK down there).
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        on_close: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._on_close = on_close
        self._clock = clock
        self._look_at_s = -math.inf
        self._tracer: Tracer | None = None
        self._client: CallInstruments | None = None
        self._server: CallInstruments | None = None
        self._batches: BatchInstruments | None = None
        self._unpins: list[Callable[[], None]] = []

    def shared(self) -> Telemetry:
        """Another one over the same providers; closing it leaves this one as it is."""
        return Telemetry(tracer_provider=self._tracer_provider, meter_provider=self._meter_provider, clock=self._clock)

    def is_silent(self, now_s: float) -> bool:
        """Whether nobody listens, as far as is known without looking: both questions below in one. *now_s*: by the
        clock of this object."""
        return now_s < self._look_at_s and self._tracer is None and self._client is None

    @property
    def is_tracing(self) -> bool:
        """Whether spans go anywhere."""
        return self._tracer is not None or (self._clock() >= self._look_at_s and self._look()._tracer is not None)

    @property
    def is_metering(self) -> bool:
        """Whether measurements go anywhere."""
        return self._client is not None or (self._clock() >= self._look_at_s and self._look()._client is not None)

    @property
    def tracer(self) -> Tracer:
        """The tracer; one that does nothing while nobody listens."""
        return (self._tracer or self._look()._tracer) or trace.NoOpTracer()

    @property
    def client(self) -> CallInstruments | None:
        """The calling side's instruments; None while nobody listens (see :attr:`is_metering`)."""
        return self._client

    @property
    def server(self) -> CallInstruments | None:
        """The serving side's instruments; None while nobody listens."""
        return self._server

    @property
    def batches(self) -> BatchInstruments | None:
        """The instruments of batches; None while nobody listens."""
        return self._batches if self.is_metering else None

    def inject(self, attachments: Mapping[str, str]) -> dict[str, str]:
        """*attachments* with the current trace context, in the application's format (by default W3C traceparent)."""
        carrier = dict(attachments)
        propagate.inject(carrier)
        return carrier

    def extract(self, attachments: Mapping[str, str]) -> Context:
        """The context that the caller put into *attachments*; the current one where it put none."""
        return propagate.extract(attachments)

    def observe(self, service: str, callback: Callable[[], Iterable[NodeReading]]) -> Callable[[], None]:
        """Show the nodes of *service* (a service key) as gauges; the answer ends it.

        *callback* is called when somebody collects: on the running loop if this was called from one, else on the
        collector's thread. What it raises is logged and costs only its own values.
        """

        def probe() -> Iterable[Showing]:
            for reading in callback():
                attributes = {SERVICE: service, NODE: reading.node}
                for gauge, value in (
                    (NODE_SHARE, reading.share),
                    (NODE_REFUSE_RATIO, reading.refuse_ratio),
                    (NODE_AVAILABILITY, reading.availability),
                    (NODE_UTILIZATION, reading.utilization),
                ):
                    if value is not None and math.isfinite(value):
                        yield Showing(gauge, value, attributes)

        return self._pin(probe)

    def observe_protection(self, service: str, callback: Callable[[], tuple[int, float]]) -> Callable[[], None]:
        """Show the level of *service*'s protection and the share it degraded last, as gauges; the answer ends it.
        Called as in observe."""

        def probe() -> Iterable[Showing]:
            level, share = callback()
            yield Showing(PROTECTION_LEVEL, level, {SERVICE: service})
            yield Showing(PROTECTION_DEGRADED_SHARE, share, {SERVICE: service})

        return self._pin(probe)

    def observe_utilization(self, callback: Callable[[], Mapping[str, float]]) -> Callable[[], None]:
        """Show a provider's own utilization per resource as a gauge; the answer ends it. Called as in observe."""

        def probe() -> Iterable[Showing]:
            for resource, share in callback().items():
                if math.isfinite(share):
                    yield Showing(SERVER_UTILIZATION, share, {RESOURCE: resource})

        return self._pin(probe)

    def close(self, timeout_s: float = 5.0) -> None:
        """End the gauges, and flush and shut down the SDK if ``setup`` made it. Blocks for *timeout_s* at most.

        Idempotent. On an event loop use :meth:`aclose`.
        """
        unpins, self._unpins = self._unpins, []
        for unpin in unpins:
            unpin()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(timeout_s)

    async def aclose(self, timeout_s: float = 5.0) -> None:
        """:meth:`close` without blocking the loop."""
        if self._on_close is None:
            self.close()
        else:
            await asyncio.to_thread(self.close, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pin(self, probe: Probe) -> Callable[[], None]:
        unpin = board_of(self._meter_provider).pin(probe)
        self._unpins.append(unpin)

        def end() -> None:
            unpin()
            with suppress(ValueError):
                self._unpins.remove(unpin)

        return end

    def _look(self) -> Telemetry:
        self._look_at_s = self._clock() + _LOOK_EVERY_S
        if self._tracer is None:
            tracers = self._tracer_provider or trace.get_tracer_provider()
            if _listens(tracers) and _listens(tracer := tracers.get_tracer(SYSTEM, schema_url=SCHEMA_URL)):
                self._tracer = tracer
        if self._client is None:
            meters = self._meter_provider or metrics.get_meter_provider()
            if _listens(meters) and _listens(meter := meters.get_meter(SYSTEM, schema_url=SCHEMA_URL)):
                self._server = _instruments(meter, SERVER_CALL_DURATION, SERVER_CALLS, SERVER_ACTIVE_CALLS)
                self._batches = _batch_instruments(meter)
                self._client = _instruments(meter, CLIENT_CALL_DURATION, CLIENT_CALLS, CLIENT_ACTIVE_CALLS)
        return self


def _listens(part: Any) -> bool:
    """Whether a provider, tracer or meter is more than the API's own stand-in (its proxies and no-ops)."""
    return type(part).__module__.split(".")[:2] not in (["opentelemetry", "trace"], ["opentelemetry", "metrics"])


def _instruments(meter: Meter, duration: str, calls: str, active: str) -> CallInstruments:
    return CallInstruments(
        meter.create_histogram(
            duration,
            unit="s",
            description="Duration of a call.",
            explicit_bucket_boundaries_advisory=DURATION_BOUNDS_S,
        ),
        meter.create_counter(calls, unit="{call}", description="Calls that have ended, by what they say of the node."),
        meter.create_up_down_counter(active, unit="{call}", description="Calls under way."),
    )


def _batch_instruments(meter: Meter) -> BatchInstruments:
    def seconds(name: str, description: str) -> Histogram:
        return meter.create_histogram(
            name, unit="s", description=description, explicit_bucket_boundaries_advisory=DURATION_BOUNDS_S
        )

    return BatchInstruments(
        meter.create_histogram(
            SERVER_BATCH_CALLS,
            unit="{call}",
            description="Calls in a batch.",
            explicit_bucket_boundaries_advisory=BATCH_BOUNDS,
        ),
        seconds(SERVER_BATCH_WAIT, "How long the first call of a batch waited for it to begin."),
        seconds(SERVER_BATCH_DURATION, "How long the handler took for a batch."),
    )
