"""One JSON document, and JSON for people."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.cli.output import error_document, plain, pretty, write_document
from steelyard.errors import ConfigError, DeadlineExceeded, RemoteError


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    label: str = "p"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (2**70, 2**70),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (b"\x00\xff", "AP8="),
        (datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC), "2024-02-29T00:00:00+00:00"),
        (datetime.timedelta(seconds=1.5), 1.5),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (decimal.Decimal("1.50"), "1.50"),
        (Colour.RED, "red"),
        (Point(1), {"x": 1, "label": "p"}),
        ((1, [2, {3}]), [1, [2, [3]]]),
        ({1: "a", None: "b", (1, 2): "c"}, {"1": "a", "null": "b", "[1, 2]": "c"}),
        (np.float32(1.5), 1.5),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([1.0, math.nan]), [1.0, "NaN"]),
    ],
)
def test_every_value_has_a_form(value: Any, shown: Any) -> None:
    assert plain(value) == shown
    assert type(plain(value)) is type(shown)
    json.dumps(plain(value), allow_nan=False)


def test_what_was_changed_is_noted() -> None:
    notes: list[str] = []
    plain({"a": b"x", "b": np.zeros((3, 4), np.float32), "c": np.float64(1)}, notes.append)
    assert notes == ["bytes are shown as base64", "array of float32, shape 3x4"]


def test_a_document_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_document({"text": "zwei\nZeilen: ä", "bytes": b"x"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"text": "zwei\nZeilen: ä", "bytes": "eA=="}


def test_errors_are_documents_too() -> None:
    assert error_document(DeadlineExceeded("late", node="n@h:1", is_remote=True)) == {
        "status": "DEADLINE_EXCEEDED",
        "message": "late",
        "node": "n@h:1",
        "is_remote": True,
        "is_declared": False,
    }
    assert error_document(RemoteError("NoSuchUser: 8", details=b"x"))["is_declared"] is True
    assert error_document(ConfigError("bad"))["status"] is None


def test_short_values_stay_on_a_line_and_long_lists_are_filled() -> None:
    assert pretty({"a": [1, 2]}, 80) == '{"a": [1, 2]}'
    text = pretty(list(range(100)), 40)
    assert text.count("\n") < 20
    assert max(map(len, text.splitlines())) <= 40
    assert pretty([[1] * 20, [2] * 20], 40).startswith("[\n  [\n    1, 1,")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
)


@given(_JSON, st.integers(1, 120))
def test_what_is_pretty_is_still_the_same_json(value: Any, width: int) -> None:
    assert json.loads(pretty(value, width)) == value
