from pathlib import Path

import pytest
from support.machine import Machine, v1, v2

from steelyard.hardware import Cgroups


def quotas(machine: Machine) -> list[float]:
    group = Cgroups("self", machine.proc, machine.cgroup).group("cpu")
    return [] if group is None else [quota for _, quota in group.cpu_quotas()]


def limits(machine: Machine) -> list[int]:
    group = Cgroups("self", machine.proc, machine.cgroup).group("memory")
    return [] if group is None else [limit for _, limit in group.memory_limits()]


def test_v1_limits_are_found_in_the_own_group_and_above(tmp_path: Path) -> None:
    machine = v1(tmp_path)
    assert quotas(machine) == []
    assert limits(machine) == []
    machine.group("cpu/pod", cpu__cfs_quota_us=150_000)
    machine.group("cpu/pod/app", cpu__cfs_quota_us=20_000, cpu__cfs_period_us=50_000)
    machine.group("memory/pod", memory__limit_in_bytes=1 << 30)
    assert quotas(machine) == [0.4, 1.5]
    assert limits(machine) == [1 << 30]


def test_v2_limits_are_found_in_the_own_group_and_above(tmp_path: Path) -> None:
    machine = v2(tmp_path)
    assert quotas(machine) == []
    assert limits(machine) == []
    machine.group("pod", cpu__max="50000 100000", memory__max=2 << 30)
    machine.group("pod/app", cpu__max="200000 100000", memory__max=3 << 30)
    assert quotas(machine) == [2.0, 0.5]
    assert limits(machine) == [3 << 30, 2 << 30]


def test_hybrid_takes_each_controller_from_the_tree_that_has_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.mount_v1("cpu,cpuacct")
    machine.member("cpu,cpuacct", "/app")
    machine.group("cpu,cpuacct/app", cpu__cfs_quota_us=30_000, cpu__cfs_period_us=100_000)
    machine.mount_v2(at="/unified")
    machine.member("", "/user")
    machine.group("unified/user", memory__max=4096, cpu__max="90000 100000")
    assert quotas(machine) == [0.3]
    assert limits(machine) == [4096]


def test_an_empty_v2_beside_v1_says_nothing(tmp_path: Path) -> None:
    machine = v1(tmp_path)
    machine.mount_v2(at="/unified")
    machine.member("", "/")
    machine.group("cpu/pod/app", cpu__cfs_quota_us=10_000)
    assert quotas(machine) == [0.1]


@pytest.mark.parametrize("text", ["max 100000", "max", "", "20000", "0 100000", "20000 0", "a b"])
def test_v2_words_that_are_no_quota(tmp_path: Path, text: str) -> None:
    machine = v2(tmp_path)
    machine.group("pod/app", cpu__max=text)
    assert quotas(machine) == []


def test_in_a_container_without_a_namespace_the_mounts_root_is_cut_off(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.mount_v1("cpu", root="/docker/abc")
    machine.member("cpu", "/docker/abc/inner")
    machine.group("cpu", cpu__cfs_quota_us=50_000, cpu__cfs_period_us=100_000)
    machine.group("cpu/inner", cpu__cfs_quota_us=40_000, cpu__cfs_period_us=100_000)
    assert quotas(machine) == [0.4, 0.5]


@pytest.mark.parametrize("path", ["/elsewhere/x", "/docker/abc/gone", "/docker/abc/../../x"])
def test_a_group_that_cannot_be_seen_leaves_the_top(tmp_path: Path, path: str) -> None:
    machine = Machine(tmp_path)
    machine.mount_v2(root="/docker/abc")
    machine.member("", path)
    machine.group("", cpu__max="50000 100000")
    assert quotas(machine) == [0.5]


def test_a_move_is_seen_without_reading_the_mounts_again(tmp_path: Path) -> None:
    machine = v1(tmp_path)
    machine.group("cpu/other", cpu__cfs_quota_us=70_000, cpu__cfs_period_us=100_000)
    cgroups = Cgroups("self", machine.proc, machine.cgroup)
    before = cgroups.group("cpu")
    machine.member("cpu", "/other")
    after = cgroups.group("cpu")
    assert before is not None
    assert after is not None
    assert list(before.cpu_quotas()) == []
    assert [quota for _, quota in after.cpu_quotas()] == [0.7]


def test_without_cgroups_there_is_no_group(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert Cgroups("self", machine.proc, machine.cgroup).group("cpu") is None


def test_a_mount_point_with_a_blank_is_read(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.group("my cpu", cpu__max="50000 100000")
    machine.write_proc("self/mountinfo", "1 1 0:1 / /sys/fs/cgroup/my\\040cpu rw - cgroup2 none rw\n")
    machine.member("", "/")
    assert quotas(machine) == [0.5]
