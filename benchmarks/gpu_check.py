"""Does the real NVML say what the framework believes it says?

    python benchmarks/gpu_check.py [--json out.json] [--load]

With a GPU: every branch of the accelerators' code against the driver, and, with --load and torch or cupy, that a busy
device is seen as busy, a full one as full, and an error of the real library as the trouble that it is. Without one it
says so, and ends with exit code 0: nothing was found wrong, and nothing was proved.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steelyard.hardware import Sampler, detect, detect_accelerators, detect_facts, gpu_source, load_nvml


class Checks:
    """What was asked, what came, and whether it makes sense."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def check(self, what: str, found: Any, is_good: bool) -> None:
        self.rows.append({"what": what, "found": found, "is_good": is_good})
        print(f"{'ok     ' if is_good else 'WRONG  '} {what:<58} {found}")


def check_static(checks: Checks, nvml: Any) -> None:
    names = detect_accelerators(nvml, {})
    checks.check("devices are named", list(names), bool(names) and all(names))
    hardware = detect(nvml=lambda: nvml)
    checks.check("a node here is a gpu node", hardware.kind, hardware.kind == "gpu" and bool(hardware.accelerators))
    one = detect_accelerators(nvml, {"CUDA_VISIBLE_DEVICES": "0"})
    checks.check("CUDA_VISIBLE_DEVICES=0 shows the first alone", list(one), one == names[: len(one)] and bool(one))
    none = detect_accelerators(nvml, {"CUDA_VISIBLE_DEVICES": ""})
    checks.check("CUDA_VISIBLE_DEVICES= shows none", list(none), none == ())
    uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0))
    uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
    named = detect_accelerators(nvml, {"CUDA_VISIBLE_DEVICES": uuid})
    checks.check("a device is found by its UUID", list(named), named == one)
    facts = detect_facts(nvml=nvml)
    memory = int(facts.get("hw.accelerator_memory", "0"))
    checks.check("the driver's version", facts.get("hw.driver"), bool(facts.get("hw.driver")))
    checks.check("memory of a device, GiB", round(memory / 2**30, 1), memory > 2**30)


def check_source(checks: Checks, nvml: Any) -> None:
    found = gpu_source(nvml)()
    for name in ("gpu_memory", "gpu_throttled"):
        checks.check(f"{name} is a share", found.get(name), 0.0 <= found.get(name, -1.0) <= 1.0)
    is_divided = any("MIG" in name for name in detect_accelerators(nvml))
    good = "gpu" not in found if is_divided else 0.0 <= found.get("gpu", -1.0) <= 1.0
    checks.check("gpu is a share (unknown where the device is divided)", found.get("gpu"), good)
    sampler = Sampler()
    sampler.add_source("gpu", gpu_source(nvml))
    sampler.sample()
    costs_s = []  # the best of several: who shares the core's caches costs CPU time too
    for _ in range(5):
        before_s = time.process_time()
        for _ in range(10):
            sampler.sample()
        costs_s.append((time.process_time() - before_s) / 10)
    cost = min(costs_s)
    sampler.stop()
    checks.check("a sample a second costs of a core, %", round(cost * 100, 3), cost <= 0.002)


def check_under_load(checks: Checks, nvml: Any) -> None:
    try:
        import torch
    except ImportError:
        print("        torch is not installed: a busy device, a full one and real errors are not checked")
        return
    if not torch.cuda.is_available():
        print("        torch has no CUDA here: a busy device, a full one and real errors are not checked")
        return
    source = gpu_source(nvml)
    x = torch.randn(8192, 8192, device="cuda")
    until = time.monotonic() + 3.0
    while time.monotonic() < until:
        for _ in range(20):
            x = (x @ x).clamp(-1, 1)
        torch.cuda.synchronize()
    busy = source().get("gpu", 0.0)
    checks.check("a device that multiplies without pause is busy", busy, busy > 0.8)
    before = source()["gpu_memory"]
    kept = torch.empty(int(torch.cuda.mem_get_info()[1] * 0.2), dtype=torch.uint8, device="cuda")
    after = source()["gpu_memory"]
    checks.check("a fifth of the memory more is seen as such", round(after - before, 3), 0.15 < after - before < 0.25)
    del kept
    checks.check("a real out of memory, by its class", *_trouble(lambda: torch.empty(2**50, device="cuda")))


def _trouble(provoke: Callable[[], Any]) -> tuple[Any, bool]:
    from steelyard.provider import trouble_of

    try:
        provoke()
    except Exception as error:
        found = trouble_of(error)
        return f"{type(error).__name__}: {found}", found is not None and found.name == "OUT_OF_MEMORY"
    return "nothing was raised", False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--load", action="store_true", help="keep the device busy for some seconds")
    asked = parser.parse_args()
    nvml = load_nvml()
    if nvml is None or nvml.nvmlDeviceGetCount() == 0:
        print("no GPU: NVML is not here, or knows no device. Nothing was checked, and nothing else needs one.")
        if asked.json:
            asked.json.write_text(json.dumps({"has_gpu": False, "checks": []}))
        return 0
    checks = Checks()
    check_static(checks, nvml)
    check_source(checks, nvml)
    if asked.load:
        check_under_load(checks, nvml)
    if asked.json:
        asked.json.write_text(json.dumps({"has_gpu": True, "checks": checks.rows}, indent=1))
    return 0 if all(row["is_good"] for row in checks.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
