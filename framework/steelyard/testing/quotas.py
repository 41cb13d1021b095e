"""CPU quotas by cgroup, for processes of ours, and nothing of them left behind.

A run makes one group named after its own process, and one group per node below it. Groups outlive whoever made them,
so a run also removes those of earlier runs whose process is gone.

Version 1 limits CPU time in one tree (cpu) and counts it in another (cpuacct), and a node must stand in both at the
same place, or its own load report would show the whole machine. Version 2 has one tree, in which the cpu controller
must be handed down level by level; that is only possible from a level that holds no processes, so in most containers
it is not, and the caller falls back to a duty cycle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from steelyard.hardware import Cgroups, Group

QUOTA_PREFIX = "steelyard-demo-"
# Short, so that a node with a small share is slow and not now and then asleep: 8 % of the default period of 100 ms
# would be 8 ms of work and 92 ms of nothing. The kernel takes 1 ms as the smallest quota.
PERIOD_US = 20_000
# The programs of ours that run in such groups; only these are ended when their run has died.
_NODE_MARKS = (b"steelyard.cli.demo.node", b"bench_fleet.py", b"while True: pass")


class QuotasRefused(Exception):
    """This process may not set CPU quotas; the message says why."""


class Quotas:
    """``with Quotas.open() as quotas: quotas.apply("big-1", pid, 0.2)``."""

    def __init__(self, version: int, folders: tuple[Path, ...]) -> None:
        self.version = version
        self._folders = folders

    @property
    def how(self) -> str:
        return f"cgroup v{self.version} quota, period {PERIOD_US // 1000} ms"

    @classmethod
    def open(cls, cgroups: Cgroups | None = None, run: str | None = None) -> Quotas:
        """Makes this run's group, and tries it. Raises QuotasRefused."""
        cgroups = cgroups or Cgroups()
        name = run or run_name()
        cpu = cgroups.group("cpu")
        if cpu is None:
            raise QuotasRefused("no cgroup tree with a cpu controller is mounted")
        parents = _parents_v1(cpu, cgroups.group("cpuacct")) if cpu.version == 1 else (cpu.top,)
        for parent in parents:
            sweep(parent)
        quotas = cls(cpu.version, tuple(parent / name for parent in parents))
        try:
            quotas._make(parents[0])
        except OSError as error:
            quotas.close()
            raise QuotasRefused(f"{error.strerror or error}: {error.filename or parents[0]}") from error
        return quotas

    def apply(self, name: str, pid: int, cores: float) -> None:
        """Puts *pid* into a group of its own that may use *cores* CPUs. Raises OSError."""
        group = self._limited(name, max(1000, int(cores * PERIOD_US)))
        for folder in (group, *(folder / name for folder in self._folders[1:])):
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.procs").write_text(f"{pid}\n")

    def lift(self) -> None:
        """Takes the limits away, so that the nodes can end quickly."""
        for group in _children(self._folders[0]):
            with contextlib.suppress(OSError):
                _write_quota(group, self.version, None)

    def close(self) -> None:
        """Removes the groups; their processes must have ended. Waits up to a second for the kernel to notice."""
        for folder in self._folders:
            _remove(folder, wait_s=1.0)

    def __enter__(self) -> Quotas:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self, parent: Path) -> None:
        if self.version == 2:
            _hand_down(parent)
        for folder in self._folders:
            folder.mkdir(exist_ok=True)
        if self.version == 2:
            _hand_down(self._folders[0])
        self._limited("trial", PERIOD_US // 10).rmdir()

    def _limited(self, name: str, quota_us: int) -> Path:
        group = self._folders[0] / name
        group.mkdir(exist_ok=True)
        _write_quota(group, self.version, quota_us)
        return group


def run_name() -> str:
    """Names this process for good: a pid comes back one day, together with its start time it does not."""
    return f"{QUOTA_PREFIX}{os.getpid()}-{started_ticks(os.getpid())}"


def started_ticks(pid: int) -> int | None:
    """When the process was started, in the kernel's ticks since boot; None when there is none (or no /proc)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def is_of_dead_run(name: str) -> bool:
    """Whether *name* is a run's whose process has gone."""
    if not name.startswith(QUOTA_PREFIX):
        return False
    pid, _, started = name[len(QUOTA_PREFIX) :].partition("-")
    if not pid.isdigit() or not started.isdigit():
        return False
    return started_ticks(int(pid)) != int(started)


def sweep(parent: Path) -> None:
    """Removes what dead runs left below *parent*; a node that still lives there is ended first."""
    for folder in _children(parent):
        if not is_of_dead_run(folder.name):
            continue
        for group in _children(folder):
            for pid in _members(group):
                _end_orphan(pid)
        _remove(folder, wait_s=0.5)


def _parents_v1(cpu: Group, cpuacct: Group | None) -> tuple[Path, ...]:
    if cpuacct is None or cpuacct.version != 1:
        return (cpu.path,)
    twin = cpuacct.top / cpu.path.relative_to(cpu.top)
    same = twin.resolve() == cpu.path.resolve()
    return (cpu.path,) if same or not twin.is_dir() else (cpu.path, twin)


def _write_quota(group: Path, version: int, quota_us: int | None) -> None:
    if version == 2:
        (group / "cpu.max").write_text(f"{quota_us or 'max'} {PERIOD_US}\n")
        return
    if quota_us is not None:
        (group / "cpu.cfs_period_us").write_text(f"{PERIOD_US}\n")
    (group / "cpu.cfs_quota_us").write_text(f"{quota_us or -1}\n")


def _hand_down(group: Path) -> None:
    control = group / "cgroup.subtree_control"
    if "cpu" not in control.read_text().split():
        control.write_text("+cpu\n")


def _children(folder: Path) -> Iterator[Path]:
    try:
        yield from [child for child in folder.iterdir() if child.is_dir()]
    except OSError:
        return


def _members(group: Path) -> list[int]:
    try:
        return [int(word) for word in (group / "cgroup.procs").read_text().split()]
    except (OSError, ValueError):
        return []


def _end_orphan(pid: int) -> None:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if any(mark in command for mark in _NODE_MARKS):
            os.kill(pid, signal.SIGKILL)


def _remove(folder: Path, wait_s: float) -> None:
    give_up_at = time.monotonic() + wait_s
    while folder.is_dir():
        for group in (*_children(folder), folder):
            with contextlib.suppress(OSError):
                group.rmdir()
        if not folder.is_dir() or time.monotonic() > give_up_at:
            return
        time.sleep(0.02)
