"""How a contract of calls is matched with an implementation of batches.

The contract says what one call takes and gives; that is all a caller ever sees. The implementing method takes many
calls at once, so of each type its own side is:

| the call's | the batch's |
|---|---|
| ``np.ndarray`` | ``np.ndarray``, stacked on a new axis 0 |
| any other ``T`` | ``list[T]`` (or ``Sequence[T]``) |
| result ``np.ndarray`` | ``np.ndarray`` with one entry for each call on axis 0, or ``list[np.ndarray]`` |
| any other result ``R`` | ``list[R]``, or an array of numbers for ``int``, ``float`` and ``bool`` |

So a contract apart from its implementation can be typed truthfully on both sides. In a class that is its own contract
one annotation would have to say both; that is true for arrays alone, and everything else is refused there.
"""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable
from typing import Any

from steelyard.model import Batch, CallShape, MethodSpec, unaliased

from .assignable import is_assignable
from .declare import SETTINGS, Settings
from .signature import CallSignature

_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_NUMBERS = (int, float, bool, complex)


def batch_of(spec: MethodSpec, function: Callable[..., Any]) -> Batch | None:
    """How the method is batched: as the implementing method says, else as the contract does."""
    own = getattr(function, SETTINGS, None)
    if isinstance(own, Settings) and own.batch is not None and spec.shape is CallShape.UNARY:
        return own.batch
    return spec.batch


def batched_difference(spec: MethodSpec, signature: CallSignature | None, *, is_own: bool) -> str | None:
    """Why an implementation cannot serve *spec* batch by batch, or None. *is_own*: it is the contract's function."""
    if is_own:
        return _own_difference(spec)
    if signature is None:
        return None
    if signature.shape is not spec.shape:
        return "it is a stream, and a batch is answered at once"
    own = {parameter.name: parameter.annotation for parameter in signature.parameters}
    for parameter in spec.parameters:
        annotation = own.get(parameter.name, Any)
        if not _takes_many(parameter.annotation, annotation):
            wanted = "an array" if is_array(parameter.annotation) else f"a list of {_word(parameter.annotation)}"
            return f"a batch gives {parameter.name!r} as {wanted}"
    if not _gives_many(signature.returns, spec.returns):
        wanted = "an array or a list" if is_array(spec.returns) else f"a list of {_word(spec.returns)}"
        return f"a batch returns {wanted}, with one entry for each call"
    return None


def is_array(annotation: Any) -> bool:
    """Whether *annotation* is numpy's array, by its name: numpy is loaded only by who uses it."""
    annotation = _bare(annotation)
    kind = typing.get_origin(annotation) or annotation
    return isinstance(kind, type) and kind.__name__ == "ndarray" and kind.__module__.split(".")[0] == "numpy"


def _own_difference(spec: MethodSpec) -> str | None:
    for parameter in spec.parameters:
        if not (is_array(parameter.annotation) or _bare(parameter.annotation) is Any):
            return (
                f"it gets {parameter.name!r} as a list of {_word(parameter.annotation)}, which its own annotation "
                "denies; declare the contract apart (a Protocol), and the lists in the implementation"
            )
    if not (is_array(spec.returns) or _bare(spec.returns) is Any):
        return (
            f"it returns a list of {_word(spec.returns)}, which its own annotation denies; "
            "declare the contract apart (a Protocol), and the list in the implementation"
        )
    return None


def _takes_many(one: Any, many: Any) -> bool:
    many = _bare(many)
    if many is Any or many is object:
        return True
    if is_array(one):
        return is_array(many)
    return _is_list(many) and _element_fits(one, many)


def _gives_many(many: Any, one: Any) -> bool:
    many = _bare(many)
    if many is Any or many is object:
        return True
    if is_array(many):
        return is_array(one) or _bare(one) in (*_NUMBERS, Any)
    if typing.get_origin(many) not in _LISTS and many not in _LISTS:
        return False
    elements = typing.get_args(many)
    return not elements or _is_given(elements[0], one)


def _is_list(many: Any) -> bool:
    return many in _LISTS or typing.get_origin(many) in _LISTS


def _element_fits(one: Any, many: Any) -> bool:
    elements = typing.get_args(many)
    return not elements or is_assignable(one, elements[0])


def _is_given(element: Any, one: Any) -> bool:
    """An entry may also be an exception, for its call alone."""
    members = [each for each in typing.get_args(element) if not _is_error(each)] if _is_union(element) else [element]
    return all(is_assignable(each, one) for each in members)


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _is_error(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseException)


def _bare(annotation: Any) -> Any:
    annotation = unaliased(annotation)
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation


def _word(annotation: Any) -> str:
    annotation = _bare(annotation)
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)
