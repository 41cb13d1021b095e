"""How the texts of options become values."""

from __future__ import annotations

import pytest

from steelyard.cli.failure import ASKED_WRONGLY, Failure
from steelyard.cli.logs import log_to_stderr
from steelyard.cli.options import arguments, complete_policy, pairs, wait_s


def refused(call, *args) -> str:
    with pytest.raises(Failure) as caught:
        call(*args)
    assert caught.value.exit_code == ASKED_WRONGLY
    return str(caught.value)


def test_pairs() -> None:
    assert pairs(["a=1", "b=x=y", "c="], "--tag") == {"a": "1", "b": "x=y", "c": ""}
    assert refused(pairs, ["a"], "--tag") == "--tag takes key=value, not 'a'"
    assert refused(pairs, ["=1"], "--tag") == "--tag takes key=value, not '=1'"
    assert refused(pairs, ["a=1", "a=2"], "--hw") == "--hw a= is given twice"


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10.0), ("0", 0.0), ("0.5", 0.5), ("forever", None), ("inf", None)]
)
def test_waits(text: str, seconds: float | None) -> None:
    assert wait_s(text) == seconds


@pytest.mark.parametrize("text", ["-1", "nan", "soon", "", "1e999999999x"])
def test_waits_that_are_none(text: str) -> None:
    assert refused(wait_s, text) == (
        f"--registry-wait takes a number of seconds, 0 or more, or 'forever', not {text!r}"
    )


def test_arguments_are_a_list_or_an_object() -> None:
    assert arguments("[7, [1, 2]]") == [7, [1, 2]]
    assert arguments('{"user_id": 7}') == {"user_id": 7}
    assert refused(arguments, "[7").startswith("--json: this is not JSON: ")
    assert refused(arguments, "") != ""
    assert refused(arguments, "{'user_id': 7}").endswith("; JSON has double quotes")
    assert "double quotes" not in refused(arguments, '{"it\'s": ')
    assert refused(arguments, "[" * 100_000).startswith("--json: this is not JSON: ")
    assert refused(arguments, "7").endswith("not 7")
    assert len(refused(arguments, '"' + "x" * 1000 + '"')) < 200


def test_policies_are_completed() -> None:
    assert "dual" in complete_policy("")
    assert complete_policy("du") == ["dual"]


def test_an_unknown_log_level() -> None:
    assert refused(log_to_stderr, "loud") == "--log-level takes debug, info, warning, error, not 'loud'"
