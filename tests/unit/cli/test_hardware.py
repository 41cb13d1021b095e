"""``steelyard hardware``: what it shows, and in which words."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from steelyard.cli import hardware as command
from steelyard.cli.app import app
from steelyard.errors import ConfigError


def test_every_line_is_named_as_it_is_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "load_nvml", lambda: None)
    seen = command.look({"cores": "4", "hw.numa": "3", "quota": "none"}, is_busy_asked=False)
    found = dict(line.split(maxsplit=1) for line in command.lines(seen))
    assert (found["hw.cores"], found["hw.numa"], found["hw.quota"]) == ("4", "3", "none")
    assert found["hw.accelerators"].startswith("none (NVML is not here: no NVIDIA driver, or nvidia-ml-py")


def test_json_has_the_facts_and_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "WATCHED_S", 0.05)
    result = CliRunner().invoke(app, ["hardware", "--json", "--hw", "model=Slide rule"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["hardware"]["model"] == "Slide rule"
    assert found["facts"]["hw.host"]
    assert 0.0 <= found["utilization"]["cpu"] <= 1.5
    assert set(found) == {"hardware", "facts", "zone", "utilization", "has_nvml"}


def test_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "WATCHED_S", 0.05)
    result = CliRunner().invoke(app, ["hardware"])
    assert result.exit_code == 0
    assert "hw.model" in result.stdout
    assert "load cpu" in result.stdout


def test_a_fact_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="hardware has no field 'colour'"):
        command.look({"colour": "red"}, is_busy_asked=False)
