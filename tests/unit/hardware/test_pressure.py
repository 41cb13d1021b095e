"""PSI from recorded files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machine import Machine, v1, v2

from steelyard.hardware import Cgroups, PressureMeter


def psi(total_us: int) -> str:
    return f"some avg10=99.00 avg60=0.00 avg300=0.00 total={total_us}\nfull avg10=0.00 avg60=0.00 total=7\n"


class Recorded:
    def __init__(self, machine: Machine) -> None:
        self.now_s = 100.0
        cgroups = Cgroups("self", machine.proc, machine.cgroup)
        self.meter = PressureMeter(cgroups, proc_root=machine.proc, clock=lambda: self.now_s)

    def after(self, seconds: float) -> dict[str, float]:
        self.now_s += seconds
        return dict(self.meter.sample())


def test_the_groups_own_in_version_2(tmp_path: Path) -> None:
    machine = v2(tmp_path)
    recorded = Recorded(machine)
    machine.write_proc("pressure/cpu", psi(999_999_999))
    machine.group("pod/app", cpu__pressure=psi(1_000_000), memory__pressure=psi(0))
    assert recorded.after(1) == {}
    machine.group("pod/app", cpu__pressure=psi(1_500_000), memory__pressure=psi(0))
    assert recorded.after(2) == {"psi_cpu": pytest.approx(0.25), "psi_memory": 0.0}


def test_the_machines_in_version_1(tmp_path: Path) -> None:
    machine = v1(tmp_path)
    recorded = Recorded(machine)
    machine.write_proc("pressure/cpu", psi(0))
    recorded.after(1)
    machine.write_proc("pressure/cpu", psi(800_000))
    assert recorded.after(1) == {"psi_cpu": pytest.approx(0.8)}


@pytest.mark.parametrize("text", ["", "some avg10=0.00", "some avg10=0.00 total=many", "full total=5", "nonsense"])
def test_a_kernel_without_it_reports_nothing(tmp_path: Path, text: str) -> None:
    machine = v2(tmp_path)
    recorded = Recorded(machine)
    machine.write_proc("pressure/cpu", text)
    assert recorded.after(1) == {}
    assert recorded.after(1) == {}


def test_a_process_that_is_moved_is_measured_anew(tmp_path: Path) -> None:
    machine = v2(tmp_path)
    recorded = Recorded(machine)
    machine.group("pod/app", cpu__pressure=psi(9_000_000))
    recorded.after(1)
    machine.group("pod/other", cpu__pressure=psi(100))
    machine.member("", "/pod/other")
    assert recorded.after(1) == {}
