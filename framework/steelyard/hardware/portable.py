"""The same facts where there is no /proc at all: macOS and the BSDs, on which services are written more than served.

On Linux the sampler does not use psutil: inside a container its counts are the host's, and finding a process's
children costs it a walk over every process of the machine, once a second.
"""

from __future__ import annotations

from pathlib import Path

import psutil


def is_needed(proc_root: Path) -> bool:
    """Whether this machine has no /proc."""
    return not proc_root.exists()


def usable_cores() -> int | None:
    """CPUs of the machine; None when it does not tell."""
    return psutil.cpu_count()  # type: ignore[no-any-return]


def physical_cores() -> int | None:
    """Cores of the machine, hyper-threads not counted; None when it does not tell."""
    return psutil.cpu_count(logical=False)  # type: ignore[no-any-return]


def memory_fields() -> dict[str, int]:
    """The machine's memory under the names of /proc/meminfo, in bytes."""
    memory = psutil.virtual_memory()
    return {"MemTotal": memory.total, "MemAvailable": memory.available}


def tree_time_s(pid: int | None) -> float | None:
    """CPU seconds of a process (None: this one), its living descendants and the children it has buried; None when the
    process cannot be read."""
    try:
        process = psutil.Process(pid)
        total_s = sum(process.cpu_times()[:4])
        descendants = process.children(recursive=True)
    except psutil.Error:
        return None
    for descendant in descendants:
        try:
            total_s += sum(descendant.cpu_times()[:4])
        except psutil.Error:  # it ended, or belongs to somebody else: it counts when it is waited for
            continue
    return float(total_s)
