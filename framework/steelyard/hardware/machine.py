"""What /proc says of the machine: CPU model, CPUs this process may use, memory.

psutil's counts are of the whole host, also inside a container and under an affinity mask; these are of the process.
"""

from __future__ import annotations

import platform
from pathlib import Path

from . import portable
from .cgroup import PROC_ROOT, read_text

# Arm's kernels print numbers in the place of a name. These are the server cores one meets in clouds; the numbers are
# those of arch/arm64/include/asm/cputype.h. Others are shown as the numbers they are.
_ARM_PARTS = {
    ("0x41", "0xd08"): "Arm Cortex-A72",
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
}


# A number past any kernel's CONFIG_NR_CPUS is a mistake, and a set up to it would fill the memory.
MOST_CPUS = 65_536


def cpu_model(proc_root: Path = PROC_ROOT) -> str:
    """The model's name as the kernel gives it; the architecture ("aarch64") where it gives none."""
    fields = _cpuinfo(proc_root)
    for name in ("model name", "cpu model", "cpu"):
        if fields.get(name):
            return " ".join(fields[name].split())
    implementer, part = fields.get("CPU implementer", ""), fields.get("CPU part", "")
    if part:
        return _ARM_PARTS.get((implementer, part), f"Arm implementer {implementer} part {part}")
    return platform.machine()


def usable_cores(pid: int | str = "self", proc_root: Path = PROC_ROOT) -> int | None:
    """CPUs that the process may run on: its affinity mask without CPUs that are off. None where /proc cannot say.

    The mask of an unconfined process names every CPU that the kernel could ever have, so it is cut with those
    that are on.
    """
    if portable.is_needed(proc_root):
        return portable.usable_cores()
    allowed = _allowed_cpus(read_text(proc_root / str(pid) / "status") or "")
    online = _online_cpus(read_text(proc_root / "stat") or "")
    usable = allowed & online if allowed and online else allowed or online
    return len(usable) or None


def physical_cores(proc_root: Path = PROC_ROOT) -> int | None:
    """Cores of the machine, hyper-threads not counted. None where /proc/cpuinfo does not tell packages and cores (Arm,
    most virtual machines' older kernels)."""
    if portable.is_needed(proc_root):
        return portable.physical_cores()
    cores, package = set(), ""
    for line in (read_text(proc_root / "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "physical id":
            package = value.strip()
        elif name.strip() == "core id":
            cores.add((package, value.strip()))
    return len(cores) or None


def memory_fields(proc_root: Path = PROC_ROOT) -> dict[str, int]:
    """/proc/meminfo, in bytes."""
    if portable.is_needed(proc_root):
        return portable.memory_fields()
    fields = {}
    for line in (read_text(proc_root / "meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if number.isdecimal():
            fields[name] = int(number) * (1024 if unit == "kB" else 1)
    return fields


def _cpuinfo(proc_root: Path) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in (read_text(proc_root / "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    return fields


def _allowed_cpus(status: str) -> set[int]:
    for line in status.splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return _parse_cpu_list(line.partition(":")[2])
    return set()


def _parse_cpu_list(text: str) -> set[int]:
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        last = last or first
        if first.isdecimal() and last.isdecimal():
            cpus.update(range(int(first), min(int(last), MOST_CPUS) + 1))
    return cpus


def _online_cpus(stat: str) -> set[int]:
    names = (line.partition(" ")[0] for line in stat.splitlines())
    return {int(name[3:]) for name in names if name.startswith("cpu") and name[3:].isdecimal()}
