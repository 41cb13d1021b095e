"""How much of what it may use this process uses: CPU and memory, against the limit that binds.

The host's CPU percentage is wrong inside a container: a process that spins in a 20 % cgroup is at its end, while the
host shows 0.2 of a core. So:

* where a CPU limit is set on the way up the cgroup tree, use is that of the *limited group* over its limit. The limit
  is shared by all processes of the group, so two providers in one container both say that it is full;
* otherwise it is the CPU time of the process and its living children over the CPUs that they may run on. A group
  without a limit is no container's budget; it may hold a whole login session;
* where the process itself cannot be read (a hardened /proc), it is the whole machine's.

With several nested limits each gives a ratio and the largest is what holds the process back. A limit above the usable
cores cannot be used up, so the smaller of the two is the allowance.

Beside the use stands *throttling*: the share of the limit's periods in which it ran out. It is a pressure, told to
operators, and not a load. A period that ran out should have been used in full, but the kernel hands a quota out to the
CPUs in slices of 5 ms: where one thread sits on the last slice, the other threads of the group are stopped while time
is left. With a quota of 4.8 ms in 20 we have seen half of the periods throttled at 30 % use; a balancer that steered by
that took calls from the least loaded node.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import portable
from .cgroup import CGROUP_ROOT, PROC_ROOT, Cgroups, Group, read_fields, read_number, read_text
from .machine import memory_fields, usable_cores

# A measured share can pass 1 a little: a group's quota refills in steps, so a window may see one refill more than it
# lasted, and cpu.max.burst allows it on purpose. More than 1.5 is no use but a glitch (and what the balancer refuses).
CEILING = 1.5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TREE = Path("process tree")
_HOST = Path("host")


class CpuMeter:
    """CPU time used over CPU time allowed, between one sample and the next."""

    def __init__(
        self,
        pid: int | str = "self",
        *,
        proc_root: Path = PROC_ROOT,
        cgroup_root: Path = CGROUP_ROOT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pid = pid
        self._proc_root = proc_root
        self._cgroups = Cgroups(pid, proc_root, cgroup_root)
        self._clock = clock
        self._last: dict[Path, tuple[float, float]] = {}
        self._last_periods: dict[Path, tuple[int, int]] = {}
        self.throttled: float | None = None
        """Of the last sample: the share of periods in which a CPU limit ran out, in [0, 1]. None without a limit, and
        where no period has ended."""

    def sample(self) -> float | None:
        """The busy share since the last sample, in [0, 1.5]. None at first, and where nothing could be read."""
        self.throttled = None
        cores = usable_cores(self._pid, self._proc_root)
        if cores is None:
            return None
        now: dict[Path, tuple[float, float]] = {}
        shares = []
        group = self._cgroups.group("cpu")
        quotas = list(group.cpu_quotas()) if group else []
        self.throttled = self._throttled_share([directory for directory, _ in quotas])
        for source, used_s, allowed in self._readings(cores, group, quotas):
            at_s = self._clock()
            now[source] = (used_s, at_s)
            if source in self._last:
                last_used_s, last_at_s = self._last[source]
                if at_s > last_at_s:
                    shares.append((used_s - last_used_s) / (at_s - last_at_s) / allowed)
        self._last = now
        return min(max(0.0, *shares), CEILING) if shares else None

    def _throttled_share(self, directories: Sequence[Path]) -> float | None:
        before, self._last_periods = self._last_periods, {}
        shares = []
        for directory in directories:
            fields = read_fields(directory / "cpu.stat")  # both versions write these two under these names
            periods, throttled = fields.get("nr_periods"), fields.get("nr_throttled")
            if periods is None or throttled is None:
                continue
            self._last_periods[directory] = (periods, throttled)
            if directory in before and periods > before[directory][0]:
                last_periods, last_throttled = before[directory]
                shares.append(min(1.0, max(0.0, (throttled - last_throttled) / (periods - last_periods))))
            elif directory in before:
                shares.append(0.0)  # an idle group's periods stand still
        return max(shares, default=None)

    def _readings(
        self, cores: int, group: Group | None, quotas: Sequence[tuple[Path, float]]
    ) -> Iterator[tuple[Path, float, float]]:
        """(what was read, CPU seconds used so far, cores allowed) of everything that may hold the process back."""
        tree_allowed: float | None = None if quotas else cores
        for directory, quota in quotas:
            allowed = min(quota, cores)
            used_s = self._group_time_s(group, directory) if group else None
            if used_s is not None:
                yield directory, used_s, allowed
            else:
                # The limited group keeps no account of its time: our own part of it is the best that is known.
                tree_allowed = allowed if tree_allowed is None else min(tree_allowed, allowed)
        if tree_allowed is not None:
            used_s = tree_time_s(self._pid, self._proc_root)
            if used_s is not None:
                yield _TREE, used_s, tree_allowed
            elif not quotas and (host_s := host_time_s(self._proc_root)) is not None:
                yield _HOST, host_s, cores

    def _group_time_s(self, group: Group, directory: Path) -> float | None:
        if group.version == 2:
            used_us = read_fields(directory / "cpu.stat").get("usage_usec")
            return None if used_us is None else used_us / 1e6
        # Version 1 limits time in one tree (cpu) and counts it in another (cpuacct). They are mostly mounted together,
        # but need not be, and a process need not stand in the same place in both.
        accounts = self._cgroups.group("cpuacct")
        if accounts is None:
            return None
        twin = accounts.top / directory.relative_to(group.top)
        if twin not in accounts.lineage():
            return None
        used_ns = read_number(twin / "cpuacct.usage")
        return None if used_ns is None else used_ns / 1e9


def tree_time_s(pid: int | str = "self", proc_root: Path = PROC_ROOT) -> float | None:
    """CPU seconds of the process, its living descendants, and the children that they have already buried.

    A child's time moves to its parent when it is waited for, so the sum does not fall when one ends (only when an
    orphan is adopted by init). Resolution: one clock tick, mostly 10 ms. None when the process itself cannot be read.
    """
    if portable.is_needed(proc_root):
        return portable.tree_time_s(None if pid == "self" else int(pid))
    total, waiting, seen = 0, [str(pid)], set()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        ticks = _ticks(read_text(proc_root / current / "stat"))
        if ticks is None:
            if len(seen) == 1:
                return None
            continue
        total += ticks
        # Needs CONFIG_PROC_CHILDREN; without it a child is counted when it is waited for.
        for children in (proc_root / current / "task").glob("*/children"):
            waiting.extend((read_text(children) or "").split())
    return total / _TICKS_PER_S


def host_time_s(proc_root: Path = PROC_ROOT) -> float | None:
    """CPU seconds that the machine has spent on anything but idling and waiting. None where /proc/stat is not there."""
    for line in (read_text(proc_root / "stat") or "").splitlines():
        name, _, rest = line.partition(" ")
        ticks = rest.split()
        if name == "cpu" and len(ticks) >= 8 and all(each.isdecimal() for each in ticks[:8]):
            user, nice, system, _, _, irq, softirq, steal = (int(each) for each in ticks[:8])
            return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S
    return None


def _ticks(stat: str | None) -> int | None:
    # The command stands in brackets and may itself hold brackets and blanks: fields are counted after the last one.
    fields = (stat or "").rpartition(")")[2].split()
    spent = fields[11:15]
    return sum(map(int, spent)) if len(fields) >= 15 and all(each.isdecimal() for each in spent) else None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory in use against the tightest limit, in bytes. File cache that can be dropped at once is not in use."""

    used_bytes: int
    limit_bytes: int

    @property
    def share(self) -> float:
        """In [0, 1.5]."""
        return min(max(0.0, self.used_bytes / self.limit_bytes), CEILING)


def memory_use(cgroups: Cgroups, proc_root: Path = PROC_ROOT) -> MemoryUse | None:
    """The fullest of the machine and of every limited group on the way up; None where none can be read."""
    uses = []
    machine = memory_fields(proc_root)
    if machine.get("MemTotal") and "MemAvailable" in machine:
        uses.append(MemoryUse(machine["MemTotal"] - machine["MemAvailable"], machine["MemTotal"]))
    group = cgroups.group("memory")
    for directory, limit_bytes in group.memory_limits() if group else ():
        used = read_number(directory / ("memory.current" if group and group.version == 2 else "memory.usage_in_bytes"))
        if used is not None:
            statistics = read_fields(directory / "memory.stat")
            cache = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
            uses.append(MemoryUse(max(0, used - cache), limit_bytes))
    return max(uses, key=lambda use: use.share, default=None)
