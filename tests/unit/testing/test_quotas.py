from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.machine import Machine

from steelyard.hardware import Cgroups
from steelyard.testing.quotas import QUOTA_PREFIX, Quotas, QuotasRefused, is_of_dead_run, run_name, started_ticks, sweep


def cgroups_of(machine: Machine) -> Cgroups:
    return Cgroups("self", machine.proc, machine.cgroup)


@pytest.fixture
def v1(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.mount_v1("cpu")
    machine.mount_v1("cpuacct")
    machine.write_proc("self/cgroup", "2:cpuacct:/\n1:cpu:/\n0::/\n")
    return machine


@pytest.fixture
def v2(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.mount_v2()
    machine.write_proc("self/cgroup", "0::/\n")
    (machine.cgroup / "cgroup.subtree_control").write_text("cpu memory\n")
    # The kernel makes the control files of a new group; a plain folder has them only if they are put there.
    (machine.cgroup / "steelyard-demo-t").mkdir()
    (machine.cgroup / "steelyard-demo-t" / "cgroup.subtree_control").write_text("\n")
    return machine


def without_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain folder with files in it cannot be removed like a group, so the trial group stays away."""
    monkeypatch.setattr(Path, "rmdir", lambda self: None)


def test_v1_limits_in_one_tree_and_counts_in_the_other(v1: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    without_trial(monkeypatch)
    quotas = Quotas.open(cgroups_of(v1), "steelyard-demo-t")
    quotas.apply("big-1", 4711, 0.2)
    group = v1.cgroup / "cpu" / "steelyard-demo-t" / "big-1"
    assert (group / "cpu.cfs_period_us").read_text() == "20000\n"
    assert (group / "cpu.cfs_quota_us").read_text() == "4000\n"
    assert (group / "cgroup.procs").read_text() == "4711\n"
    twin = v1.cgroup / "cpuacct" / "steelyard-demo-t" / "big-1"
    assert (twin / "cgroup.procs").read_text() == "4711\n"
    quotas.lift()
    assert (group / "cpu.cfs_quota_us").read_text() == "-1\n"


def test_v2_hands_the_controller_down(v2: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    without_trial(monkeypatch)
    quotas = Quotas.open(cgroups_of(v2), "steelyard-demo-t")
    quotas.apply("tiny-1", 4711, 0.08)
    run = v2.cgroup / "steelyard-demo-t"
    assert (run / "cgroup.subtree_control").read_text() == "+cpu\n"
    assert (run / "tiny-1" / "cpu.max").read_text() == "1600 20000\n"
    assert (run / "tiny-1" / "cgroup.procs").read_text() == "4711\n"
    quotas.lift()
    assert (run / "tiny-1" / "cpu.max").read_text() == "max 20000\n"
    assert "cgroup v2" in quotas.how


def test_the_kernel_takes_no_quota_below_a_millisecond(v1: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    without_trial(monkeypatch)
    quotas = Quotas.open(cgroups_of(v1), "steelyard-demo-t")
    quotas.apply("nearly-none", 4711, 0.001)
    group = v1.cgroup / "cpu" / "steelyard-demo-t" / "nearly-none"
    assert (group / "cpu.cfs_quota_us").read_text() == "1000\n"


def test_no_cgroups_is_said_and_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(QuotasRefused, match="no cgroup tree"):
        Quotas.open(cgroups_of(Machine(tmp_path)), "steelyard-demo-t")


def test_a_level_that_cannot_hand_down_is_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.mount_v2()
    machine.write_proc("self/cgroup", "0::/\n")
    with pytest.raises(QuotasRefused, match="subtree_control"):
        Quotas.open(cgroups_of(machine), "steelyard-demo-t")
    assert not list(machine.cgroup.glob(f"{QUOTA_PREFIX}*"))


def test_this_run_is_alive_and_one_of_a_dead_process_is_not() -> None:
    assert not is_of_dead_run(run_name())
    child = subprocess.Popen([sys.executable, "-c", ""])
    ticks = started_ticks(child.pid)
    child.wait()
    assert is_of_dead_run(f"{QUOTA_PREFIX}{child.pid}-{ticks}")
    # The same number, given to another process later, is another process.
    assert is_of_dead_run(f"{QUOTA_PREFIX}{os.getpid()}-1")


@pytest.mark.parametrize(
    "name", ["other", QUOTA_PREFIX, f"{QUOTA_PREFIX}x-1", f"{QUOTA_PREFIX}1", f"{QUOTA_PREFIX}12-None"]
)
def test_what_is_not_a_run_is_left_alone(name: str) -> None:
    assert not is_of_dead_run(name)


def test_the_groups_of_dead_runs_are_swept_and_others_stay(tmp_path: Path) -> None:
    dead, alive, foreign = tmp_path / f"{QUOTA_PREFIX}{os.getpid()}-1", tmp_path / run_name(), tmp_path / "system.slice"
    for folder in (dead, alive, foreign):
        (folder / "big-1").mkdir(parents=True)
    sweep(tmp_path)
    assert not dead.exists()
    assert (alive / "big-1").is_dir()
    assert (foreign / "big-1").is_dir()


def test_a_real_group_limits_a_real_process_and_goes_again() -> None:
    try:
        quotas = Quotas.open(run=f"{run_name()}-test")
    except QuotasRefused as refused:
        pytest.skip(f"this process may not set quotas: {refused}")
    with quotas:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        try:
            quotas.apply("big-1", child.pid, 0.2)
            group = Cgroups(child.pid).group("cpu")
            assert group is not None
            assert dict(group.cpu_quotas())[group.path] == pytest.approx(0.2)
        finally:
            child.kill()
            child.wait()
    assert not group.path.exists()
    assert not group.path.parent.exists()
