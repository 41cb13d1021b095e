"""The project's papers agree with one another, and name nothing that is true on one machine only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from architecture.tree import ROOT, pyproject, tracked_files

import steelyard

# Written in pieces, so that this file does not name them either.
MACHINE_PATH = re.compile(r"(?<![\w/.])/(?:" + "|".join(("work", "root", "home", "tmp")) + r")/[\w.]")
INDEX_HOST = re.compile(
    "|".join(
        (r"pypi\." + "org", "python" + "hosted", r"npmjs\." + "org", r"debian\." + "org/debian", r"proxy\.gol" + "ang")
    )
)
LOCK_FILES = {"poetry.lock", "uv.lock", "Pipfile.lock", "pdm.lock", "package-lock.json", "yarn.lock", "pylock.toml"}


def text_of(path: Path) -> str | None:
    """A file's text, or None for a binary file."""
    content = path.read_bytes()
    return None if b"\0" in content else content.decode("utf-8", errors="replace")


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked_files()
        for number, line in enumerate((text_of(path) or "").splitlines(), 1)
        if pattern.search(line)
    ]


def test_the_versions_agree() -> None:
    assert pyproject()["project"]["version"] == steelyard.__version__


def test_the_changelog_leads_with_what_comes_next() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[:1] == ["[Unreleased]"]


def test_the_license_is_there_and_named() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert pyproject()["project"]["license"] == "Apache-2.0"


def test_no_file_names_a_path_of_one_machine() -> None:
    found = lines_with(MACHINE_PATH)
    assert not found, "\n".join(found)


def test_no_file_records_where_packages_come_from() -> None:
    found = lines_with(INDEX_HOST)
    found += [str(path.relative_to(ROOT)) for path in tracked_files() if path.name in LOCK_FILES]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("pattern", "line", "is_found"),
    [
        (MACHINE_PATH, "see /ho" + "me/someone/x", True),
        (MACHINE_PATH, "zookeeper://127.0.0.1:2181/ro" + "ot/x", False),
        (MACHINE_PATH, "embedded:///tm" + "p/x.db", False),
        (INDEX_HOST, "https://files.python" + "hosted.org/x.whl", True),
    ],
)
def test_the_patterns_find_what_they_should(pattern: re.Pattern[str], line: str, is_found: bool) -> None:
    assert bool(pattern.search(line)) is is_found


def test_every_example_explains_itself() -> None:
    folders = {path.relative_to(ROOT).parts[1] for path in tracked_files() if path.is_relative_to(ROOT / "examples")}
    silent = [name for name in sorted(folders) if (ROOT / "examples" / name).is_dir() and not readme_of(name)]
    assert not silent, f"examples without a README.md: {silent}"


def readme_of(example: str) -> str:
    path = ROOT / "examples" / example / "README.md"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""
