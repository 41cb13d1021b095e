"""Every module says what it is for, stays small, and exports what it claims to export.

The order of ``__all__`` is ruff's business (RUF022) and checked by ``./dev check``.
"""

from __future__ import annotations

import ast
from importlib import import_module

import pytest
from architecture.tree import ROOT, Module, exported_names, other_modules, product_modules

HARD_CAP_LINES = 600
TOP_LABEL_CAP = 32  # "about 25": what a newcomer can read in one look
PRODUCT = product_modules()
LABELS = [module for module in PRODUCT if module.is_package]


def test_the_packages_are_found() -> None:
    """Guards the other tests here: a rule over an empty list holds always."""
    assert {"steelyard", "steelyard.model", "steelyard_registry"} <= {module.name for module in LABELS}


def test_no_source_file_is_longer_than_the_hard_cap() -> None:
    lengths = {module.where: len(module.source.splitlines()) for module in [*PRODUCT, *other_modules()]}
    lengths["dev"] = len((ROOT / "dev").read_text(encoding="utf-8").splitlines())
    too_long = {where: lines for where, lines in lengths.items() if lines > HARD_CAP_LINES}
    assert not too_long, f"over {HARD_CAP_LINES} lines; cut along an idea: {too_long}"


def test_every_module_says_what_it_is_for() -> None:
    others = [module for module in other_modules() if not module.path.name.startswith("test_")]  # a test's name says it
    silent = [module.where for module in [*PRODUCT, *others] if not ast.get_docstring(module.tree)]
    assert not silent, "no docstring at the start of:\n" + "\n".join(silent)


@pytest.mark.parametrize("label", LABELS, ids=lambda module: module.name)
def test_a_label_exports_what_it_says(label: Module) -> None:
    exported = exported_names(label)
    assert exported is not None, f"{label.where} has no literal __all__"
    assert len(exported) == len(set(exported)), "a name stands twice in __all__"
    loaded = import_module(label.name)
    missing = [name for name in exported if not hasattr(loaded, name)]
    assert not missing, f"{label.where} exports names that it does not have: {missing}"


@pytest.mark.parametrize("label", LABELS, ids=lambda module: module.name)
def test_a_label_hides_nothing_that_it_imports(label: Module) -> None:
    """A public name imported into a label but absent from ``__all__`` can be used by accident and then must stay."""
    exported = exported_names(label) or []
    imported = [
        alias.asname or alias.name
        for node in label.tree.body
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    ]
    hidden = sorted(name for name in imported if not name.startswith("_") and name not in exported)
    assert not hidden, f"{label.where} imports names that it does not export: {hidden}"


def test_the_top_label_is_one_look_long() -> None:
    exported = exported_names(next(module for module in LABELS if module.name == "steelyard"))
    assert exported is not None
    assert len(exported) <= TOP_LABEL_CAP
