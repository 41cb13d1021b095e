"""On this kernel: a process that spins in a 20 % cgroup is full, while its host is not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from steelyard.hardware import Cgroups, CpuMeter, Sampler

CGROUP = Path("/sys/fs/cgroup")
QUOTA = 0.2


@dataclass
class Limited:
    """A way to put a process into a group with a CPU limit of QUOTA cores."""

    processes: list[Path]
    quota: Path
    is_v1: bool

    def take(self, pid: int) -> None:
        for file in self.processes:
            file.write_text(str(pid))

    def tighten(self, cores: float) -> None:
        """Another limit than QUOTA."""
        quota_us = int(20000 * cores)
        self.quota.write_text(f"{quota_us}" if self.is_v1 else f"{quota_us} 20000")


@pytest.fixture
def limited() -> Iterator[Limited]:
    if os.geteuid() != 0:
        pytest.skip("making a cgroup needs root")
    if os.statvfs(CGROUP).f_flag & os.ST_RDONLY:
        pytest.skip("making a cgroup needs a writable cgroup mount; this container has a read-only one")
    name = f"steelyard-test-{os.getpid()}"
    is_v1 = (CGROUP / "cpu" / "cpu.cfs_quota_us").exists()
    groups = [CGROUP / "cpu" / name, CGROUP / "cpuacct" / name] if is_v1 else [CGROUP / name]
    made: list[Path] = []
    try:
        for group in groups:
            group.mkdir()
            made.append(group)
        if is_v1:
            (groups[0] / "cpu.cfs_period_us").write_text("20000")
            (groups[0] / "cpu.cfs_quota_us").write_text(str(int(20000 * QUOTA)))
        else:
            (CGROUP / "cgroup.subtree_control").write_text("+cpu")
            (groups[0] / "cpu.max").write_text(f"{int(20000 * QUOTA)} 20000")
        quota = groups[0] / ("cpu.cfs_quota_us" if is_v1 else "cpu.max")
        yield Limited([group / "cgroup.procs" for group in groups], quota, is_v1)
    finally:
        for group in made:
            _remove(group)


def _remove(group: Path) -> None:
    for _ in range(200):  # the kernel lets go of a killed process a moment later
        try:
            group.rmdir()
            return
        except OSError:
            time.sleep(0.01)
    group.rmdir()


@pytest.fixture
def spinner() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process
    process.kill()
    process.wait()


def test_a_spinning_process_in_a_fifth_of_a_core_is_full(limited: Limited, spinner: subprocess.Popen[bytes]) -> None:
    limited.take(spinner.pid)
    group = Cgroups(spinner.pid).group("cpu")
    assert group is not None
    assert [quota for _, quota in group.cpu_quotas()] == [pytest.approx(QUOTA)]
    time.sleep(0.1)
    meter = CpuMeter(spinner.pid)
    assert meter.sample() is None
    started_at, tree_before = time.monotonic(), _cpu_s(spinner.pid)
    time.sleep(1.0)
    share = meter.sample()
    process_cores = (_cpu_s(spinner.pid) - tree_before) / (time.monotonic() - started_at)
    assert share is not None
    assert share == pytest.approx(1.0, abs=0.15)
    # The bar is 0.05; one second in a crowd may miss it, one of several does not.
    nearest = best_of(4, lambda: time.sleep(1.0) or meter.sample(), 1.0)  # type: ignore[func-returns-value]
    assert nearest == pytest.approx(1.0, abs=0.05)
    # What the host sees of it is a fifth of one core: that is what a host percentage would have reported.
    assert process_cores < 0.3


def best_of(tries: int, measure: Callable[[], float | None], wanted: float) -> float:
    """The value nearest to *wanted*: on a crowded machine a window may lack CPU time that the quota would allow."""
    found = [value for value in (measure() for _ in range(tries)) if value is not None]
    return min(found, key=lambda value: abs(value - wanted), default=-1.0)


def test_two_processes_of_one_container_both_say_that_it_is_full(limited: Limited) -> None:
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        for process in spinners:
            limited.take(process.pid)
        time.sleep(0.1)
        samplers = [Sampler(pid=process.pid) for process in spinners]

        def both() -> float:
            time.sleep(1.0)
            return min((sampler.sample().get("cpu", -1.0) for sampler in samplers), key=lambda each: abs(each - 1.0))

        both()
        assert best_of(4, both, 1.0) == pytest.approx(1.0, abs=0.05)
        shares = [sampler.utilization["cpu"] for sampler in samplers]
        assert shares[0] == pytest.approx(shares[1], abs=0.05), "they are measured by the same account"
    finally:
        for process in spinners:
            process.kill()
            process.wait()


def test_throttling_is_seen_within_two_seconds(limited: Limited, spinner: subprocess.Popen[bytes]) -> None:
    limited.tighten(0.05)  # so little that it is used up on a crowded machine too
    sampler = Sampler(pid=spinner.pid, interval_s=1.0)
    sampler.start()
    try:
        time.sleep(0.2)
        limited.take(spinner.pid)
        moved_at = time.monotonic()
        while sampler.utilization.get("throttled", 0.0) < 0.9 and time.monotonic() < moved_at + 10.0:
            time.sleep(0.05)
        assert sampler.utilization["throttled"] >= 0.9
        samples = 1 + (time.monotonic() - moved_at) // sampler.interval_s
        assert samples <= 3, "it takes the sample that finds the limit, and the one after it"
    finally:
        sampler.stop()


def test_the_same_process_outside_is_measured_over_all_cores(spinner: subprocess.Popen[bytes]) -> None:
    if any(True for group in [Cgroups(spinner.pid).group("cpu")] if group for _ in group.cpu_quotas()):
        pytest.skip("the tests themselves run under a CPU limit")
    meter = CpuMeter(spinner.pid)
    meter.sample()
    time.sleep(0.5)
    share = meter.sample()
    assert share is not None
    # One thread can fill one core at most; neighbours on a busy machine may take part of that.
    assert 0.0 < share <= 1.0 / len(os.sched_getaffinity(0)) + 0.1


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
