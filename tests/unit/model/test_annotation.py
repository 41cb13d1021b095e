"""Aliases are looked through, at any depth and with their arguments."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from steelyard.model import unaliased

ALIASES = """
type Items = AsyncIterator[int]
type Again = Items
type Of[T] = AsyncIterator[T]
"""


@pytest.mark.parametrize("annotation", [int, Any, None, list[int], int | None, AsyncIterator[int], "text"])
def test_what_is_no_alias_is_itself(annotation: Any) -> None:
    assert unaliased(annotation) is annotation


def test_numpys_own_alias() -> None:
    """A generic alias of ndarray up to numpy 2.4, a type alias after it."""
    plain = unaliased(npt.NDArray[np.float32])
    assert plain.__origin__ is np.ndarray
    assert plain.__args__[1] == np.dtype[np.float32]


# The statement itself is a syntax error before 3.12, so there is nothing to look through there.
if sys.version_info >= (3, 12):

    def test_type_statements() -> None:
        names: dict[str, Any] = {"AsyncIterator": AsyncIterator}
        exec(ALIASES, names)
        assert unaliased(names["Items"]) == AsyncIterator[int]
        assert unaliased(names["Again"]) == AsyncIterator[int]
        assert unaliased(names["Of"][str]) == AsyncIterator[str]
