"""The project as its own tests see it: source modules with their syntax trees, and the files that git tracks.

Everything is read from the files and not from imported modules, so a rule is checked also where an import would
fail, and checking it loads nothing.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"steelyard": ROOT / "framework", "steelyard_registry": ROOT / "registry"}
CODE_FOLDERS = ("framework", "registry", "tests", "benchmarks", "examples", "tools")


@dataclass(frozen=True)
class Module:
    """One Python file; ``name`` is dotted, and for files outside the two packages it is their path in dots."""

    name: str
    path: Path

    @property
    def where(self) -> str:
        return str(self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path)

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @cached_property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, filename=self.where)


def modules_under(base: Path, folder: Path) -> Iterator[Module]:
    """Every Python file below *folder*, named from *base* on."""
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        yield Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path)


@cache  # a file is parsed once, whichever rule asks for it
def product_modules() -> list[Module]:
    """The modules of both packages: what a user installs."""
    return [module for name, base in PACKAGES.items() for module in modules_under(base, base / name)]


@cache
def other_modules() -> list[Module]:
    """Tests, benchmarks and examples: what stands outside the packages and uses them."""
    return [
        module
        for folder in CODE_FOLDERS
        if ROOT / folder not in PACKAGES.values()
        for module in modules_under(ROOT, ROOT / folder)
    ]


def exported_names(module: Module) -> list[str] | None:
    """The literal ``__all__`` of a module, or None where it has none."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names = ast.literal_eval(node.value)
            return [str(name) for name in names]
    return None


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def tracked_files() -> list[Path]:
    """What git has or would take with ``git add .``, without what was deleted. Fails the test where there is no git."""
    git = shutil.which("git")
    if git is None:
        pytest.fail("this test asks git which files belong to the project, and there is no git on the PATH")
    listed = subprocess.run(  # safe.directory: the clone may belong to another user than the one who tests it
        [git, "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.fail(f"git cannot list the project's files (is this a clone?): {listed.stderr.strip()}")
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path for path in paths if path.is_file()]
