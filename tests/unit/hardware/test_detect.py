import os
import random
from pathlib import Path

import pytest
from support.machine import Machine, v1, v2

from steelyard.errors import ConfigError
from steelyard.hardware import Cgroups, CpuMeter, detect, detect_facts, detect_zone, memory_use
from steelyard_registry.node import Hardware


def found(machine: Machine, overrides: dict[str, str] | None = None) -> Hardware:
    return detect(overrides, proc_root=machine.proc, cgroup_root=machine.cgroup, nvml=lambda: None, environ={})


def test_a_machine_without_limits(tmp_path: Path) -> None:
    assert found(v1(tmp_path)) == Hardware(
        kind="cpu", model="Acme Fast 9000", cores=4, quota=None, memory_bytes=16_000_000 * 1024
    )


def test_the_tightest_limit_up_the_tree_counts(tmp_path: Path) -> None:
    machine = v2(tmp_path)
    machine.group("pod", cpu__max="50000 100000", memory__max=1 << 30)
    machine.group("pod/app", cpu__max="200000 100000", memory__max=2 << 30)
    hardware = found(machine)
    assert hardware.quota == 0.5
    assert hardware.memory_bytes == 1 << 30


def test_a_memory_limit_above_the_machine_is_none(tmp_path: Path) -> None:
    machine = v1(tmp_path, memory_kb=1000)
    machine.group("memory/pod", memory__limit_in_bytes=1 << 40)
    assert found(machine).memory_bytes == 1000 * 1024


def test_cores_are_those_of_the_mask_that_are_on(tmp_path: Path) -> None:
    machine = v1(tmp_path, cpus=4)
    machine.write_proc("self/status", "Cpus_allowed_list:\t1,3-5\n")
    assert found(machine).cores == 2


def test_this_machine_agrees_with_the_scheduler() -> None:
    hardware = detect(nvml=lambda: None)
    assert hardware.cores == len(os.sched_getaffinity(0))
    assert hardware.model
    assert hardware.memory_bytes is not None
    assert 0 < hardware.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("CPU implementer : 0x41\nCPU part\t: 0xd0c\n", "Arm Neoverse-N1"),
        ("CPU implementer : 0x99\nCPU part\t: 0x001\n", "Arm implementer 0x99 part 0x001"),
        ("processor : 0\ncpu\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("", os.uname().machine),
    ],
)
def test_models_without_a_model_name(tmp_path: Path, cpuinfo: str, model: str) -> None:
    machine = v1(tmp_path)
    machine.write_proc("cpuinfo", cpuinfo)
    assert found(machine).model == model


def test_an_unreadable_machine_is_unknown_and_no_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    hardware = detect(proc_root=empty, cgroup_root=empty, nvml=lambda: None, environ={})
    assert (hardware.cores, hardware.quota, hardware.memory_bytes) == (None, None, None)


WORDS = [
    "",
    "max",
    "-1",
    "max 100000",
    "100000 0",
    "\x00\xff",
    "\u00b2",
    "9" * 26,
    "nr_periods x\nusage_usec 1e9",
    "Cpus_allowed_list:\t0-x,\u00b2,3-1,0-99999999999",
    "cpu  a b c",
    "cpu0 1\ncpu\u00b2 2",
    "MemTotal: 0 kB\nMemAvailable: 5 kB",
    "MemTotal: \u00b2 kB",
    "1 (a) b) S " + "x " * 20,
]


@pytest.mark.parametrize("seed", range(80))
def test_no_content_of_a_kernel_file_keeps_a_provider_from_starting(tmp_path: Path, seed: int) -> None:
    """Detection runs when a provider is made: what it cannot read is unknown."""
    chance = random.Random(seed)
    machine = chance.choice((v1, v2))(tmp_path)
    below = [path for path in (*machine.proc.rglob("*"), *machine.cgroup.rglob("*")) if path.is_file()]
    for name in ("cpu.max", "cpu.stat", "cpu.cfs_quota_us", "memory.max", "memory.limit_in_bytes", "memory.current"):
        below += [directory / name for directory in machine.cgroup.rglob("*") if directory.is_dir()]
    for path in below:
        if path.name not in ("mountinfo", "cgroup") or chance.random() < 0.1:
            path.write_text("\n".join(chance.choice(WORDS) for _ in range(chance.randint(1, 3))))
    found(machine)
    detect_facts(proc_root=machine.proc, sys_root=tmp_path, root=tmp_path, environ={}, rack_file=tmp_path / "none")
    meter = CpuMeter(proc_root=machine.proc, cgroup_root=machine.cgroup)
    for share in (meter.sample(), meter.sample()):
        assert share is None or 0.0 <= share <= 1.5
    memory_use(Cgroups("self", machine.proc, machine.cgroup), machine.proc)


def test_overrides_one_by_one(tmp_path: Path) -> None:
    machine = v1(tmp_path)
    hardware = found(machine, {"hw.cores": "2.5", "memory": "1024", "accelerators": "Emulated A, Emulated A"})
    assert hardware == Hardware(
        kind="gpu",
        model="Acme Fast 9000",
        cores=2.5,
        memory_bytes=1024,
        accelerators=("Emulated A", "Emulated A"),
    )
    assert found(machine, {"kind": "gpu"}).kind == "gpu"
    assert found(machine, {"kind": "cpu", "accelerators": "A"}).kind == "cpu"
    assert found(machine, {"memory_bytes": "max", "accelerators": "none"}).memory_bytes is None


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"kind": "tpu"}, "kind must be 'cpu' or 'gpu', not 'tpu'"),
        ({"cores": "0"}, "cores must be a number above 0 .*not '0'"),
        ({"quota": "nan"}, "quota must be a number above 0 .*not 'nan'"),
        ({"quota": "inf"}, "quota must be a number above 0 .*not 'inf'"),
        ({"memory_bytes": "1.5"}, "memory_bytes must be a whole number above 0 .*not '1.5'"),
        ({"cores": 4}, "hardware cores is given as text, as on the command line, not as 4"),
        ({"accelerators": ["A100"]}, r"hardware accelerators is given as text, .* not as \['A100'\]"),
        (
            {"colour": "red"},
            "no field 'colour'; there are: accelerator_memory, accelerators, arch, container, cores",
        ),
    ],
)
def test_overrides_that_cannot_be(tmp_path: Path, overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        found(v1(tmp_path), overrides)


def test_zone(tmp_path: Path) -> None:
    file = tmp_path / "zone"
    assert detect_zone({}, file) == ""
    file.write_text("b \nrest\n")
    assert detect_zone({}, file) == "b"
    assert detect_zone({"STEELYARD_ZONE": " a "}, file) == "a"
    file.write_text("")
    assert detect_zone({"STEELYARD_ZONE": ""}, file) == ""
