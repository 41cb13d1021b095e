from __future__ import annotations

from pathlib import Path

import pytest
from support.machine import Machine, v1, v2

from steelyard.hardware import Cgroups, CpuMeter, memory_use


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Recorded:
    """A meter over a recorded machine, with the seconds in our hand."""

    def __init__(self, machine: Machine) -> None:
        self.clock = Clock()
        self.meter = CpuMeter(proc_root=machine.proc, cgroup_root=machine.cgroup, clock=self.clock)

    def after(self, seconds: float) -> float | None:
        self.clock.now_s += seconds
        return self.meter.sample()


def test_v2_use_is_that_of_the_limited_group(tmp_path: Path) -> None:
    machine = v2(tmp_path)
    machine.group("pod/app", cpu__max="20000 100000", cpu__stat="usage_usec 5000000\nuser_usec 1")
    recorded = Recorded(machine)
    assert recorded.after(0) is None
    machine.group("pod/app", cpu__stat="usage_usec 5100000\nuser_usec 1")
    assert recorded.after(1) == pytest.approx(0.5)
    machine.group("pod/app", cpu__stat="usage_usec 5500000")
    assert recorded.after(2) == pytest.approx(1.0)


def test_v1_use_is_read_in_the_twin_of_the_limited_group(tmp_path: Path) -> None:
    machine = v1(tmp_path)
    machine.group("cpu/pod", cpu__cfs_quota_us=50_000)
    machine.group("cpuacct/pod", cpuacct__usage=0)
    recorded = Recorded(machine)
    recorded.after(0)
    machine.group("cpuacct/pod", cpuacct__usage=400_000_000)
    assert recorded.after(1) == pytest.approx(0.8)


def test_v1_counted_elsewhere_falls_back_to_the_process_tree(tmp_path: Path) -> None:
    machine = v1(tmp_path)
    machine.group("cpu/pod/app", cpu__cfs_quota_us=20_000)
    machine.member("cpuacct", "/")
    machine.group("cpuacct", cpuacct__usage=0)
    recorded = Recorded(machine)
    recorded.after(0)
    machine.group("cpuacct", cpuacct__usage=4_000_000_000)  # the whole machine is busy, and that is not us
    machine.write_stat("self", 10)
    assert recorded.after(1) == pytest.approx(0.5)


def test_of_nested_limits_the_fullest_counts(tmp_path: Path) -> None:
    machine = v2(tmp_path)
    machine.group("pod", cpu__max="100000 100000", cpu__stat="usage_usec 0")
    machine.group("pod/app", cpu__max="50000 100000", cpu__stat="usage_usec 0")
    recorded = Recorded(machine)
    recorded.after(0)
    machine.group("pod", cpu__stat="usage_usec 900000")  # a neighbour takes most of what we share
    machine.group("pod/app", cpu__stat="usage_usec 100000")
    assert recorded.after(1) == pytest.approx(0.9)


def test_a_limit_above_the_cores_cannot_be_used_up(tmp_path: Path) -> None:
    machine = v2(tmp_path, cpus=2)
    machine.group("pod/app", cpu__max="800000 100000")
    recorded = Recorded(machine)
    recorded.after(0)
    machine.group("pod/app", cpu__stat="usage_usec 2000000")
    assert recorded.after(1) == pytest.approx(1.0)


def test_without_a_limit_it_is_the_process_tree_over_the_cores(tmp_path: Path) -> None:
    machine = v2(tmp_path, cpus=4)
    machine.write_stat("self", 100, children=("8",))
    machine.write_stat("8", 50)
    recorded = Recorded(machine)
    recorded.after(0)
    machine.write_stat("self", 200, children=("8",))
    machine.write_stat("8", 150)
    assert recorded.after(1) == pytest.approx(0.5)


def test_a_child_that_ends_and_is_waited_for_takes_nothing_away(tmp_path: Path) -> None:
    machine = v2(tmp_path, cpus=1)
    machine.write_stat("self", 0, children=("8",))
    machine.write_stat("8", 500)
    recorded = Recorded(machine)
    recorded.after(0)
    machine.write_stat("self", 550)  # its own 50 and the child's 500
    assert recorded.after(1) == pytest.approx(0.5)


