from __future__ import annotations

from pathlib import Path

import pytest
from unit.cli.demo.made_up import outcome

from steelyard.cli.demo.picture import draw


def test_a_png(tmp_path: Path) -> None:
    draw(outcome(), tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_a_node_that_was_away_for_a_while_leaves_a_gap(tmp_path: Path) -> None:
    told = outcome()
    told.series[4].balancer.pop("mid-1")  # type: ignore[attr-defined]
    draw(told, tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000


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
