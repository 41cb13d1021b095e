"""Service tokens and bearer tokens: what they may be, and that they are not shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steelyard.errors import ConfigError
from steelyard.security import Bearer, checked_tokens, fits
from steelyard_registry import Node

SECRET = "s3cret-s3cret"


def test_service_tokens() -> None:
    assert checked_tokens("token", None) == checked_tokens("token", False) == ()
    assert checked_tokens("token", SECRET) == (SECRET,)
    assert checked_tokens("token", [SECRET, "older-one"]) == (SECRET, "older-one")
    (one,), (two,) = checked_tokens("token", True), checked_tokens("token", True)
    assert one != two
    assert len(one) == 32


@pytest.mark.parametrize("bad", ["short", "with blank here", [], [SECRET, 7], 7, "ünicode-token", f"{SECRET}&"])
def test_what_is_no_service_token_is_not_shown(bad: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        checked_tokens("token", bad)
    assert not isinstance(bad, str) or bad not in str(raised.value)


def test_only_the_very_token_fits() -> None:
    assert fits([SECRET], SECRET)
    assert fits(["older-one", SECRET], SECRET)
    for wrong in (None, "", SECRET[:-1], SECRET + "x", SECRET.upper(), "é", "\ud800"):
        assert not fits([SECRET], wrong)
    assert not fits([], "")


def test_a_node_does_not_show_its_token() -> None:
    node = Node(interface="s", host="h", port=1, tags={"token": SECRET, "pool": "ads"})
    assert SECRET not in f"{node} {node!r}"
    assert "'pool': 'ads'" in repr(node)
    assert "'token': '***'" in repr(node)


def test_a_bearer_token_from_each_place(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    opened = Bearer(file=file).opened()
    assert opened() == "one"
    file.write_text("two-two")
    assert opened() == "two-two"
    assert Bearer(token=SECRET).opened()() == SECRET
    assert Bearer(source=lambda: "made").opened()() == "made"
    assert SECRET not in repr(Bearer(token=SECRET))


@pytest.mark.parametrize(
    "given", [{}, {"token": SECRET, "file": "f"}, {"token": "a b"}, {"token": "a\nb"}, {"file": ""}, {"source": 7}]
)
def test_what_is_no_bearer(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        Bearer(**given)
    assert SECRET not in str(raised.value)


def test_a_file_without_a_token_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Bearer(file=tmp_path / "none").opened()
    (tmp_path / "binary").write_bytes(b"\xff\x00secret")
    with pytest.raises(ConfigError, match="holds no token") as raised:
        Bearer(file=tmp_path / "binary").opened()
    assert "secret" not in str(raised.value)
