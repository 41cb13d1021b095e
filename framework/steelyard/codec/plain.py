"""The plain form of arguments, for callers who have no contract: the command line, a console, another language.

Typed callers send a list, strictly typed. A caller without the contract sends a **map**: names to values, and under
``*`` the arguments by position,

    {"user_id": 7, "features": [0.1, 0.2]}        {"*": [7, [0.1, 0.2]]}        {"*": [7], "features": [0.1, 0.2]}

and has perhaps only JSON's types to say them with. So here, and only here, text may stand for bytes (base64),
datetimes and durations (ISO 8601), UUIDs and Decimals, lists for arrays, and text for the number that is a map's key.
What arrives at the method is the same as from a typed caller, or InvalidArgument.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from steelyard.errors import InvalidArgument
from steelyard.model import Parameter, unaliased

from .mismatch import Mismatch, plainly, type_name
from .plan import Convert, _hook, _own_type, _refusal, compile_plan

POSITIONAL: Final = "*"
"""The key under which arguments by position stand; no parameter can have this name."""

_ABSENT: Any = object()


class PlainArguments:
    """How one method reads the plain form. *name* begins its errors."""

    def __init__(self, name: str, parameters: Sequence[Parameter]) -> None:
        self._name = name
        self._parameters = tuple(parameters)
        self._converts = tuple(
            compile_plain(each.annotation, f"{name}: parameter {each.name!r}") for each in self._parameters
        )

    def read(self, given: Mapping[Any, Any]) -> tuple[Any, ...]:
        """The arguments in the contract's order, with defaults. Raises InvalidArgument naming the argument."""
        named = dict(given)
        by_position = named.pop(POSITIONAL, [])
        if type(by_position) is not list:
            raise self._refused(f"{POSITIONAL!r} holds the arguments by position as a list")
        positional = [each for each in self._parameters if not each.is_keyword_only]
        if len(by_position) > len(positional):
            raise self._refused(f"got {len(by_position)} by position")
        values = dict(zip((each.name for each in positional), by_position, strict=False))
        for name, value in named.items():
            if name in values:
                raise self._refused(f"{name!r} is given by position and by name")
            values[name] = value
        arguments = tuple(self._argument(at, values) for at in range(len(self._parameters)))
        if values:
            raise self._refused(f"there is no argument {next(iter(values))!r}")
        return arguments

    def _argument(self, at: int, values: dict[Any, Any]) -> Any:
        """Takes one argument out of *values*."""
        parameter, convert = self._parameters[at], self._converts[at]
        value = values.pop(parameter.name, _ABSENT)
        if value is _ABSENT:
            if parameter.is_required:
                raise self._refused(f"{parameter.name!r} is missing")
            return parameter.default
        if convert is None:
            return value
        try:
            return convert(value)
        except Exception as error:  # a record's own code may raise anything
            why = str(error) if isinstance(error, Mismatch) else f"{type(error).__name__}: {error}"
            raise InvalidArgument(f"{self._name}: argument {parameter.name!r}: {why}") from error

    def _refused(self, why: str) -> InvalidArgument:
        names = ", ".join(each.name for each in self._parameters)
        return InvalidArgument(f"{self._name}: {why[:200]}; it takes ({names})")


def compile_plain(annotation: Any, where: str) -> Convert | None:
    """As ``compile_plan``, for values in the plain form. None when every value is welcome."""
    strict = compile_plan(annotation, where)
    if strict is None:
        return None
    array = _array_of(annotation)
    if array is not None:
        return array
    if _own_type(annotation) is not None:
        return strict
    if _refusal(annotation) is not None:  # a union that is taken apart: strictly then
        return strict

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, annotation, str_keys=True, dec_hook=_plain_hook)
        except msgspec.ValidationError as error:
            raise Mismatch(plainly(str(error))) from None

    return convert


def _plain_hook(annotation: Any, value: Any) -> Any:
    array = _array_of(annotation)
    if array is None:
        return _hook(annotation, value)
    try:
        return array(value)
    except Mismatch as error:
        raise ValueError(str(error)) from None  # msgspec makes a ValidationError of it, with the path


def _array_of(annotation: Any) -> Convert | None:
    """Lists as arrays; None for what is no array type."""
    annotation = unaliased(annotation)
    origin = typing.get_origin(annotation) or annotation
    if "numpy" not in sys.modules or not isinstance(origin, type):
        return None
    import numpy as np

    if not issubclass(origin, np.ndarray):
        return None
    strict = _own_type(annotation)
    from .array_plan import _item_type

    item = _item_type(annotation)

    def convert(value: Any) -> Any:
        if type(value) is list:
            value = _made_array(value, item)
        return value if strict is None else strict(value)

    return convert


def _made_array(value: list[Any], item: Any) -> Any:
    import numpy as np

    _check_numbers(value, 1)
    try:
        made = np.asarray(value)
    except ValueError:
        raise Mismatch("the lists of an array must be of equal length and depth") from None
    if made.dtype.kind not in "biuf":
        raise Mismatch("an array holds a number beyond 64 bits")
    if item is None or issubclass(made.dtype.type, item):
        return made
    try:
        wanted = np.dtype(item)
    except TypeError:  # an abstract kind such as np.floating
        wanted = np.dtype(np.float64 if issubclass(np.float64, item) else np.int64)
    with np.errstate(all="ignore"):
        cast = made.astype(wanted)
    # Whole numbers must stay what they are; for floats, rounding to the contract's precision is what was asked for.
    if wanted.kind not in "fc" and not np.array_equal(cast, made):
        raise Mismatch(f"the numbers do not fit an array of {wanted.name}")
    return cast


_MOST_DIMENSIONS = 32
_NUMBERS = frozenset({int, float, bool})


def _check_numbers(value: list[Any], depth: int) -> None:
    """Numbers only: numpy would make an array of text as wide as its longest item, for every item."""
    if depth > _MOST_DIMENSIONS:
        raise Mismatch(f"an array of more than {_MOST_DIMENSIONS} dimensions")
    for item in value:
        if type(item) is list:
            _check_numbers(item, depth + 1)
        elif type(item) not in _NUMBERS:
            raise Mismatch(f"expected an array of numbers, got {type_name(type(item))} in it")
