"""What this machine is (detect) and how busy it is (Sampler)."""

from .accelerator import detect_accelerators, gpu_source, load_nvml
from .cgroup import Cgroups, Group
from .detect import detect, detect_zone, parse_overrides
from .sampler import Sampler
from .usage import CpuMeter, MemoryUse, memory_use

__all__ = [
    "Cgroups",
    "CpuMeter",
    "Group",
    "MemoryUse",
    "Sampler",
    "detect",
    "detect_accelerators",
    "detect_zone",
    "gpu_source",
    "load_nvml",
    "memory_use",
    "parse_overrides",
]
