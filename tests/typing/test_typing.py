"""What users' type checkers and editors see: every other file in this folder passes mypy in strict mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = sorted(path for path in HERE.glob("*.py") if not path.name.startswith("test_"))


def check(*files: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), *map(str, files)]
    environment = {**os.environ, "MYPYPATH": f"{ROOT / 'framework'}{os.pathsep}{ROOT / 'registry'}"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_files_are_there() -> None:
    assert "declared_signatures.py" in {path.name for path in FILES}


@pytest.mark.timeout(300)
def test_types_are_what_was_declared() -> None:
    result = check(*FILES, cache=ROOT / ".mypy_cache")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.timeout(300)
def test_the_check_can_fail(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from steelyard.service import method\n"
        "class A:\n"
        "    @method\n"
        "    def f(self, x: int) -> int: return x\n"
        "A().f('x')\n"
    )
    result = check(wrong, cache=ROOT / ".mypy_cache")
    assert result.returncode == 1
    assert 'Argument 1 to "f" of "A" has incompatible type "str"; expected "int"' in result.stdout
