"""Pressure: the share of time in which something had to wait for a resource (PSI; Documentation/accounting/psi.rst).

It complements use: a group at 60 % of its CPU can be fine or starving, depending on who else is on the machine. But it
is a symptom and not a load: on a crowded machine it is high for every node alike, and sending calls elsewhere does not
lower it. So it is told to operators, and the balancer does not steer by it (``balance.load.NOT_STEERING``).

Version 2 keeps it for each group; elsewhere there is only the machine's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from .cgroup import PROC_ROOT, Cgroups, read_text

RESOURCES = ("cpu", "memory")


class PressureMeter:
    """``psi_cpu`` and ``psi_memory``, from the growth of PSI's totals between one sample and the next."""

    def __init__(
        self, cgroups: Cgroups, *, proc_root: Path = PROC_ROOT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cgroups = cgroups
        self._proc_root = proc_root
        self._clock = clock
        self._last: dict[str, tuple[Path, float, float]] = {}

    def sample(self) -> Mapping[str, float]:
        """Shares in [0, 1] by name; empty at first, and what cannot be read is absent (a kernel without PSI)."""
        shares = {}
        for resource in RESOURCES:
            path, waited_s = self._waited_s(resource)
            if waited_s is None:
                self._last.pop(resource, None)
                continue
            at_s = self._clock()
            before = self._last.get(resource)
            self._last[resource] = (path, waited_s, at_s)
            if before is not None and before[0] == path and at_s > before[2]:
                shares[f"psi_{resource}"] = min(1.0, max(0.0, (waited_s - before[1]) / (at_s - before[2])))
        return shares

    def _waited_s(self, resource: str) -> tuple[Path, float | None]:
        group = self._cgroups.group(resource)
        if group is not None and group.version == 2:
            path = group.path / f"{resource}.pressure"
            waited_s = _total_s(read_text(path))
            if waited_s is not None:
                return path, waited_s
        path = self._proc_root / "pressure" / resource
        return path, _total_s(read_text(path))


def _total_s(text: str | None) -> float | None:
    """Of ``some avg10=0.00 avg60=0.00 avg300=0.00 total=12345`` (microseconds) the total."""
    for line in (text or "").splitlines():
        kind, _, rest = line.partition(" ")
        total = rest.rpartition("total=")[2]
        if kind == "some" and total.isdecimal():
            return int(total) / 1e6
    return None
