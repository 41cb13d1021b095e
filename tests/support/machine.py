"""A recorded machine: /proc and cgroup trees in a folder, as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

_MOUNTS = {
    1: "32 31 0:29 {root} /sys/fs/cgroup/{names} rw,relatime - cgroup cgroup rw,{names}",
    2: "41 31 0:38 {root} /sys/fs/cgroup{at} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate",
}


class Machine:
    """Built by methods, read with ``proc_root=machine.proc`` and ``cgroup_root=machine.cgroup``."""

    def __init__(
        self, root: Path, *, cpus: int = 4, memory_kb: int = 16_000_000, available_kb: int = 12_000_000
    ) -> None:
        self.proc = root / "proc"
        self.cgroup = root / "cgroup"
        self._members: list[str] = []
        self._mounts = ["23 1 8:1 / / rw - ext4 /dev/sda1 rw"]
        self.write_proc("cpuinfo", "processor\t: 0\nvendor_id\t: Acme\nmodel name\t: Acme  Fast 9000\n")
        self.write_proc("stat", "cpu  1 2 3 4\n" + "".join(f"cpu{n} 1 2 3 4\n" for n in range(cpus)) + "intr 5\n")
        self.write_proc("meminfo", f"MemTotal: {memory_kb} kB\nMemFree: 5 kB\nMemAvailable: {available_kb} kB\n")
        self.write_proc("self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-127\n")
        self.write_stat("self", 0)

    def write_proc(self, name: str, text: str) -> None:
        path = self.proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def write_stat(self, pid: str, ticks: int, *, children: tuple[str, ...] = ()) -> None:
        fields = ["S", "1", *["0"] * 9, str(ticks), "0", "0", "0", *["0"] * 5]
        self.write_proc(f"{pid}/stat", f"7 (odd ) name) {' '.join(fields)}\n")
        self.write_proc(f"{pid}/task/1/children", " ".join(children))

    def mount_v1(self, names: str, *, root: str = "/") -> None:
        self._mounts.append(_MOUNTS[1].format(names=names, root=root))
        (self.cgroup / names).mkdir(parents=True, exist_ok=True)
        self.write_proc("self/mountinfo", "\n".join(self._mounts) + "\n")

    def mount_v2(self, *, at: str = "", root: str = "/") -> None:
        self._mounts.append(_MOUNTS[2].format(at=at, root=root))
        (self.cgroup / at.lstrip("/")).mkdir(parents=True, exist_ok=True)
        self.write_proc("self/mountinfo", "\n".join(self._mounts) + "\n")

    def member(self, controllers: str, path: str) -> None:
        """This process stands at *path* of the tree of *controllers* ("" for version 2)."""
        number = 0 if not controllers else len(self._members) + 1
        self._members = [line for line in self._members if line.split(":")[1] != controllers]
        self._members.append(f"{number}:{controllers}:{path}")
        self.write_proc("self/cgroup", "\n".join(self._members) + "\n")

    def group(self, path: str, **files: object) -> None:
        """Files of a group; double underscores in their names are dots (``cpu__max``)."""
        directory = self.cgroup / path
        directory.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (directory / name.replace("__", ".")).write_text(f"{value}\n")


def v1(root: Path, **settings: int) -> Machine:
    """cpu, cpuacct and memory mounted apart, the process in /pod/app of each; no limit anywhere."""
    machine = Machine(root, **settings)
    for name in ("cpu", "cpuacct", "memory"):
        machine.mount_v1(name)
        machine.member(name, "/pod/app")
        machine.group(f"{name}/pod/app")
    for path in ("cpu/pod", "cpu/pod/app"):
        machine.group(path, cpu__cfs_quota_us=-1, cpu__cfs_period_us=100_000)
    for path in ("memory", "memory/pod", "memory/pod/app"):
        machine.group(path, memory__limit_in_bytes=9223372036854771712)
    return machine


def v2(root: Path, **settings: int) -> Machine:
    """One tree, the process in /pod/app; no limit anywhere."""
    machine = Machine(root, **settings)
    machine.mount_v2()
    machine.member("", "/pod/app")
    for path in ("pod", "pod/app"):
        machine.group(path, cpu__max="max 100000", memory__max="max", cpu__stat="usage_usec 0\nnr_periods 0")
    return machine
