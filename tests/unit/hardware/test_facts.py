"""What else is known of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machine import v2

from steelyard.errors import ConfigError
from steelyard.hardware import FACTS, detect_facts, split_overrides
from steelyard.hardware.facts import container, host_identity
from steelyard.hardware.machine import physical_cores

_SMT = "".join(
    f"processor\t: {cpu}\nphysical id\t: {cpu // 4}\ncore id\t\t: {cpu % 2}\n\n" for cpu in range(8)
)  # two packages of two cores with two threads each


def test_on_a_recorded_machine(tmp_path: Path) -> None:
    machine = v2(tmp_path)
    machine.write_proc("cpuinfo", _SMT)
    machine.write_proc("sys/kernel/random/boot_id", "5d6ad1b0\n")
    for node in ("node0", "node1", "possible"):
        (tmp_path / "sys/devices/system/node" / node).mkdir(parents=True)
    (tmp_path / "rack").write_text("r7\n")
    facts = detect_facts(
        {"numa": "1", "host": ""},
        proc_root=machine.proc,
        sys_root=tmp_path / "sys",
        root=tmp_path,
        environ={},
        rack_file=tmp_path / "rack",
    )
    assert facts.pop("hw.arch")
    assert facts == {"hw.physical_cores": "4", "hw.numa": "1", "hw.container": "bare", "hw.rack": "r7"}


def test_here() -> None:
    facts = detect_facts()
    assert set(facts) <= {f"hw.{name}" for name in FACTS}
    assert len(facts["hw.host"]) == 12
    assert facts == detect_facts(), "a machine is the same twice"


def test_two_machines_have_two_identities_and_nobody_learns_the_boot_id(tmp_path: Path) -> None:
    found = set()
    for name in ("one", "two"):
        path = tmp_path / name / "sys/kernel/random"
        path.mkdir(parents=True)
        (path / "boot_id").write_text(f"{name}-boot-id\n")
        found.add(host_identity(tmp_path / name))
    assert len(found) == 2
    assert not any("boot" in each for each in found)


@pytest.mark.parametrize(
    ("groups", "environ", "mark", "name"),
    [
        ("0::/", {}, "", "bare"),
        ("0::/user.slice/user-0.slice/session-4.scope", {}, "", "bare"),
        ("0::/", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "", "kubernetes"),
        ("0::/kubepods.slice/kubepods-burstable.slice/x", {}, "", "kubernetes"),
        ("4:cpu:/docker/3f", {}, "", "docker"),
        ("0::/system.slice/docker-3f.scope", {}, "", "docker"),
        ("0::/machine.slice/libpod-3f.scope", {}, "", "podman"),
        ("0::/lxc.payload.web", {}, "", "lxc"),
        ("0::/", {}, ".dockerenv", "docker"),
        ("0::/", {}, "run/.containerenv", "podman"),
        ("0::/", {"container": "systemd-nspawn"}, "", "systemd-nspawn"),
        ("0::/", {"container": "no good; name"}, "", "bare"),
    ],
)
def test_containers_by_their_marks(tmp_path: Path, groups: str, environ: dict[str, str], mark: str, name: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{groups}\n")
    if mark:
        (tmp_path / mark).parent.mkdir(exist_ok=True)
        (tmp_path / mark).touch()
    assert container(tmp_path / "proc", tmp_path, environ) == name


def test_cores_that_are_not_told(tmp_path: Path) -> None:
    assert physical_cores(v2(tmp_path).proc) is None


def test_overrides_are_parted() -> None:
    fields, facts = split_overrides({"cores": "4", "hw.numa": "2", "driver": "x", "colour": "red"})
    assert fields == {"cores": "4", "colour": "red"}
    assert facts == {"numa": "2", "driver": "x"}


def test_overrides_of_facts(tmp_path: Path) -> None:
    def tags(**given: str) -> dict[str, str]:
        machine = v2(tmp_path)
        return detect_facts(
            given, proc_root=machine.proc, sys_root=tmp_path, root=tmp_path, environ={}, rack_file=tmp_path / "none"
        )

    found = tags(numa=" 2 ", rack="r1", arch="none", container="")
    assert (found["hw.numa"], found["hw.rack"]) == ("2", "r1")
    assert not {"hw.arch", "hw.container"} & set(found), "taken away"
    for name, value in (("numa", "two"), ("physical_cores", "0"), ("accelerator_memory", "-1"), ("numa", "1.5")):
        with pytest.raises(ConfigError, match=rf"hardware {name} must be a whole number above 0 .*not '{value}'"):
            tags(**{name: value})