def test_never_negative_and_never_above_the_ceiling(tmp_path: Path) -> None:
    machine = v2(tmp_path)
    machine.group("pod/app", cpu__max="20000 100000", cpu__stat="usage_usec 1000000")
    recorded = Recorded(machine)
    recorded.after(0)
    machine.group("pod/app", cpu__stat="usage_usec 10")
    assert recorded.after(1) == 0.0
    machine.group("pod/app", cpu__stat="usage_usec 9000000")
    assert recorded.after(1) == 1.5


def test_a_limit_that_appears_is_unknown_first_and_then_followed(tmp_path: Path) -> None:
    machine = v2(tmp_path)
    recorded = Recorded(machine)
    recorded.after(0)
    machine.group("pod/app", cpu__max="20000 100000", cpu__stat="usage_usec 1000000")
    assert recorded.after(1) is None
    machine.group("pod/app", cpu__max="40000 100000", cpu__stat="usage_usec 1200000")
    assert recorded.after(1) == pytest.approx(0.5)


def test_what_cannot_be_read_is_none_and_not_0(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    (machine.proc / "self" / "stat").unlink()
    recorded = Recorded(machine)
    recorded.after(0)
    assert recorded.after(1) is None


def test_memory_is_the_fullest_limit_without_what_can_be_dropped(tmp_path: Path) -> None:
    machine = v2(tmp_path, memory_kb=1000, available_kb=900)
    use = memory_use(Cgroups("self", machine.proc, machine.cgroup), machine.proc)
    assert use is not None
    assert use.share == pytest.approx(0.1)
    machine.group("pod/app", memory__max=1000, memory__current=900, memory__stat="inactive_file 200\nanon 1")
    use = memory_use(Cgroups("self", machine.proc, machine.cgroup), machine.proc)
    assert use is not None
    assert (use.used_bytes, use.limit_bytes, use.share) == (700, 1000, pytest.approx(0.7))


def test_memory_of_v1_counts_the_whole_group(tmp_path: Path) -> None:
    machine = v1(tmp_path)
    machine.group(
        "memory/pod",
        memory__limit_in_bytes=1000,
        memory__usage_in_bytes=950,
        memory__stat="inactive_file 1\ntotal_inactive_file 50",
    )
    use = memory_use(Cgroups("self", machine.proc, machine.cgroup), machine.proc)
    assert use is not None
    assert use.share == pytest.approx(0.9)


def test_memory_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert memory_use(Cgroups("self", tmp_path, tmp_path), tmp_path) is None


@pytest.mark.parametrize("version", [1, 2])
def test_throttling_is_the_share_of_periods_in_which_the_limit_ran_out(tmp_path: Path, version: int) -> None:
    machine = v2(tmp_path) if version == 2 else v1(tmp_path)
    path = "pod/app" if version == 2 else "cpu/pod/app"
    if version == 2:
        machine.group(path, cpu__max="20000 100000")
    else:
        machine.group(path, cpu__cfs_quota_us=20_000)
        machine.group("cpuacct/pod/app", cpuacct__usage=0)

    def stat(periods: int, throttled: int) -> None:
        machine.group(path, cpu__stat=f"usage_usec 0\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 5")

    recorded = Recorded(machine)
    stat(100, 10)
    recorded.after(0)
    assert recorded.meter.throttled is None
    for periods, throttled, expected in ((110, 19, 0.9), (120, 19, 0.0), (120, 19, 0.0), (130, 29, 1.0), (5, 1, 0.0)):
        stat(periods, throttled)
        recorded.after(1)
        assert recorded.meter.throttled == pytest.approx(expected)


def test_without_a_limit_nothing_is_throttled(tmp_path: Path) -> None:
    recorded = Recorded(v2(tmp_path))
    recorded.after(0)
    recorded.after(1)
    assert recorded.meter.throttled is None


def test_the_host_is_the_last_resort(tmp_path: Path) -> None:
    machine = v2(tmp_path, cpus=2)
    (machine.proc / "self/stat").unlink()
    machine.write_proc("stat", "cpu 100 0 50 700 20 10 20 0 0 0\ncpu0 1\ncpu1 1\n")
    recorded = Recorded(machine)
    recorded.after(0)
    machine.write_proc("stat", "cpu 150 0 60 740 20 10 20 20 0 0\ncpu0 1\ncpu1 1\n")
    assert recorded.after(1) == pytest.approx(0.8 / 2)
