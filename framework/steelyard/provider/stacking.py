"""Arguments of many calls into those of one, and the results back.

Arrays are stacked on a new axis 0, everything else is put into lists. Stacking wants arrays of one shape and dtype;
what numpy says about a ragged batch names neither the call nor the argument, so it is checked before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steelyard.errors import InternalError, InvalidArgument
from steelyard.model import MethodSpec

Form = tuple[tuple[int, ...] | str, ...]
"""Of each array among the arguments its shape and dtype, one after the other; of everything else nothing."""


def form_of(args: Sequence[Any]) -> Form:
    """What has to be equal for calls to be in one batch."""
    form: list[tuple[int, ...] | str] = []
    for argument in args:
        # By its members and not by its class: numpy is loaded by whoever sends or takes an array, and not by this.
        shape, dtype = getattr(argument, "shape", None), getattr(argument, "dtype", None)
        if shape is not None and dtype is not None and hasattr(argument, "__array__"):
            form += (tuple(shape), str(dtype))
        else:
            form += ((), "")
    return tuple(form)


def ragged(spec: MethodSpec, form: Form, usual: Form) -> InvalidArgument:
    """Why a call of *form* is refused by a method whose calls have the form *usual*."""
    for at, parameter in enumerate(spec.parameters):
        own, other = form[2 * at : 2 * at + 2], usual[2 * at : 2 * at + 2]
        if own != other:
            return InvalidArgument(
                f"{spec.qualified_name}: {parameter.name!r} is {_words(own)}, and the calls of this method are stacked "
                f"as {_words(other)}; send that, or declare Batch(ragged='split')"
            )
    return InvalidArgument(f"{spec.qualified_name}: arrays of another shape cannot be stacked")


def stacked(calls: Sequence[Sequence[Any]], form: Form) -> list[Any]:
    """The arguments of one call of the implementation."""
    columns: list[Any] = []
    for at, column in enumerate(zip(*calls, strict=True)):
        if form[2 * at + 1] == "":
            columns.append(list(column))
        else:
            import numpy as np

            columns.append(np.stack(column))
    return columns


def split(spec: MethodSpec, results: Any, count: int) -> list[Any]:
    """One result for each of *count* calls; an entry may be an exception, for its call alone. Raises InternalError for
    what is no batch of results."""
    is_array = hasattr(results, "__array__") and getattr(results, "ndim", 0) > 0
    if not is_array and not isinstance(results, list | tuple):
        raise InternalError(
            f"{spec.qualified_name}: a batch of {count} calls is answered with an array or a list, "
            f"not {type(results).__name__}",
            may_have_run=True,
        )
    if len(results) != count:
        raise InternalError(
            f"{spec.qualified_name}: {len(results)} results for a batch of {count} calls", may_have_run=True
        )
    return [_single(each) for each in results] if is_array else list(results)


def _single(entry: Any) -> Any:
    """A number out of an array of numbers is a plain number again; a row stays an array."""
    return entry if getattr(entry, "ndim", 1) else entry.item()


def _words(form: Sequence[Any]) -> str:
    shape, dtype = form
    return f"{dtype}{list(shape)}" if dtype else "no array"
