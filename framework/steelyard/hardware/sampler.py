"""How busy this node is, measured once a second beside the calls and never in their way.

Of what goes into :attr:`Sampler.utilization` the balancer takes the largest and moves traffic by it. Shares that
*follow* traffic belong there: cpu, gpu, executor, and what a model reports of itself. Levels do not: a loaded model
keeps its node's memory at 0.7 when it is idle, would hide a CPU at 0.4, and no diverted call would ever lower it. They
are reported all the same, because operators want them, under names that the balancer leaves alone
(``balance.load.NOT_STEERING``): memory, throttled, gpu_memory, gpu_throttled, psi_cpu, psi_memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from steelyard.errors import ConfigError
from steelyard.model import LoadReport
from steelyard.setting import text

from .cgroup import CGROUP_ROOT, PROC_ROOT, Cgroups
from .pressure import PressureMeter
from .source import Measure, Source
from .usage import CEILING, CpuMeter, memory_use

log = logging.getLogger(__name__)

T = TypeVar("T")

_RESERVED = ("cpu", "memory", "throttled", "psi_cpu", "psi_memory")
# What a model told of itself is believed for so long; a model that has stopped telling is unknown.
TOLD_FOR_S = 10.0


class Sampler:
    """Measures utilization in a daemon thread of its own, between :meth:`start` and :meth:`stop`.

    ``interval_s`` is the time between samples (1 s: a report's period in BALANCING.md; shorter windows show the steps
    in which a cgroup's quota refills). Sources together may take half of it. ``pid`` is whose use is measured.
    """

    def __init__(
        self,
        *,
        interval_s: float = 1.0,
        pid: int | str = "self",
        proc_root: Path = PROC_ROOT,
        cgroup_root: Path = CGROUP_ROOT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < interval_s < float("inf"):
            raise ConfigError(f"interval_s must be a number of seconds above 0, not {interval_s!r}")
        self.interval_s = interval_s
        self._proc_root = proc_root
        self._cpu = CpuMeter(pid, proc_root=proc_root, cgroup_root=cgroup_root, clock=clock)
        self._cgroups = Cgroups(pid, proc_root, cgroup_root)
        self._pressure = PressureMeter(self._cgroups, proc_root=proc_root, clock=clock)
        self._told: dict[str, tuple[float, float]] = {}
        self._clock = clock
        self._sources: dict[str, Source] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._complained: set[str] = set()
        # One tuple, swapped whole, so that a reader never sees the values of one moment with the time of another.
        self._newest: tuple[Mapping[str, float], float | None] = (MappingProxyType({}), None)

    @property
    def utilization(self) -> Mapping[str, float]:
        """Busy share per resource, in [0, 1] (an overshoot up to 1.5 is kept). What is not known is absent."""
        return self._newest[0]

    @property
    def sampled_at(self) -> float | None:
        """When the newest sample was taken, in seconds of the monotonic clock; None before the first."""
        return self._newest[1]

    def add_source(self, name: str, measure: Measure) -> None:
        """Report *measure*'s answer, a share in [0, 1], as *name* from the next sample on.

        It is called in a thread of its own. Several shares at once are a mapping, reported under its names, except
        those that are measured here (cpu, memory, ...). None, an exception, a value that is no share and an answer that
        does not come in time all make the name absent, with one line in the log. Raises ConfigError for a name that is
        taken.
        """
        if not name or name in _RESERVED or name in self._sources:
            raise ConfigError(f"a source needs a name of its own: {name!r} is empty, taken, or measured already")
        self._sources = {**self._sources, name: Source(name, measure)}

    def tell(self, name: str, share: float) -> None:
        """Report *share* as *name* until it is told anew, for TOLD_FOR_S at most. From any thread. Raises ConfigError
        for a name that is measured already, and for what is no share in [0, 1]."""
        if not text("utilization", name) or name in _RESERVED or name in self._sources:
            raise ConfigError(f"a utilization needs a name of its own: {name!r} is empty, or measured already")
        number: object = share
        is_number = isinstance(number, Real) and not isinstance(number, bool)  # numpy's numbers are Real
        if not is_number or not 0.0 <= share <= CEILING:
            raise ConfigError(f"the utilization {name!r} is a share in [0, 1], not {share!r}")
        self._told[name] = (float(share), self._clock())

    def start(self) -> None:
        """Begin to sample. The first CPU share is there one interval later; until then cpu is absent. Idempotent."""
        if self._thread is not None:
            return
        self._stopping.clear()
        self._cpu.sample()
        self._thread = threading.Thread(target=self._run, name="steelyard-sampler", daemon=True)
        self._thread.start()

    def stop(self, wait_s: float = 2.0) -> None:
        """End the thread and those of the sources, waiting at most *wait_s*. Idempotent; may be started again.

        A source that hangs is left to end with the process, and named in the log.
        """
        self._stopping.set()
        give_up_at = time.monotonic() + wait_s
        ended, self._sources = self._sources, {name: source.again() for name, source in self._sources.items()}
        for source in ended.values():
            source.close()
        if self._thread is not None:
            self._thread.join(max(0.0, wait_s))
            self._thread = None
        for source in ended.values():
            if not source.join(give_up_at - time.monotonic()):
                log.warning("the utilization %r still hangs in its measurement and was left behind", source.name)

    def sample(self) -> Mapping[str, float]:
        """Measure now and keep it as the newest. The thread calls this; so may a program that has a loop of its own."""
        sources = self._sources
        for source in sources.values():
            source.ask()
        shares = self._own()
        sampled_at = self._clock()
        give_up_at = time.monotonic() + self.interval_s / 2
        for source in sources.values():
            answer = source.answer(give_up_at - time.monotonic())
            shares.update({name: share for name, share in answer.items() if name not in _RESERVED})
        for name, (share, told_at_s) in list(self._told.items()):
            if sampled_at - told_at_s <= TOLD_FOR_S:
                shares.setdefault(name, share)
        utilization = MappingProxyType(shares)
        self._newest = (utilization, sampled_at)
        return utilization

    def report(
        self,
        *,
        in_flight: int | None = None,
        queue_depth: int | None = None,
        calls_per_s: float | None = None,
        errors_per_s: float | None = None,
    ) -> LoadReport:
        """The newest sample as a LoadReport of this moment: empty, with age 0, before the first."""
        utilization, sampled_at = self._newest
        age_s = 0.0 if sampled_at is None else max(0.0, self._clock() - sampled_at)
        return LoadReport(utilization, in_flight, queue_depth, age_s, calls_per_s, errors_per_s)

    def _own(self) -> dict[str, float]:
        memory = self._part("memory", lambda: memory_use(self._cgroups, self._proc_root), None)
        own = {
            "cpu": self._part("cpu", self._cpu.sample, None),
            "throttled": self._cpu.throttled,
            "memory": None if memory is None else memory.share,
        }
        nothing: Mapping[str, float] = {}
        shares = dict(self._part("pressure", self._pressure.sample, nothing))
        return shares | {name: share for name, share in own.items() if share is not None}

    def _part(self, name: str, measure: Callable[[], T], unknown: T) -> T:
        """One of the own measurements. A kernel file of an unforeseen form costs that one, and not the thread."""
        try:
            return measure()
        except Exception:
            if name not in self._complained:
                self._complained.add(name)
                log.warning("the utilization %r cannot be measured and is reported as unknown", name, exc_info=True)
            return unknown

    def _run(self) -> None:
        wait_s = self.interval_s
        while not self._stopping.wait(wait_s):
            started_at = time.monotonic()
            self.sample()
            wait_s = max(0.0, self.interval_s - (time.monotonic() - started_at))
