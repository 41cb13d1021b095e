"""Gauges that are read when somebody collects, and cost nothing otherwise.

OpenTelemetry takes a callback when a gauge is created and never lets it go again, and a second gauge of the same name
on the same provider is dropped in silence. Consumers come and go and there are often several in a process. So each
meter provider has one board: it creates each gauge once, and whoever has something to show pins a probe to the board
and takes it off again.

Collection runs on the exporter's own thread, while what it reads belongs to an event loop. A probe pinned from within
a running loop is therefore called on that loop; when the loop does not come to it in time, nothing is shown (an old
value would look like a new one).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

from .conventions import GAUGES, SCHEMA_URL, SYSTEM

log = logging.getLogger(__name__)

_LOOP_WAIT_S = 1.0
# All gauges are collected one after the other and share one reading of each probe if it is not older than this.
_SAME_COLLECTION_S = 0.25


@dataclass(frozen=True, slots=True)
class Showing:
    """One value of one gauge."""

    gauge: str
    value: float
    attributes: Mapping[str, str]


Probe = Callable[[], Iterable[Showing]]


class _Pinned:
    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self._thread = threading.get_ident()
        self._has_complained = False
        self._reading: tuple[float, tuple[Showing, ...]] | None = None

    def read(self) -> tuple[Showing, ...]:
        now_s = time.monotonic()
        if self._reading is None or now_s - self._reading[0] > _SAME_COLLECTION_S:
            self._reading = (now_s, self._fresh())
        return self._reading[1]

    def _fresh(self) -> tuple[Showing, ...]:
        try:
            if self._loop is None or threading.get_ident() == self._thread:
                return tuple(self._probe())
            return self._on_loop(self._loop)
        except Exception:
            log.log(logging.DEBUG if self._has_complained else logging.WARNING, "a gauge has no value", exc_info=True)
            self._has_complained = True
            return ()

    def _on_loop(self, loop: asyncio.AbstractEventLoop) -> tuple[Showing, ...]:
        reading: concurrent.futures.Future[tuple[Showing, ...]] = concurrent.futures.Future()

        def take() -> None:
            if not reading.set_running_or_notify_cancel():
                return
            try:
                reading.set_result(tuple(self._probe()))
            except Exception as error:
                reading.set_exception(error)

        loop.call_soon_threadsafe(take)
        try:
            return reading.result(_LOOP_WAIT_S)
        finally:
            reading.cancel()


class GaugeBoard:
    """The gauges of one meter provider and the probes that are pinned to them now."""

    def __init__(self, meter: Meter) -> None:
        self._lock = threading.Lock()
        self._pinned: tuple[_Pinned, ...] = ()
        for name, description in GAUGES.items():
            meter.create_observable_gauge(name, [self._callback(name)], unit="1", description=description)

    def pin(self, probe: Probe) -> Callable[[], None]:
        """Show what *probe* gives; the answer takes it off again (idempotent)."""
        pinned = _Pinned(probe)
        with self._lock:
            self._pinned = (*self._pinned, pinned)

        def unpin() -> None:
            with self._lock:
                self._pinned = tuple(other for other in self._pinned if other is not pinned)

        return unpin

    def _callback(self, gauge: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(showing.value, dict(showing.attributes))
                for pinned in self._pinned
                for showing in pinned.read()
                if showing.gauge == gauge
            ]

        return observe


_boards: WeakKeyDictionary[MeterProvider, GaugeBoard] = WeakKeyDictionary()
_global_board: list[GaugeBoard] = []
_boards_lock = threading.Lock()


def board_of(provider: MeterProvider | None) -> GaugeBoard:
    """The board of *provider*; of OpenTelemetry's global one, now or whenever it will be set, for None.

    These stand in module variables because what they mirror, the providers' own lists of gauges, does too.
    """
    with _boards_lock:
        if provider is None or provider is metrics.get_meter_provider():
            if not _global_board:
                _global_board.append(GaugeBoard(metrics.get_meter(SYSTEM, schema_url=SCHEMA_URL)))
            return _global_board[0]
        board = _boards.get(provider)
        if board is None:
            board = _boards[provider] = GaugeBoard(provider.get_meter(SYSTEM, schema_url=SCHEMA_URL))
        return board
