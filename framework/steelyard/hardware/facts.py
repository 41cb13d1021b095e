"""What else is worth knowing of a machine, as tags of its nodes: ``hw.arch``, ``hw.host`` and their like.

``Hardware`` holds what the balancer reckons with; these are for people, and for ``where`` expressions. They travel as
plain tags, so a reader that does not know one of them keeps it as it is.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steelyard.errors import ConfigError

from .accelerator import accelerator_facts
from .cgroup import PROC_ROOT, read_text
from .machine import physical_cores

SYS_ROOT = Path("/sys")
RACK_FILE = Path("/etc/steelyard/rack")

FACTS = {
    "arch": "the processor's architecture (x86_64, aarch64)",
    "physical_cores": "cores of the machine without hyper-threads",
    "numa": "NUMA nodes of the machine",
    "host": "one machine's identity: equal for all containers on it, another after a reboot",
    "container": "kubernetes, docker, podman, lxc, container, or bare",
    "driver": "the version of the accelerators' driver",
    "accelerator_memory": "bytes of memory of one accelerator or slice, the smallest",
    "rack": "where in the zone, from $STEELYARD_RACK or /etc/steelyard/rack",
}
"""Every fact and what it says. As a tag each has the prefix ``hw.``; what is not known has no tag."""

_NUMBERS = ("physical_cores", "numa", "accelerator_memory")

_CONTAINERS = (
    ("kubernetes", re.compile(r"/kubepods|/kubelet")),
    ("docker", re.compile(r"/docker[-/]")),
    ("podman", re.compile(r"/libpod|/machine\.slice/libpod")),
    ("lxc", re.compile(r"/lxc[./]|/lxc\.payload")),
    ("container", re.compile(r"/containerd|/cri-containerd|/actions_job")),
)


def detect_facts(
    overrides: Mapping[str, str] | None = None,
    *,
    proc_root: Path = PROC_ROOT,
    sys_root: Path = SYS_ROOT,
    root: Path = Path("/"),
    nvml: Any | None = None,
    environ: Mapping[str, str] = os.environ,
    rack_file: Path = RACK_FILE,
) -> dict[str, str]:
    """Tags by name (``hw.numa``). *overrides* by fact (``numa``); an empty one, or "none", takes a fact away. Raises
    ConfigError for a number that is none."""
    found = {
        "arch": platform.machine(),
        "physical_cores": _text(physical_cores(proc_root)),
        "numa": _text(len(list(sys_root.glob("devices/system/node/node[0-9]*"))) or None),
        "host": host_identity(proc_root),
        "container": container(proc_root, root, environ),
        "rack": environ.get("STEELYARD_RACK", "").strip() or _first_line(rack_file),
        **accelerator_facts(nvml, environ),
    }
    found.update({name: _given(name, value.strip()) for name, value in (overrides or {}).items()})
    return {f"hw.{name}": value for name, value in found.items() if value}


def host_identity(proc_root: Path = PROC_ROOT) -> str:
    """Twelve hexadecimal digits made from the kernel's boot id, which all containers of a machine share and no two
    machines; a hash, because the id itself is nobody else's business. Without /proc, from the host's name."""
    boot_id = (read_text(proc_root / "sys/kernel/random/boot_id") or "").strip()
    return hashlib.sha256(f"steelyard {boot_id or socket.gethostname()}".encode()).hexdigest()[:12]


def container(proc_root: Path = PROC_ROOT, root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> str:
    """What this process is contained in. By the marks that runtimes leave, for the kernel knows no containers: files at
    the root, names of groups, Kubernetes' environment."""
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    groups = read_text(proc_root / "self/cgroup") or ""
    for name, pattern in _CONTAINERS:
        if pattern.search(groups):
            return name
    for mark, name in ((".dockerenv", "docker"), ("run/.containerenv", "podman")):
        if (root / mark).exists():
            return name
    named = environ.get("container", "").strip()  # systemd's convention
    return named if re.fullmatch(r"[A-Za-z0-9_.-]+", named) else "bare"


def _given(name: str, value: str) -> str:
    if value.lower() in ("", "none"):
        return ""
    if name in _NUMBERS and not (value.isdecimal() and int(value) > 0):
        raise ConfigError(f"hardware {name} must be a whole number above 0 (or 'none'), not {value!r}")
    return value


def _first_line(path: Path) -> str:
    lines = (read_text(path) or "").splitlines()
    return lines[0].strip() if lines else ""


def _text(number: int | None) -> str:
    return "" if number is None else str(number)
