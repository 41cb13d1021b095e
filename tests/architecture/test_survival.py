"""Every line of "what a registry must survive" names its tests, and they are there."""

from __future__ import annotations

import ast
import re

from .tree import ROOT

PAGE = ROOT / "docs" / "registry.md"
LINES = 17


def rows() -> list[tuple[str, list[str]]]:
    section = PAGE.read_text("utf-8").partition("## What it must survive")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:]
    return [(line, re.findall(r"`([^`]+)`", tests)) for line, tests in found]


def test_the_table_is_there() -> None:
    assert len(rows()) >= LINES


def test_every_line_has_tests_that_exist() -> None:
    for line, tests in rows():
        assert tests, line
        for named in tests:
            path, _, test = named.partition("::")
            file = ROOT / "tests" / path
            assert file.is_file(), named
            tree = ast.parse(file.read_text("utf-8"))
            there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert test in there, named
