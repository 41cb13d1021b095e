"""Without /proc the same facts come from psutil, and they agree with /proc where there is both."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import psutil

from steelyard.hardware.machine import memory_fields, usable_cores
from steelyard.hardware.usage import CpuMeter, tree_time_s

ABSENT = Path("/nonexistent-proc")


def test_cores_and_memory() -> None:
    assert usable_cores("self", ABSENT) == psutil.cpu_count()
    fields = memory_fields(ABSENT)
    assert fields["MemTotal"] == psutil.virtual_memory().total
    assert 0 < fields["MemAvailable"] <= fields["MemTotal"]


def test_the_tree_has_what_this_process_used() -> None:
    before_s = tree_time_s("self", ABSENT)
    assert before_s is not None
    sum(range(3_000_000))
    after_s = tree_time_s("self", ABSENT)
    assert after_s is not None
    assert after_s > before_s


def test_living_children_count() -> None:
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        own = psutil.Process(os.getpid())
        psutil.Process(spinning.pid).cpu_times()
        for _ in range(2_000_000):
            pass
        tree_s = tree_time_s("self", ABSENT)
        assert tree_s is not None
        assert tree_s > sum(own.cpu_times()[:2])
    finally:
        spinning.kill()
        spinning.wait()


def test_a_process_that_is_not_there_is_none() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert tree_time_s(gone.pid, ABSENT) is None


def test_a_meter_works_without_proc() -> None:
    ticks = itertools.count(1.0)
    meter = CpuMeter("self", proc_root=ABSENT, cgroup_root=ABSENT, clock=lambda: next(ticks))
    assert meter.sample() is None
    sum(range(3_000_000))
    share = meter.sample()
    assert share is not None
    assert 0 <= share <= 1.5
