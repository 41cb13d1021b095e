"""What an import costs: a process that only declares a contract must not pay for clients and servers.

Each import runs in a process of its own, because in this one everything is loaded already. Counted are modules and
not seconds: a count is the same on every machine.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "google.protobuf",
    "grpc",
    "kazoo",
    "numpy",
    "opentelemetry.sdk",
    "sqlite3",
    "typer",
    "rich",
    "sklearn",
    "uvloop",
}
PURE = ("steelyard.balance", "steelyard.errors", "steelyard.guard", "steelyard.invoke", "steelyard.model")


PROBE = """
import sys
before = set(sys.modules)
{statement}
loaded = sorted(set(sys.modules) - before)
import json
print(json.dumps(loaded))
"""


def loaded_by(statement: str) -> set[str]:
    """The modules that *statement* loads, beyond those of a bare interpreter."""
    probe = [sys.executable, "-c", PROBE.format(statement=statement)]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("statement", "most_modules"),
    [
        ("import steelyard", 110),
        ("import steelyard_registry", 150),
        ("from steelyard import service, method, RpcError", 150),
    ],
)
def test_an_import_is_light(statement: str, most_modules: int) -> None:
    loaded = loaded_by(statement)
    assert not loaded & HEAVY
    assert len(loaded) <= most_modules, f"{len(loaded)} modules; among them {sorted(loaded)}"


@pytest.mark.parametrize("module", PURE)
def test_laws_and_records_load_nothing_heavy(module: str) -> None:
    assert not loaded_by(f"import {module}") & (HEAVY - {"numpy"})


def test_the_probe_sees_what_is_loaded() -> None:
    assert "sqlite3" in loaded_by("import sqlite3")
