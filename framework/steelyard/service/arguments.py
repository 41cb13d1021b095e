"""From a call's positional and keyword arguments to one complete tuple in the contract's order.

``inspect.Signature.bind`` does the same and takes some 5 us; this is on the way of every call, and nearly every call
gives all its arguments by position, which here is one comparison. Errors are worded as Python words its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steelyard.errors import InvalidArgument
from steelyard.model import MethodSpec, Parameter

_ABSENT: Any = object()


def bind_arguments(spec: MethodSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of *spec* in its order, with defaults filled in. Raises InvalidArgument for missing, unknown,
    doubled or too many arguments."""
    parameters = spec.parameters
    if not kwargs and len(args) == len(parameters) and not (parameters and parameters[-1].is_keyword_only):
        return args
    return _bind(spec, args, kwargs)


def _bind(spec: MethodSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    given = dict(kwargs)
    bound: list[Any] = []
    missing: list[Parameter] = []
    positional = [parameter for parameter in spec.parameters if not parameter.is_keyword_only]
    for at, parameter in enumerate(spec.parameters):
        value = given.pop(parameter.name, _ABSENT)
        if at < min(len(args), len(positional)):
            if value is not _ABSENT:
                raise InvalidArgument(f"{spec.qualified_name}() got multiple values for argument {parameter.name!r}")
            value = args[at]
        if value is _ABSENT:
            if parameter.is_required:
                missing.append(parameter)
            value = parameter.default
        bound.append(value)
    if given:
        raise InvalidArgument(f"{spec.qualified_name}() got an unexpected keyword argument {next(iter(given))!r}")
    if len(args) > len(positional):
        raise InvalidArgument(_too_many(spec, positional, len(args), kwargs))
    if missing:
        raise InvalidArgument(_missing(spec, missing))
    return tuple(bound)


def _too_many(spec: MethodSpec, positional: Sequence[Parameter], given: int, kwargs: dict[str, Any]) -> str:
    most, least = len(positional), sum(parameter.is_required for parameter in positional)
    takes = f"{most}" if least == most else f"from {least} to {most}"
    only = sum(parameter.is_keyword_only and parameter.name in kwargs for parameter in spec.parameters)
    came = f"{given} {'was' if given == 1 else 'were'}"
    if only:
        came = (
            f"{given} positional argument{'s' * (given != 1)} "
            f"(and {only} keyword-only argument{'s' * (only != 1)}) were"
        )
    plural = "s" if most != 1 or least != most else ""
    return f"{spec.qualified_name}() takes {takes} positional argument{plural} but {came} given"


def _missing(spec: MethodSpec, missing: Sequence[Parameter]) -> str:
    # Python reports positional ones first, and keyword-only ones when no positional one is missing.
    kind = "positional"
    names = [repr(parameter.name) for parameter in missing if not parameter.is_keyword_only]
    if not names:
        kind = "keyword-only"
        names = [repr(parameter.name) for parameter in missing]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])}{',' * (len(names) > 2)} and {names[-1]}"
    plural = "s" if len(names) > 1 else ""
    return f"{spec.qualified_name}() missing {len(names)} required {kind} argument{plural}: {listed}"
