"""Folders are imported by their label: ``from steelyard.balance import X``, never by an inner file from outside.

import-linter knows which floor may see which, but not through which door; this walks the syntax trees for that. A
drawer is a file or folder right under ``steelyard``; the registry package is one drawer, with a second label for its
pure records (``steelyard_registry.node``), because the label of the whole also leads to the backends. The unit tests
of a drawer (``tests/unit/<drawer>``) stand inside it; every other test, benchmark and example stands outside, but for
the one that measures the parts of a call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from architecture.tree import PACKAGES, Module, exported_names, other_modules, product_modules

LABELS_OF_THE_REGISTRY = {"steelyard_registry", "steelyard_registry.node"}
TOP_FLOOR = {"steelyard", "steelyard.__main__", "steelyard.cli", "steelyard.dashboard"}
INSIDE = {"benchmarks.rpc_parts"}
FILES = {module.name: module for module in product_modules()}


def drawer(name: str) -> str:
    """The drawer that a dotted module name lies in; a unit test lies in the drawer that it tests."""
    parts = name.split(".")
    if parts[:2] == ["tests", "unit"]:
        room = parts[2].removeprefix("test_")
        return room if room == "registry" else f"steelyard.{room}"
    if parts[0] == "steelyard_registry":
        return "registry"
    return ".".join(parts[:2]) if parts[0] == "steelyard" else name


def imported(module: Module) -> Iterator[tuple[int, str]]:
    """Line and dotted name of every module of ours that is imported; ``from folder import file`` counts as the file."""
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
            exported = (FILES[base].is_package and exported_names(FILES[base])) if base in FILES else []
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield node.lineno, inner if inner in FILES and alias.name not in (exported or []) else base


def is_label(name: str) -> bool:
    if name.split(".")[0] == "steelyard_registry":
        return name in LABELS_OF_THE_REGISTRY
    return name.count(".") <= 1


def violations(module: Module) -> list[str]:
    found = []
    for line, name in imported(module):
        if name.split(".")[0] not in PACKAGES or drawer(name) == drawer(module.name):
            continue
        if not is_label(name):
            found.append(f"{module.where}:{line}: imports {name}, an inner file of {drawer(name)}")
        elif name == "steelyard" and module.name in FILES and drawer(module.name) not in TOP_FLOOR:
            found.append(f"{module.where}:{line}: imports from the top label, which stands above every floor")
    return found


def test_nobody_reaches_past_a_label() -> None:
    modules = [module for module in [*FILES.values(), *other_modules()] if module.name not in INSIDE]
    found = [violation for module in modules for violation in violations(module)]
    assert not found, "\n".join(found)


def test_relative_imports_stay_in_their_drawer() -> None:
    """Inside a folder ``from .x import y``; out of it by label, so that a reader sees where the border is."""
    leaving = [
        f"{module.where}:{node.lineno}"
        for module in FILES.values()
        if module.name != "steelyard"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.level
        # One level up from a package is the package itself, and from a file the folder that it lies in.
        if module.name.count(".") + module.is_package - node.level < (0 if drawer(module.name) == "registry" else 1)
    ]
    assert not leaving, "relative imports that leave their drawer:\n" + "\n".join(leaving)


@pytest.mark.parametrize(
    ("name", "source", "is_bad"),
    [
        ("steelyard.wire.channel", "from steelyard.model import Reply", False),
        ("steelyard.wire.channel", "from steelyard.model.call import Reply", True),
        ("steelyard.wire.channel", "import steelyard.model.call", True),
        ("steelyard.wire.channel", "from steelyard.model import call", True),
        ("steelyard.wire.channel", "from steelyard import model", False),
        ("steelyard.wire.channel", "from steelyard import Provider", True),
        ("steelyard.model.spec", "from .call import Reply", False),
        ("steelyard.model.spec", "def f():\n    from steelyard.invoke.stack import Stack", True),
        ("steelyard.cluster.directory", "from steelyard_registry.node import Node", False),
        ("steelyard.cluster.directory", "from steelyard_registry.base import Registry", True),
        ("tests.unit.model.test_call", "from steelyard.model.call import Reply", False),
        ("tests.integration.test_x", "from steelyard.model.call import Reply", True),
        ("tests.unit.registry.test_base", "from steelyard_registry.base import Registry", False),
        ("examples.ctr.model", "from steelyard import Provider", False),
    ],
)
def test_the_rule_itself(name: str, source: str, is_bad: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("architecture.tree.ROOT", tmp_path)
    path = tmp_path / "example.py"
    path.write_text(source, encoding="utf-8")
    assert bool(violations(Module(name, path))) is is_bad
