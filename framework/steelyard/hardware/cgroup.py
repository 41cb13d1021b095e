"""Where this process stands in the cgroup trees, and the limits from there up to the top.

A limit binds everything below it, so the group that a process is in tells only half: a pod's quota sits above its
container's, and the tightest on the way up is the one that counts. Version 1 keeps a tree for each controller and
version 2 one for all; many machines mount both ("hybrid") with the controllers in version 1 and an empty version 2
beside them, so the version is decided for each controller and never for the machine.

Format: cgroups(7), proc_pid_mountinfo(5); Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of Linux.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC_ROOT = Path("/proc")
CGROUP_ROOT = Path("/sys/fs/cgroup")

# Version 1 writes "no limit" as the largest multiple of a page that fits in 63 bits; anything near it is none.
_NO_MEMORY_LIMIT = 1 << 60
_READ_BYTES = 1 << 16


def read_text(path: Path) -> str | None:
    """The file's text, or None where it cannot be read: a controller that is off, a group just removed, no right."""
    # Without Path.read_text's buffer and decoder: sixteen files a sample, and twice the time.
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = [os.read(file, _READ_BYTES)]
        while parts[-1]:
            parts.append(os.read(file, _READ_BYTES))
    except OSError:
        return None
    finally:
        os.close(file)
    return b"".join(parts).decode("utf-8", "replace")


def read_number(path: Path) -> int | None:
    """The file's one whole number; None for "max", other words and unreadable files."""
    try:
        return int(read_text(path) or "")
    except ValueError:
        return None


def read_fields(path: Path) -> dict[str, int]:
    """A file of ``name value`` lines (cpu.stat, memory.stat); lines of another form are left out."""
    fields = {}
    for line in (read_text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdecimal():
            fields[name] = int(value)
    return fields


@dataclass(frozen=True, slots=True)
class Group:
    """One process's place in one tree. ``top`` is the highest directory that can be seen from here."""

    version: int
    path: Path
    top: Path

    def lineage(self) -> Iterator[Path]:
        """The directories whose limits bind, from the process's own group up to the top."""
        here = self.path
        while True:
            yield here
            if here == self.top or here == here.parent:
                return
            here = here.parent

    def cpu_quotas(self) -> Iterator[tuple[Path, float]]:
        """(directory, cores) of each CPU limit on the way up."""
        read = _cpu_quota_v2 if self.version == 2 else _cpu_quota_v1
        for directory in self.lineage():
            quota = read(directory)
            if quota is not None:
                yield directory, quota

    def memory_limits(self) -> Iterator[tuple[Path, int]]:
        """(directory, bytes) of each memory limit on the way up."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        for directory in self.lineage():
            limit = read_number(directory / name)
            if limit is not None and 0 < limit < _NO_MEMORY_LIMIT:
                yield directory, limit


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted tree. ``root`` is the group shown at ``point``: not "/" in a container without its own namespace."""

    version: int
    controllers: frozenset[str]
    root: PurePosixPath
    point: Path

    def directory_of(self, path: str) -> Path:
        """Where the group *path* is found; the mount's own top when the group lies outside of what is mounted."""
        try:
            inside = PurePosixPath(path).relative_to(self.root)
        except ValueError:
            return self.point
        directory = self.point / inside
        return directory if ".." not in inside.parts and directory.is_dir() else self.point


class Cgroups:
    """The groups of process *pid* ("self": this one).

    Mounts are read once; the membership at every question, because a process can be moved. ``cgroup_root`` stands
    for /sys/fs/cgroup, so that a recorded tree can be read in its place.
    """

    def __init__(self, pid: int | str = "self", proc_root: Path = PROC_ROOT, cgroup_root: Path = CGROUP_ROOT) -> None:
        self._proc = proc_root / str(pid)
        self._mounts = _read_mounts(self._proc / "mountinfo", cgroup_root)
        self._membership: str | None = None
        self._found: dict[str, Group | None] = {}

    def group(self, controller: str) -> Group | None:
        """The group whose files for *controller* (cpu, cpuacct, memory) bind the process; None without cgroups."""
        membership = read_text(self._proc / "cgroup") or ""
        if membership != self._membership:
            self._membership, self._found = membership, {}
        if controller not in self._found:
            self._found[controller] = self._group(controller, membership)
        return self._found[controller]

    def _group(self, controller: str, membership: str) -> Group | None:
        v2_path = None
        for line in membership.splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if not controllers:
                v2_path = path
            elif controller in controllers.split(","):
                group = self._find(1, path, controller)
                if group is not None:
                    return group
        return None if v2_path is None else self._find(2, v2_path, controller)

    def _find(self, version: int, path: str, controller: str) -> Group | None:
        for mount in self._mounts:
            if mount.version == version and (version == 2 or controller in mount.controllers):
                return Group(version, mount.directory_of(path), mount.point)
        return None


def _cpu_quota_v1(directory: Path) -> float | None:
    quota_us = read_number(directory / "cpu.cfs_quota_us")
    period_us = read_number(directory / "cpu.cfs_period_us")
    if quota_us is None or quota_us <= 0 or not period_us:
        return None
    return quota_us / period_us


def _cpu_quota_v2(directory: Path) -> float | None:
    quota_us, _, period_us = (read_text(directory / "cpu.max") or "").strip().partition(" ")
    if not quota_us.isdecimal() or not period_us.isdecimal() or int(quota_us) == 0 or int(period_us) == 0:
        return None
    return int(quota_us) / int(period_us)


def _read_mounts(mountinfo: Path, cgroup_root: Path) -> tuple[_Mount, ...]:
    mounts = []
    for line in (read_text(mountinfo) or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        point = _relocated(_unescaped(fields[4]), cgroup_root)
        if point is not None:
            version = 2 if kind[0] == "cgroup2" else 1
            controllers = frozenset(kind[2].split(",")) if version == 1 else frozenset()
            mounts.append(_Mount(version, controllers, PurePosixPath(_unescaped(fields[3])), point))
    return tuple(mounts)


def _relocated(point: str, cgroup_root: Path) -> Path | None:
    try:
        return cgroup_root / PurePosixPath(point).relative_to(PurePosixPath(CGROUP_ROOT))
    except ValueError:
        # Mounted elsewhere: real on this machine, and no part of a recorded tree.
        return Path(point) if cgroup_root == CGROUP_ROOT else None


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
