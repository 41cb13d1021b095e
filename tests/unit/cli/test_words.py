"""Facts in words for people."""

from __future__ import annotations

import pytest

from steelyard.cli import words
from steelyard_registry import Hardware


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "?"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (99 * 1024**2, "99 MiB"),
        (810 * 1024**3, "810 GiB"),
        (2**70, "1048576 PiB"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("hardware", "text"),
    [
        (Hardware(), "cpu"),
        (Hardware(cores=1.0), "cpu, 1 core"),
        (Hardware(cores=8.0, quota=0.2, memory_bytes=2**30), "cpu, 0.2 of 8 cores, 1 GiB"),
        (Hardware(quota=2.5), "cpu, 2.5 cores"),
        (
            Hardware(kind="gpu", accelerators=("H100", "A10", "H100"), model="Intel(R) Xeon(R) CPU E5 @ 2.30GHz"),
            "gpu 2x H100, A10, Intel Xeon E5",
        ),
        (Hardware(model="AMD EPYC 7763 64-Core Processor"), "cpu, AMD EPYC 7763"),
    ],
)
def test_hardware(hardware: Hardware, text: str) -> None:
    assert words.hardware(hardware) == text


def test_shares_and_counts() -> None:
    assert words.utilization({"gpu": 0.071, "cpu": 1.0}) == "cpu 100 %, gpu 7 %"
    assert words.pairs({"b": "2", "a": "1"}) == "a=1 b=2"
    assert [words.counted(count, "node") for count in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
