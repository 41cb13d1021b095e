"""The verdicts of ``./dev bench chaos``: what is measured decides, and nothing passes by being absent."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCH = Path(__file__).parents[3] / "benchmarks" / "bench_chaos.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_chaos", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_chaos"] = module
    spec.loader.exec_module(module)
    return module


def fault_row(**changes: Any) -> dict[str, Any]:
    one = {
        "calls": 7500,
        "per_s": 500.0,
        "answered": 1.0,
        "executed": 7500,
        "executed_twice": 0,
        "extra_attempts": 0.1,
        "extra_executions": 0.1,
    }
    return {"rate_per_s": 500.0, "read": {**one, **changes}, "write": {**one, **changes}}


def spike_row(**changes: Any) -> dict[str, Any]:
    row = {
        "calls": 9000,
        "seconds": 15.0,
        "usual_per_s": 150.0,
        "well_per_s": 480.0,
        "admitted": 7000,
        "success": 1.0,
        "degraded_by_priority": {0: 0.0, 1: 0.05, 2: 0.6},
        "full_service_after_s": 3.0,
        "levels_up": 1,
        "levels_down": 2,
    }
    return {**row, **changes}


def missed(bench: ModuleType, faults: dict[str, Any], spikes: dict[str, Any]) -> list[str]:
    return [what.partition(": ")[2] for what, _, _, is_met in bench.bars(faults, spikes) if not is_met]


def test_all_is_well(bench: ModuleType) -> None:
    assert missed(bench, {"killed": fault_row()}, {"spike/fails-half/protected": spike_row()}) == []
    assert len(bench.bars({"killed": fault_row()}, {"spike/fails-half/protected": spike_row()})) == 10


@pytest.mark.parametrize(
    ("changes", "bar"),
    [
        ({"per_s": 400.0}, "load offered"),
        ({"answered": 0.9994}, "idempotent success"),
        ({"extra_attempts": 0.26}, "extra load"),
        ({"extra_executions": 0.26}, "extra load"),
        ({"executed_twice": 1}, "executed twice"),
        ({"executed": 7000}, "executed twice"),  # the ledgers lack calls that were answered: nothing is proved
    ],
)
def test_each_bar_of_a_fault(bench: ModuleType, changes: dict[str, Any], bar: str) -> None:
    assert missed(bench, {"killed": fault_row(**changes)}, {}) == [bar]


@pytest.mark.parametrize(
    ("changes", "bar"),
    [
        ({"calls": 8000}, "load offered"),
        ({"success": 0.9989}, "admitted succeed"),
        ({"admitted": 5000}, "well nodes are used"),
        ({"degraded_by_priority": {0: 0.0, 1: 0.0, 2: 0.0}}, "lowest first"),
        ({"degraded_by_priority": {0: 0.3, 1: 0.4, 2: 0.5}}, "lowest first"),
        ({"degraded_by_priority": {0: 0.0, 1: 0.5, 2: 0.4}}, "lowest first"),
        ({"full_service_after_s": None}, "full service"),
        ({"full_service_after_s": 30.5}, "full service"),
        ({"levels_up": 3}, "level changes"),
        ({"levels_down": 3}, "level changes"),
    ],
)
def test_each_bar_of_a_spike(bench: ModuleType, changes: dict[str, Any], bar: str) -> None:
    assert missed(bench, {}, {"spike/fails-fast/protected": spike_row(**changes)}) == [bar]


def test_what_is_there_to_be_seen_has_no_bar(bench: ModuleType) -> None:
    rows = {"spike/fails-fast/bare": spike_row(success=0.5), "spike/slow-x10/protected": spike_row(success=0.5)}
    assert bench.bars({}, rows) == []
