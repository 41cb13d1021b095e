"""What this machine is (detect) and how busy it is (Sampler)."""

from .accelerator import detect_accelerators, gpu_source, load_nvml
from .cgroup import Cgroups, Group
from .detect import detect, detect_zone, split_overrides
from .facts import FACTS, detect_facts
from .pressure import PressureMeter
from .sampler import Sampler
from .usage import CpuMeter, MemoryUse, memory_use

__all__ = [
    "FACTS",
    "Cgroups",
    "CpuMeter",
    "Group",
    "MemoryUse",
    "PressureMeter",
    "Sampler",
    "detect",
    "detect_accelerators",
    "detect_facts",
    "detect_zone",
    "gpu_source",
    "load_nvml",
    "memory_use",
    "split_overrides",
]
