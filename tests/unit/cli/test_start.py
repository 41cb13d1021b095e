"""Starting the command line: what it loads, what it lists, and the demonstration that may be missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

HEAVY = {
    "google.protobuf",
    "grpc",
    "kazoo",
    "msgpack",
    "numpy",
    "opentelemetry",
    "psutil",
    "sklearn",
    "sqlite3",
    "uvloop",
}

PROBE = """
import json, sys
from steelyard.cli import main
code = None
try:
    main({arguments!r})
except SystemExit as done:
    code = done.code
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


def run(*arguments: str, before: str = "") -> tuple[str, int, set[str]]:
    """Standard output, exit code and loaded modules of one command line in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", before + PROBE.format(arguments=list(arguments))],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "100", "TERM": "dumb"},
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    text = done.stdout + "\n".join(done.stderr.splitlines()[:-1])
    return text, code or 0, set(modules)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["version"], ["nodes", "--help"], ["serve", "-h"]])
def test_help_and_version_load_nothing_heavy(arguments: list[str]) -> None:
    text, code, modules = run(*arguments)
    assert code == 0
    assert "teelyard" in text
    assert not modules & HEAVY


def test_help_lists_the_commands_in_the_order_of_use() -> None:
    text, _, modules = run("--help")
    listed = re.findall(r"^\W*(\w+) +[A-Z]", text[text.index("Commands") :], re.MULTILINE)
    assert listed == ["serve", "call", "nodes", "sim", "registry", "hardware", "demo", "version"]
    assert not any(name.startswith("steelyard.cli.demo") for name in modules)


def test_help_keeps_brackets() -> None:
    """Rich would take ``[x]`` for markup and swallow it."""
    text, _, _ = run("call", "--help")
    assert "[7, [0.1, 0.2, 0.3, 0.4]]" in text
    text, _, _ = run("serve", "--help")
    assert "[one such document each]" in " ".join(text.split())
    text, _, _ = run("nodes", "--help")
    assert '"nodes": [{"address"' in text


def test_the_demonstration_has_its_own_options() -> None:
    text, code, _ = run("demo", "--help")
    assert code == 0
    assert "--seconds" in text
    assert "--no-fault" in text


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("import sys; sys.modules['steelyard.cli.demo'] = None\n", "the demonstration cannot be loaded"),
        (
            "import sys, types; sys.modules['steelyard.cli.demo'] = types.ModuleType('steelyard.cli.demo')\n",
            "the demonstration cannot be loaded",
        ),
    ],
)
def test_a_missing_demonstration_is_one_line(before: str, message: str) -> None:
    text, code, _ = run("demo", "--seconds", "1", before=before)
    assert code == 1
    assert message in text
    assert "pip install 'steelyard[examples]'" in text
    assert "Traceback" not in text


def test_an_unknown_command_is_asked_wrongly() -> None:
    text, code, _ = run("bogus")
    assert code == 2
    assert "bogus" in text


@pytest.mark.parametrize(
    ("words", "count", "expected"),
    [
        ("steelyard nodes --policy ", 3, {"dual", "random"}),
        ("steelyard sim sink", 2, {"sinkhole"}),
        ("steelyard sim sinkhole --policy dual,p2", 4, {"dual,p2c"}),
        ("steelyard serve m:C --registry emb", 4, {"embedded://"}),
        ("steelyard serve m:C --hw kind=", 4, {"kind=cpu", "kind=gpu"}),
        ("steelyard serve m:C --log-level d", 4, {"debug"}),
        ("steelyard ", 1, {"serve", "call", "nodes", "demo", "version"}),
    ],
)
def test_shell_completion(words: str, count: int, expected: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "steelyard"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "_STEELYARD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)},
    )
    assert expected <= set(done.stdout.split())
