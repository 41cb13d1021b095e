"""A named measurement that may raise, hang or lie, and must not be able to harm anything else.

Each source has a thread of its own: a driver call that blocks cannot be interrupted, only waited for elsewhere. The
sampler asks, waits a bounded time for all of them together, and goes on without those that did not answer.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping

from steelyard.setting import text

from .usage import CEILING

log = logging.getLogger(__name__)

Measure = Callable[[], float | Mapping[str, float] | None]
"""A share, or several by name (a device's library is asked once for all of them)."""


class Source:
    """One measurement and its thread, started at the first question and ended by :meth:`close`."""

    def __init__(self, name: str, measure: Measure) -> None:
        self.name = name
        self._measure = measure
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._is_closed = False
        self._is_busy = False
        self._is_late = False
        self._has_complained = False
        self._value: Mapping[str, float] = {}
        self._thread: threading.Thread | None = None

    def again(self) -> Source:
        """A new one for the same measurement."""
        return Source(self.name, self._measure)

    def ask(self) -> None:
        """Begin one measurement, unless the last one still hangs."""
        self._is_late = self._is_busy
        if self._is_busy or self._is_closed:
            return
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=f"steelyard-source-{self.name}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the container's bound on processes; it may be lifted, so it is tried again
                self._answered.set()
                self.complain(f"has no thread ({error})")
                return
            self._thread = thread
        self._is_busy = True
        self._value = {}
        self._answered.clear()
        self._asked.set()

    def answer(self, wait_s: float) -> Mapping[str, float]:
        """What was measured, in [0, 1.5] by name; empty when it failed, made no sense, or did not come within
        *wait_s*."""
        # One that hung already when it was asked is not waited for again: that would make every sample late.
        if not self._answered.wait(0.0 if self._is_late else max(0.0, wait_s)):
            self.complain("did not answer in time")
            return {}
        return self._value

    def close(self) -> None:
        """End the thread as soon as its measurement returns. Idempotent; does not wait."""
        self._is_closed = True
        self._asked.set()

    def join(self, wait_s: float) -> bool:
        """Whether the thread has ended within *wait_s*; one that hangs is a daemon and ends with the process."""
        if self._thread is None:
            return True
        self._thread.join(max(0.0, wait_s))
        return not self._thread.is_alive()

    def complain(self, what: str) -> None:
        """Say it once: a source that fails every second would fill the log."""
        level = logging.DEBUG if self._has_complained else logging.WARNING
        self._has_complained = True
        log.log(level, "the utilization %r %s; it is reported as unknown", self.name, what)

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._is_closed:
                return
            self._value = self._checked()
            self._answered.set()
            self._is_busy = False  # last, so that a new question cannot be taken for answered by the old answer

    def _checked(self) -> Mapping[str, float]:
        try:
            measured = self._measure()
            if measured is None:
                return {}
            found = measured if isinstance(measured, Mapping) else {self.name: measured}
            shares = {text("a share's name", name): float(share) for name, share in found.items()}
        except Exception as error:
            self.complain(f"failed ({type(error).__name__}: {error})")
            return {}
        for name, share in shares.items():
            if not math.isfinite(share) or not 0.0 <= share <= CEILING:
                self.complain(f"measured {share}, which is no share in [0, 1] (up to {CEILING} is taken as overshoot)")
                return {each: share for each, share in shares.items() if each != name and 0.0 <= share <= CEILING}
        return shares
