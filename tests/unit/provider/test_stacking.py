"""Many calls into one, and back."""

from __future__ import annotations

import numpy as np
import pytest

from steelyard.errors import InternalError
from steelyard.model import MethodSpec, Parameter
from steelyard.provider.stacking import form_of, ragged, split, stacked

SPEC = MethodSpec(name="score", service="t.S", parameters=(Parameter("user"), Parameter("x", np.ndarray)))


def test_arrays_are_stacked_and_the_rest_is_listed() -> None:
    calls = [(7, np.arange(3)), (8, np.arange(3, 6))]
    users, x = stacked(calls, form_of(calls[0]))
    assert users == [7, 8]
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_numbers_without_axes_become_one_axis() -> None:
    calls = [(np.float32(1.5),), (np.float32(2.5),)]
    (column,) = stacked(calls, form_of(calls[0]))
    assert (column.shape, column.dtype) == ((2,), np.float32)


@pytest.mark.parametrize(
    "other",
    [(1, np.zeros((3, 1))), (1, np.zeros(3, np.float32)), (1, [0.0, 0.0, 0.0])],
    ids=["shape", "dtype", "no array"],
)
def test_another_form_is_named(other: tuple[object, ...]) -> None:
    usual = form_of((1, np.zeros(3)))
    assert form_of(other) != usual
    error = ragged(SPEC, form_of(other), usual)
    assert "t.S.score: 'x' is " in error.message
    assert "stacked as float64[3]" in error.message


def test_results_are_split() -> None:
    assert split(SPEC, np.array([1.5, 2.5], np.float32), 2) == [1.5, 2.5]
    assert [type(each) for each in split(SPEC, np.array([1, 2]), 2)] == [int, int]
    rows = split(SPEC, np.eye(2), 2)
    assert [row.tolist() for row in rows] == [[1, 0], [0, 1]]
    error = ValueError("this one")
    assert split(SPEC, ["a", error], 2) == ["a", error]


@pytest.mark.parametrize("wrong", [3, np.array(3), {"a": 1, "b": 2}, "ab", None])
def test_what_is_no_batch_of_results_is_named(wrong: object) -> None:
    with pytest.raises(InternalError, match=r"t\.S\.score: a batch of 2 calls is answered with an array or a list"):
        split(SPEC, wrong, 2)


def test_too_few_results() -> None:
    with pytest.raises(InternalError, match="1 results for a batch of 2 calls") as caught:
        split(SPEC, np.zeros((1, 5)), 2)
    assert caught.value.may_have_run is True
