"""No file imports itself by way of others, also not from within a function.

import-linter keeps the floors; within a floor, and within a folder, two files that need each other are one file, or
hide a third that both should stand on. Imports for type checkers alone do not count: nothing runs them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import pytest
from architecture.tree import Module, product_modules


def test_no_file_imports_itself_by_way_of_others() -> None:
    modules = {module.name: module for module in product_modules()}
    assert len(modules) > 100  # guards the rule: over nothing it holds always
    imports = {name: set(imported(module, modules.keys())) - {name} for name, module in modules.items()}
    cycle = cycle_of(imports)
    assert cycle is None, " imports ".join(cycle or ())


def test_the_rule_can_be_broken() -> None:
    assert cycle_of({"a": {"b"}, "b": {"c"}, "c": set()}) is None
    assert sorted(set(cycle_of({"a": {"b"}, "b": {"c"}, "c": {"a"}}) or ())) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from .b import x", {"pack.b"}),
        ("from . import b", {"pack.b"}),
        ("from pack import b, y", {"pack.b", "pack"}),
        ("def f():\n    import pack.b", {"pack.b"}),
        ("if TYPE_CHECKING:\n    from .b import x", set()),
        ("import os", set()),
    ],
)
def test_imports_are_found(source: str, found: set[str]) -> None:
    assert set(imports_of(ast.parse(source), "pack", {"pack", "pack.a", "pack.b"})) == found


def cycle_of(imports: dict[str, set[str]]) -> list[str] | None:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return None


def imported(module: Module, names: set[str]) -> Iterator[str]:
    package = module.name if module.is_package else module.name.rpartition(".")[0]
    return imports_of(module.tree, package, names)


def imports_of(tree: ast.AST, package: str, names: set[str]) -> Iterator[str]:
    for node in running(tree):
        if isinstance(node, ast.ImportFrom):
            folder = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*folder, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield from {whole if whole in names else base} & set(names)
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & set(names)


def running(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree that are run, or may be."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from running(child)
