"""A fallback that is a function takes the method's arguments: checked where it is declared, not when it is needed.

A fallback is called when the cluster has just failed. One that takes other arguments would then raise a TypeError of
its own, in place of the error that says what is wrong with the cluster.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from steelyard.errors import ContractError
from steelyard.model import Parameter


def fallback_call(fallback: Callable[..., Any], parameters: Sequence[Parameter], where: str) -> Callable[..., Any]:
    """*fallback* as something that takes a method's arguments by position, in the contract's order: by position if it
    can be, otherwise its keyword-only ones by name. Raises ContractError when it takes other arguments; *where* names
    the method."""
    try:
        own = inspect.signature(fallback)
    except (TypeError, ValueError):  # a builtin that does not tell its parameters
        return fallback
    try:
        own.bind(*parameters)
        return fallback
    except TypeError as error:
        reason = str(error)
    names = [parameter.name for parameter in parameters if parameter.is_keyword_only]
    count = len(parameters) - len(names)
    if names:
        try:
            own.bind(*parameters[:count], **dict.fromkeys(names))
        except TypeError as error:
            reason = str(error)
        else:
            return lambda *args: fallback(*args[:count], **dict(zip(names, args[count:], strict=True)))
    takes = ", ".join(parameter.name for parameter in parameters)
    called = getattr(fallback, "__qualname__", type(fallback).__qualname__)
    raise ContractError(
        f"{where}: its fallback {called}{own} does not take the method's arguments ({takes}): {reason}; "
        "a function is called with them, anything else is the answer itself"
    )
