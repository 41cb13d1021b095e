"""What this process runs on, found once at start: the ``hw.*`` tags of a node.

Detected or declared, never inferred from a name; each fact can be overridden alone, because the one who deploys
knows better (an emulated device, a machine that lies about itself).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from steelyard.errors import ConfigError
from steelyard_registry.node import Hardware

from .accelerator import detect_accelerators, load_nvml
from .cgroup import CGROUP_ROOT, PROC_ROOT, Cgroups
from .facts import FACTS
from .machine import cpu_model, memory_fields, usable_cores

ZONE_FILE = Path("/etc/steelyard/zone")
_NONE_WORDS = ("", "none", "max")


def detect(
    overrides: Mapping[str, str] | None = None,
    *,
    proc_root: Path = PROC_ROOT,
    cgroup_root: Path = CGROUP_ROOT,
    nvml: Callable[[], Any | None] = load_nvml,
    environ: Mapping[str, str] = os.environ,
) -> Hardware:
    """The hardware of this process, with *overrides* by field name (``cores`` or ``hw.cores``) on top.

    Overrides: ``kind`` cpu or gpu; ``model`` any text; ``cores`` and ``quota`` numbers above 0; ``memory_bytes`` (or
    ``memory``) a whole number above 0; ``accelerators`` names between commas. "none" or "max" says that there is no
    limit. Accelerators make the kind gpu unless the kind is given. Raises ConfigError naming the field, the range and
    the bad value.
    """
    given = parse_overrides(overrides or {})
    cgroups = Cgroups("self", proc_root, cgroup_root)
    accelerators: tuple[str, ...] | None = given.get("accelerators")
    if accelerators is None:
        accelerators = detect_accelerators(nvml(), environ)
    found = Hardware(
        kind="gpu" if accelerators else "cpu",
        model=cpu_model(proc_root),
        cores=usable_cores("self", proc_root),
        quota=_tightest_quota(cgroups),
        memory_bytes=_memory_bytes(cgroups, proc_root),
        accelerators=accelerators,
    )
    return replace(found, **given)


def split_overrides(overrides: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Those of Hardware's fields, and those of the other facts (``facts.FACTS``), each by its name without ``hw.``."""
    facts = {key.removeprefix("hw."): value for key, value in overrides.items() if key.removeprefix("hw.") in FACTS}
    return {key: value for key, value in overrides.items() if key.removeprefix("hw.") not in FACTS}, facts


def detect_zone(environ: Mapping[str, str] = os.environ, zone_file: Path = ZONE_FILE) -> str:
    """Where the machine stands: $STEELYARD_ZONE, else the first line of /etc/steelyard/zone, else ""."""
    zone = environ.get("STEELYARD_ZONE", "").strip()
    if zone:
        return zone
    try:
        lines = zone_file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    return lines[0].strip() if lines else ""


def parse_overrides(overrides: Mapping[str, str]) -> dict[str, Any]:
    """Overrides as values of Hardware's fields. Raises ConfigError."""
    known = {field.name for field in fields(Hardware)}
    parsed: dict[str, Any] = {}
    for key, text in overrides.items():
        name = key.removeprefix("hw.")
        name = "memory_bytes" if name == "memory" else name
        if name not in known:
            raise ConfigError(f"hardware has no field {key!r}; there are: {', '.join(sorted({*known, *FACTS}))}")
        if not isinstance(text, str):
            raise ConfigError(f"hardware {name} is given as text, as on the command line, not as {text!r}")
        parsed[name] = _parse(name, text.strip())
    return parsed


def _parse(name: str, text: str) -> Any:
    if name == "model":
        return text
    if name == "kind":
        if text not in ("cpu", "gpu"):
            raise ConfigError(f"hardware kind must be 'cpu' or 'gpu', not {text!r}")
        return text
    if name == "accelerators":
        words = [] if text.lower() in _NONE_WORDS else text.split(",")
        return tuple(word.strip() for word in words if word.strip())
    if text.lower() in _NONE_WORDS:
        return None
    is_whole = name == "memory_bytes"
    try:
        value = int(text) if is_whole else float(text)
    except ValueError:
        value = -1
    if not 0 < value < float("inf"):
        number = "a whole number" if is_whole else "a number"
        raise ConfigError(f"hardware {name} must be {number} above 0 (or 'none'), not {text!r}")
    return value


def _tightest_quota(cgroups: Cgroups) -> float | None:
    group = cgroups.group("cpu")
    return min((quota for _, quota in group.cpu_quotas()), default=None) if group else None


def _memory_bytes(cgroups: Cgroups, proc_root: Path) -> int | None:
    group = cgroups.group("memory")
    limits = [limit for _, limit in group.memory_limits()] if group else []
    total = memory_fields(proc_root).get("MemTotal")
    return min([*limits, total] if total else limits, default=None)
