"""What stands in for hardware that this machine does not have: an accelerator, and a smaller share of a CPU.

Both are told apart from the real thing wherever they are shown.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable


class EmulatedDevice:
    """A serial device: one call after another, each taking ``service_s``. It does no work; it is busy.

    A queue in front of one server is what an accelerator looks like from outside, and its busy share is what NVML would
    report as utilization.
    """

    def __init__(self, service_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._service_s = service_s
        self._clock = clock
        self._free_at = clock()
        self._promised_s = 0.0
        self._last = (clock(), 0.0)

    async def run(self) -> None:
        """Waits for the device's turn and for its work."""
        now = self._clock()
        self._free_at = max(now, self._free_at) + self._service_s
        self._promised_s += self._service_s
        await asyncio.sleep(self._free_at - now)

    @property
    def busy_s(self) -> float:
        """Seconds for which it has been busy since it was made."""
        return self._promised_s - max(0.0, self._free_at - self._clock())

    def busy_share(self) -> float:
        """The busy share since the last question, in [0, 1]."""
        now, busy_s = self._clock(), self.busy_s
        (last, last_busy_s), self._last = self._last, (now, busy_s)
        return min(1.0, max(0.0, busy_s - last_busy_s) / (now - last)) if now > last else 0.0


class DutyCycle:
    """A CPU quota that a process keeps by itself, where the kernel may not be asked for one.

    Time is cut as the kernel cuts it: ``quota`` x elapsed is what the process may have used, unused time is not saved
    up beyond one ``burst_s``, and whoever is in debt rests. The debt is paid after a call, while the only handler
    thread is held, so calls queue in front of this node just as they do in front of a throttled one.
    """

    def __init__(
        self,
        quota: float,
        *,
        burst_s: float = 0.02,
        used_s: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._quota = quota
        self._burst_s = burst_s
        self._used_s = used_s
        self._clock = clock
        self._sleep = sleep
        self._paid_at = clock()
        self._paid_s = used_s()
        self._last = (clock(), used_s())
        self._lock = threading.Lock()

    def rest(self) -> None:
        """Sleeps off what was used too much."""
        with self._lock:
            now, used_s = self._clock(), self._used_s()
            self._paid_at = max(self._paid_at + (used_s - self._paid_s) / self._quota, now - self._burst_s)
            self._paid_s = used_s
            debt_s = self._paid_at - now
        if debt_s > 0:
            self._sleep(debt_s)

    def busy_share(self) -> float:
        """CPU time used over CPU time allowed since the last question, in [0, 1.5]."""
        now, used_s = self._clock(), self._used_s()
        (last, last_used_s), self._last = self._last, (now, used_s)
        return min(1.5, (used_s - last_used_s) / (now - last) / self._quota) if now > last else 0.0
