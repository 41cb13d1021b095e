"""A report whose process is killed: nothing runs on, and the next one goes on there."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

NAME = "results.part.jsonl"
SECONDS = 120.0


def begun(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "steelyard", "sim", "sparse-calls", "--policy", "random", "--seeds", "8"]
    command += ["--jobs", "2", "--report", str(folder)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def until_it(holds: object) -> None:
    give_up_at = time.monotonic() + SECONDS
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are found in /proc")
def test_killed_and_gone_on(tmp_path: Path) -> None:
    report = begun(tmp_path)
    try:
        until_it(lambda: (tmp_path / NAME).is_file() and (tmp_path / NAME).read_bytes().count(b"\n") >= 2)
        listed = Path(f"/proc/{report.pid}/task/{report.pid}/children").read_text(encoding="ascii").split()
        children = [Path(f"/proc/{pid}/stat") for pid in listed]
        assert len(children) >= 2
    finally:
        report.send_signal(signal.SIGKILL)
        report.communicate()
    until_it(lambda: not any(runs(child) for child in children))
    assert not (tmp_path / "results.csv").exists()
    report = begun(tmp_path)
    _, said = report.communicate(timeout=SECONDS)
    assert report.returncode == 0, said
    assert "runs of a report that was stopped are kept" in said
    assert (tmp_path / "results.csv").read_text(encoding="utf-8").count("\n") == 9
    assert not (tmp_path / NAME).exists()


def runs(stat: Path) -> bool:
    """Whether the process of *stat* does; one whose new parent has not looked yet does not."""
    try:
        return stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
