"""The script that checks a real GPU, over a made-up driver: its own code is walked where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpu_check.py"
DRIVER = """
from types import SimpleNamespace

NVML_DEVICE_MIG_ENABLE = 1
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetHandleByUUID(uuid): return int(uuid[-1])
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}".encode()
def nvmlDeviceGetName(handle): return b"Acme G1"
def nvmlDeviceGetMigMode(handle): raise NVMLError("Not Supported")
def nvmlDeviceGetUtilizationRates(handle): return SimpleNamespace(gpu=BUSY)
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(used=10 << 30, total=80 << 30)
def nvmlDeviceGetCurrentClocksEventReasons(handle): return 0
def nvmlSystemGetDriverVersion(): return b"570.1"
"""


def check(folder: Path, driver: str) -> tuple[int, str, dict[str, object]]:
    (folder / "pynvml.py").write_text(driver)
    environ = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--json", str(folder / "out.json")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**environ, "PYTHONPATH": str(folder)},
        check=False,
    )
    return done.returncode, done.stdout, json.loads((folder / "out.json").read_text())


@pytest.mark.parametrize(("busy", "rc"), [("50", 0), ("7000", 1)])
def test_it_believes_a_sane_driver_and_no_other(tmp_path: Path, busy: str, rc: int) -> None:
    found = check(tmp_path, DRIVER.replace("BUSY", busy))
    assert found[0] == rc, found[1]
    assert found[2]["has_gpu"] is True
    assert ("WRONG" in found[1]) is (rc == 1)


def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    rc, text, document = check(
        tmp_path, DRIVER.replace("def nvmlInit(): pass", "def nvmlInit(): raise NVMLError('no')")
    )
    assert (rc, document["has_gpu"]) == (0, False)
    assert text.startswith("no GPU: NVML is not here")
