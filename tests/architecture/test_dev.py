"""The script ``./dev``: what it says, and how it fails. What it installs is proved by every run that comes this far."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from architecture.tree import ROOT

SCRIPT = ROOT / "dev"


def dev(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_help_lists_every_command(tmp_path: Path) -> None:
    shown = dev("help", cwd=tmp_path)
    dispatch = SCRIPT.read_text(encoding="utf-8").rpartition("case $command in")[2]
    commands = re.findall(r"^(\w+)(?: \|[^)]*)?\) ", dispatch, re.MULTILINE)
    assert {"setup", "demo", "test", "check", "bench"} <= set(commands)
    listed = re.findall(r"^  (\w+)", shown.stdout.partition("environment:")[0], re.MULTILINE)
    assert shown.returncode == 0
    assert sorted(listed) == sorted(commands)


def test_an_unknown_command_fails_and_leaves_standard_output_alone() -> None:
    tried = dev("fly")
    assert tried.returncode != 0
    assert tried.stdout == ""
    assert "unknown command: fly" in tried.stderr


@pytest.mark.parametrize("command", ["setup", "check", "demo"])
def test_an_unusable_python_is_named(command: str) -> None:
    tried = dev(command, STEELYARD_PYTHON="/bin/false")
    assert tried.returncode != 0
    assert "STEELYARD_PYTHON=/bin/false is not a Python 3.11 or newer" in tried.stderr


def test_a_missing_zookeeper_fails_the_run(tmp_path: Path) -> None:
    """Never a silent skip: with nothing chosen, the whole suite is asked for, and a part of it could not run."""
    tried = dev("test", STEELYARD_ZOOKEEPER_JARS=str(tmp_path / "nowhere"))
    assert tried.returncode != 0
    assert "is not a folder" in tried.stderr
    assert "passed" not in tried.stdout


def test_an_unknown_benchmark_lists_the_known_ones() -> None:
    tried = dev("bench", "nothing_of_this_name")
    assert tried.returncode != 0
    assert all(
        f"./dev bench {path.stem.removeprefix('bench_')}" in tried.stderr for path in ROOT.glob("benchmarks/bench_*.py")
    )
