from __future__ import annotations

from pathlib import Path

import pytest
from support.demo import outcome

from steelyard.cli.demo.picture import draw


def test_a_png(tmp_path: Path) -> None:
    draw(outcome(), tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize("has_fault", [True, False])
def test_a_page_that_needs_nothing_else(tmp_path: Path, has_fault: bool) -> None:
    draw(outcome(has_fault=has_fault), tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert "&lt;trust&gt;" in page
    assert "<trust>" not in page
    for outside in ("<script", "<link", "src=", "@import"):
        assert outside not in page
