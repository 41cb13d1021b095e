"""is_assignable says no only where it is certain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from steelyard.service.assignable import is_assignable

T = TypeVar("T")
UserId = NewType("UserId", int)


class Record(TypedDict):
    x: int


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (int, int),
        (bool, int),
        (int, float),
        (int, int | None),
        (None, int | None),
        (int, Optional[int]),  # noqa: UP045
        (list[int], Sequence[int]),
        (list[int], list),
        (list[Any], list[int]),
        (Annotated[int, "x"], int),
        (Literal["a"], str),
        (UserId, int),
        (T, int),
        (Any, int),
        (int, object),
        (Record, dict),
        (npt.NDArray[np.float32], np.ndarray),
        (np.ndarray, npt.NDArray[np.float32]),
    ],
)
def test_yes(narrow: Any, wide: Any) -> None:
    assert is_assignable(narrow, wide)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (int, str),
        (float, int),
        (int, bool),
        (int | None, int),
        (int, str | bytes),
        (list[int], list[str]),
        (list[int], dict[int, int]),
        (np.ndarray, list[float]),
        (npt.NDArray[np.float32], npt.NDArray[np.int32]),
    ],
)
def test_no(narrow: Any, wide: Any) -> None:
    assert not is_assignable(narrow, wide)
