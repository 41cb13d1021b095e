"""How busy an executor is: measured around what it runs, and not around the machine.

For a device that takes one call after another this is the honest signal. NVML's "utilization" says that some kernel
ran, a CPU share says nothing at all while the thread waits for the device; the time during which the executor could
not have taken another call says both how full it is and how much slower it has become.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

UNKNOWN_RUN_S = 0.05


class BusyMeter:
    """``with meter:`` around each run; ``share`` gives the busy part of *capacity* runs at a time. Thread-safe."""

    def __init__(self, capacity: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._busy_s = 0.0
        self._at_s = clock()
        self._last = (self._at_s, 0.0)
        self.runs = 0

    @property
    def running(self) -> int:
        return self._running

    def __enter__(self) -> None:
        with self._lock:
            self._pass()
            self._running += 1
            self.runs += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._pass()
            self._running -= 1

    def clears_in_s(self, runs: int) -> float:
        """When as many *runs* as wait will have begun, as long as the runs so far took: a hint for whoever is refused,
        1 ms to 1 s."""
        with self._lock:
            self._pass()
            run_s = self._busy_s / self.runs if self.runs else UNKNOWN_RUN_S
        return min(1.0, max(0.001, max(1, runs) * run_s / self._capacity))

    def share(self) -> float:
        """The busy share since the last question, in [0, 1]; runs that are under way count as far as they are."""
        with self._lock:
            self._pass()
            (last_at_s, last_busy_s), self._last = self._last, (self._at_s, self._busy_s)
            elapsed_s = self._at_s - last_at_s
            if elapsed_s <= 0.0:
                return min(1.0, self._running / self._capacity)
            return min(1.0, (self._busy_s - last_busy_s) / elapsed_s / self._capacity)

    def _pass(self) -> None:
        now_s = self._clock()
        self._busy_s += self._running * (now_s - self._at_s)
        self._at_s = now_s
