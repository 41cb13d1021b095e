"""The committed files: written, read, and made into a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard.errors import ConfigError
from steelyard.sim import Result, plan, regenerate, run
from steelyard.sim.ledger import page, read, rounded, written
from steelyard.sim.picture import check_picture, draw


def test_what_is_written_is_read(tmp_path: Path) -> None:
    results = [
        Result("sinkhole", {"error": 0.1, "load": 0.3}, "dual", 1, {"success": 0.123456789, "p99_ms": 12.0}, 77),
        Result("pause", {}, "p2c", 2, {}, 5),
    ]
    path = tmp_path / "results.csv"
    path.write_text(written(results), encoding="utf-8")
    first, second = read(path)
    assert first.metrics == {"success": 0.12346, "p99_ms": 12.0}
    assert (first.variant, first.policy, first.seed, first.calls) == ({"error": 0.1, "load": 0.3}, "dual", 1, 77)
    assert (second.scenario, second.variant, second.metrics) == ("pause", {}, {})


def test_another_versions_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("scenario,old\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="other metrics than this version's"):
        read(path)


def test_five_digits() -> None:
    assert rounded(123456.789) == 123460.0
    assert rounded(0.000123456) == 0.00012346


def test_a_page_says_what_is_not_met_and_carries_notes() -> None:
    results = [Result("pause", {}, "dual", seed, {"success": 0.9, "others_success": 0.5}, 9) for seed in (1, 2)]
    text = page(results, {"pause": "A remark."})
    assert "| [pause](#pause) | calls to the others within 1 s | >= 0.999 | 0.5 |  | NOT MET |" in text
    assert "Not met: calls to the others within 1 s (>= 0.999): 0.5" in text
    assert "A remark." in text
    assert "2 seeds each" in text


def test_regenerating_a_part_keeps_the_rest(tmp_path: Path) -> None:
    kept = [
        Result("sinkhole", {"error": 0.1, "load": 0.3}, "dual", 1, {"success": 1.0}, 7),
        Result("pause", {}, "random", 1, {"success": 0.5}, 7),
        Result("pause", {}, "p2c", 1, {"success": 0.123}, 7),
    ]
    (tmp_path / "results.csv").write_text(written(kept), encoding="utf-8")
    (tmp_path / "results-notes.md").write_text("# Notes\n\n## sinkhole\n\nDeep.\n", encoding="utf-8")
    told: list[tuple[int, int]] = []
    regenerate(
        tmp_path,
        names=("pause",),
        seeds=1,
        policies=("p2c", "dual"),
        on_step=lambda step: told.append((step.done, step.total)),
    )
    lines = read(tmp_path / "results.csv")
    assert [(line.scenario, line.policy) for line in lines] == [
        ("pause", "dual"),
        ("pause", "p2c"),
        ("pause", "random"),
        ("sinkhole", "dual"),
    ]
    assert lines[1].metrics["success"] > 0.9
    assert told == [(1, 2), (2, 2)]
    assert "Deep." in (tmp_path / "results.md").read_text(encoding="utf-8")


def test_pictures(tmp_path: Path) -> None:
    small = tmp_path / "small.toml"
    text = 'name = "small"\ntext = "."\nseconds = 9\nnodes = [{ name = "node", count = 3 }]\n[measure]\nfrom_s = 2\n'
    small.write_text(text, encoding="utf-8")
    jobs = plan([small], ["random", "dual"], 1)
    results = [run(job, with_loads=True) for job in jobs]
    for ending in (".png", ".html"):
        path = tmp_path / f"picture{ending}"
        check_picture(path)
        draw(results, path)
        assert path.stat().st_size > 8_000
    assert "<svg" in path.read_text(encoding="utf-8")
    assert "watched" not in path.read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match=r"not 'picture\.gif'"):
        check_picture(tmp_path / "picture.gif")


def test_a_picture_shows_the_nodes_with_a_fault_and_when(tmp_path: Path) -> None:
    path = tmp_path / "pause.html"
    result = run(plan(["pause"], ["random"], 1)[0], with_loads=True)
    assert len(result.watched) == 1
    assert result.turns_s == (20.0, 50.0)
    draw([result], path)
    assert "<!-- watched -->" in path.read_text(encoding="utf-8")
