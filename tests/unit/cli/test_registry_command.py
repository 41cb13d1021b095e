"""``steelyard registry``: shows every kind, repairs the embedded file, and refuses to repair what is none."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from typer.testing import CliRunner

from steelyard.cli.app import app
from steelyard_registry import Node, open_registry

NODE = Node(interface="ads.Ctr", host="10.0.0.1", port=20880)


def run(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["registry", *arguments])
    return done.exit_code, done.stdout, done.stderr


async def hold(url: str) -> None:
    """Leave an entry behind, as a killed process does."""
    registry = open_registry(url)
    await registry.open()
    await registry.register(NODE)
    registry._worker.own.clear()  # type: ignore[attr-defined]
    await registry.close()


async def test_entries_are_shown_and_repaired(tmp_path: Path) -> None:
    import asyncio

    path = tmp_path / "registry.db"
    url = f"embedded://{path}"
    await hold(url + "?lease_s=600")
    with sqlite3.connect(path) as connection:
        connection.execute(
            "INSERT INTO nodes SELECT 'z' || entry, interface, 'nonsense', beat_at_s, lease_s FROM nodes"
        )
        connection.execute(
            "INSERT INTO nodes SELECT 'y' || entry, interface, url, beat_at_s - 9e5, 1 FROM nodes LIMIT 1"
        )
    code, shown, _ = await asyncio.to_thread(run, "--registry", url, "--repair", "--json")
    report = json.loads(shown)
    assert (code, report["is_sound"], report["expired"], report["unreadable"]) == (0, True, 1, 1)
    code, shown, _ = await asyncio.to_thread(run, "--registry", url, "--json")
    (service,) = json.loads(shown)["services"]
    assert (code, service["interface"], service["nodes"]) == (
        0,
        "ads.Ctr",
        [{"address": "10.0.0.1:20880", "state": "ready"}],
    )
    code, shown, _ = await asyncio.to_thread(run, "--registry", url)
    assert "ads.Ctr: 1 node\n" in shown


def test_what_has_no_file_is_not_repaired(tmp_path: Path) -> None:
    code, _, told = run("--registry", "static://10.0.0.1:1", "--repair")
    assert (code, "it is for embedded://" in told) == (2, True)
    code, _, told = run("--registry", f"embedded://{tmp_path}/none.db", "--repair")
    assert (code, "nothing to repair" in told) == (1, True)
    (tmp_path / "text.db").write_text("hello, I am not a database, and long enough to be read as one" * 20)
    code, _, told = run("--registry", f"embedded://{tmp_path}/text.db", "--repair")
    assert (code, "is not a registry file" in told) == (1, True)
