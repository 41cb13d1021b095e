"""What a user installs: the wheel, built without network, holds both packages and runs without the clone."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from architecture.tree import ROOT, pyproject, tracked_files


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [built] = folder.glob("*.whl")
    return built


def test_the_wheel_holds_both_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(base).as_posix()
        for base in (ROOT / "framework", ROOT / "registry")
        for path in tracked_files()
        if path.is_relative_to(base)
    }
    assert inside == expected
    assert {"steelyard/py.typed", "steelyard_registry/py.typed"} <= inside


def test_the_wheel_carries_licence_and_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry_points = archive.read(next(name for name in names if name.endswith("/entry_points.txt"))).decode()
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "steelyard = steelyard.cli:main" in entry_points


def test_the_wheel_runs_without_the_clone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # First on the path, before the editable install that this environment has; dependencies come from the environment.
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import steelyard, steelyard_registry
print(steelyard.__file__, steelyard_registry.__file__, steelyard.__version__, sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    framework, registry, version = done.stdout.splitlines()
    assert Path(framework).is_relative_to(tmp_path)
    assert Path(registry).is_relative_to(tmp_path)
    assert version == pyproject()["project"]["version"]
