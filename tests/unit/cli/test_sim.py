"""The command ``steelyard sim``: tables to standard output, the rest to standard error, clear errors first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from typer.testing import CliRunner
from typer.testing import Result as Shown

from steelyard.cli.app import app
from steelyard.sim import Result, draw

SMALL = """
name = "mine"
text = "A small one."
seconds = 8
nodes = [{ name = "node", count = 2 }]
[measure]
from_s = 2
[[gates]]
name = "everything succeeds"
metric = "success"
at_least = 1.0
[[gates]]
name = "impossible"
metric = "p50_ms"
at_most = 0.001
"""


def sim(*arguments: str) -> Shown:
    return CliRunner().invoke(app, ["sim", *arguments])


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL, encoding="utf-8")
    return str(path)


def test_without_a_name_the_shipped_scenarios_are_listed() -> None:
    shown = sim()
    assert shown.exit_code == 0
    assert "sinkhole" in shown.stdout
    assert "steelyard sim SCENARIO" in shown.stderr


def test_tables_gates_and_progress(small: str) -> None:
    shown = sim(small, "--policy", "dual,random", "--seeds", "2", "--jobs", "1")
    assert shown.exit_code == 0
    assert "mine: A small one." in shown.stdout
    assert "random" in shown.stdout
    assert "NOT MET" in shown.stdout
    assert "4 of 4: mine random, seed 2" in shown.stderr
    assert "left" not in shown.stderr


def test_differences_to_dual(small: str) -> None:
    shown = sim(small, "--policy", "dual,random", "--seeds", "2", "--jobs", "1", "--differences")
    [row] = [line for line in shown.stdout.splitlines() if line.startswith("random")]
    assert "±" in row
    assert "+" in row or "-" in row


def test_gates_can_decide_the_exit_code(small: str) -> None:
    shown = sim(small, "--policy", "dual", "--seeds", "1", "--jobs", "1", "--gates")
    assert shown.exit_code == 1
    assert "1 gate not met" in shown.stderr
    assert "not run" not in shown.stderr


def test_gates_of_a_policy_that_was_not_run_say_which_one_they_need(small: str) -> None:
    shown = sim(small, "--policy", "random", "--seeds", "1", "--jobs", "1", "--gates")
    assert shown.exit_code == 1
    assert "2 gates not met; they speak of dual, which was not run" in shown.stderr


def test_json_is_every_run(small: str, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    assert sim(small, "--policy", "dual,p2c", "--seeds", "2", "--jobs", "1", "--json", str(path)).exit_code == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    assert [(run["policy"], run["seed"]) for run in document] == [("dual", 1), ("p2c", 1), ("dual", 2), ("p2c", 2)]
    assert document[0]["metrics"]["success"] == 1.0
    printed = sim(small, "--policy", "dual", "--seeds", "1", "--jobs", "1", "--json", "-")
    assert json.loads(printed.stdout)[0]["scenario"] == "mine"


def test_two_processes_give_the_same_numbers(small: str) -> None:
    one, two = (
        sim(small, "--policy", "dual,p2c", "--seeds", "2", "--jobs", jobs, "--json", "-") for jobs in ("1", "2")
    )
    first, second = (json.loads(shown.stdout) for shown in (one, two))
    assert [run["metrics"] for run in first] == [run["metrics"] for run in second]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sinkhol"], "there is no scenario 'sinkhol'"),
        (["pause", "--policy", "dul"], "there is no policy 'dul'"),
        (["pause", "--policy", "dual:gian=1"], "has no setting 'gian'"),
        (["pause", "--seeds", "0"], "--seeds: at least 1"),
        (["pause", "--jobs", "0"], "--jobs: at least 1"),
        (["pause", "--plot", "picture.gif"], "--plot takes a file ending in"),
        (["pause", "--plot", "nowhere/picture.svg"], "--plot: there is no folder 'nowhere'"),
        (["pause", "--json", "nowhere/runs.json"], "--json: there is no folder 'nowhere'"),
        (["--report", "nowhere"], "--report takes the folder"),
    ],
)
def test_what_is_asked_wrongly_is_said_at_once(arguments: list[str], message: str) -> None:
    shown = sim(*arguments)
    assert shown.exit_code == 2
    assert message in shown.stderr
    assert not shown.stdout


def test_a_panel_shows_the_busiest_node_of_any_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have one scale, and the first panel's is not enough for it."""
    drawn: list[Figure] = []

    class Kept(Figure):
        def savefig(self, *arguments: Any, **settings: Any) -> None:
            drawn.append(self)

    monkeypatch.setattr("matplotlib.figure.Figure", Kept)
    results = [
        Result(scenario="mine", variant={}, policy=policy, seed=1, metrics={}, calls=1, loads=loads, nodes=("a-1",))
        for policy, loads in (("dual", ((0.1,), (0.2,))), ("p2c", ((0.5,), (0.9,))))
    ]
    draw(results, tmp_path / "picture.png")
    for panel in drawn[0].axes:
        low, high = panel.get_ylim()
        assert low == 0.0
        assert high > 0.9
