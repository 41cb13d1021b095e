"""Instructions instead of seconds: counted by callgrind, so that what else the machine does changes nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MISSING = "callgrind is needed: apt-get install valgrind"
_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


class Counter:
    """Instructions of this process, section by section. *folder* is where callgrind writes, and nobody else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tell("--instr=on")
        self.taken()

    def taken(self) -> int:
        """Since the last question."""
        before = set(self._folder.iterdir())
        self._tell("--dump")
        new = set(self._folder.iterdir()) - before
        return sum(int(found) for file in new for found in _TOTALS.findall(file.read_text()))

    def _tell(self, what: str) -> None:
        subprocess.run(["callgrind_control", what, str(os.getpid())], check=True, stdout=subprocess.DEVNULL)


def under_valgrind(script: str, *what: str) -> dict[str, float]:
    """What ``script measure *what`` prints as JSON when it runs under callgrind, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=out"]
        command += [sys.executable, str(Path(script).resolve()), "measure", *what]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{what}: {done.stderr}")
        found: dict[str, float] = json.loads(done.stdout)
        return found
