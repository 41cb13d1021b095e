"""One line and an exit code, whatever goes wrong."""

from __future__ import annotations

import pytest
import typer

from steelyard.cli.failure import Failure, reported, usage
from steelyard.cluster import open_at
from steelyard.errors import (
    ConfigError,
    ContractError,
    InvalidArgument,
    ListenError,
    NoProvider,
    RegistryUnavailable,
    RemoteError,
)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (usage("no such thing"), 2, "steelyard serve: no such thing"),
        (Failure("it broke"), 1, "steelyard serve: it broke"),
        (ConfigError("port: 0 to 65535"), 2, "steelyard serve: port: 0 to 65535"),
        (ContractError("two\n  lines"), 2, "steelyard serve: two lines"),
        (RegistryUnavailable("nobody there"), 1, "steelyard serve: nobody there"),
        (ListenError("port taken"), 1, "steelyard serve: port taken"),
        (InvalidArgument("wrong", node="a@b:1"), 1, "INVALID_ARGUMENT: wrong (node a@b:1)"),
        (RemoteError("ValueError: x", node="a@b:1"), 1, "UNKNOWN: ValueError: x (node a@b:1)"),
        (
            RemoteError("EmptyBasket: 7", node="a@b:1", details=b"x"),
            1,
            "EmptyBasket: 7 (declared by the service; node a@b:1)",
        ),
        (NoProvider("none"), 1, "UNAVAILABLE: none"),
        (ZeroDivisionError("x"), 1, "steelyard serve: internal error: ZeroDivisionError: x (--debug shows where)"),
        (KeyboardInterrupt(), 130, "steelyard serve: interrupted"),
    ],
)
def test_an_error_is_a_line_and_a_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as left, reported("serve"):
        raise error
    assert left.value.exit_code == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", line + "\n")


def test_debug_adds_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), reported("serve", is_debug=True):
        raise ZeroDivisionError("x")
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_document_is_all_that_is_printed_unless_a_person_looks_on(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    told: list[BaseException] = []
    error = ConfigError("bad")
    with pytest.raises(typer.Exit) as left, reported("nodes", on_error=told.append):
        raise error
    assert (told, left.value.exit_code) == ([error], 2)
    assert capsys.readouterr().err == ("steelyard nodes: bad\n" if is_terminal else "")


def test_an_exit_passes_through() -> None:
    with pytest.raises(typer.Exit) as left, reported("nodes"):
        raise typer.Exit(3)
    assert left.value.exit_code == 3


@pytest.mark.parametrize(
    ("command", "advice"), [("call", ", or use --registry-wait forever to wait for it"), ("demo", "")]
)
async def test_advice_names_options(
    command: str, advice: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's own words, so that this notices when they change."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    told: list[str] = []
    with pytest.raises(typer.Exit), reported(command, on_error=lambda error: told.append(str(error))):
        await open_at("zookeeper://127.0.0.1:1", 0.05)
    line = capsys.readouterr().err.rstrip()
    assert line.endswith(f"that this machine reaches it{advice}")
    assert "wait_s" not in line
    assert told == [line.removeprefix(f"steelyard {command}: ")]
