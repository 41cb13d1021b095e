"""Declared exceptions as data: the class by name, its arguments and its plain attributes. Never pickle.

The other side rebuilds only classes that the contract declares; a name in the bytes selects among them and imports
nothing. The constructor is not run again: ``NoSuchUser(7)`` that called ``super().__init__("no user 7")`` has the
text in its ``args``, and a second run of its constructor would make "no user no user 7" of it.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

from .plan import Convert, compile_plan
from .wire import pack, unpack

_MAX_FIELDS = 64


def encode_exception(error: BaseException, raises: Sequence[type[Exception]]) -> bytes | None:
    """*error* as the nearest class in *raises*; None when it is none of them."""
    declared = next((each for each in type(error).__mro__ if each in raises), None)
    if declared is None:
        return None
    args = [arg if _can_be_sent(arg) else text_of(arg) for arg in error.args]
    fields = {name: value for name, value in _fields(error).items() if _can_be_sent(value)}
    return pack([_name(declared), args, fields])


def decode_exception(details: bytes, raises: Sequence[type[Exception]]) -> Exception | None:
    """The exception in *details*; None when it is none of *raises* or does not fit its class."""
    try:
        name, args, fields = unpack(details)
        declared = _find(name, raises)
        if declared is None or len(fields) > _MAX_FIELDS:
            return None
        error = declared.__new__(declared, *args)
        error.args = tuple(args)
        plans = _plans(declared)
        for field, value in fields.items():
            # Never a method: an attribute called with_traceback would break whoever raises the error.
            if field.isidentifier() and not field.startswith("_") and not callable(getattr(declared, field, None)):
                convert = plans.get(field)
                object.__setattr__(error, field, value if convert is None else convert(value))
    except Exception:  # bytes from outside and somebody's class: whatever goes wrong, there is still the remote error
        return None
    return error


def _name(declared: type) -> str:
    return f"{declared.__module__}:{declared.__qualname__}"


def _find(name: str, raises: Sequence[type[Exception]]) -> type[Exception] | None:
    """By full name, or by the name without its module when that is plain: a contract may live in two modules."""
    for declared in raises:
        if _name(declared) == name:
            return declared
    short = name.partition(":")[2]
    same = [declared for declared in raises if declared.__qualname__ == short]
    return same[0] if len(same) == 1 else None


def _fields(error: BaseException) -> dict[str, Any]:
    fields = dict(vars(error))
    # Those of a dataclass with slots are not in its __dict__.
    fields.update({name: getattr(error, name) for name in _dataclass_fields(type(error)) if hasattr(error, name)})
    public = {name: value for name, value in fields.items() if not name.startswith("_")}
    return dict(list(public.items())[:_MAX_FIELDS])


def text_of(value: object) -> str:
    """``str(value)``; the name of its type when its own code cannot say it."""
    try:
        return str(value)
    except Exception:  # somebody's class
        return f"<{type(value).__name__} that cannot be shown>"


def _can_be_sent(value: Any) -> bool:
    try:
        pack(value)
    except Exception:  # a value's own code may raise anything
        return False
    return True


def _plans(declared: type[Exception]) -> dict[str, Convert | None]:
    """How a dataclass's fields are rebuilt; other exceptions' attributes arrive as plain values."""
    names = _dataclass_fields(declared)
    hints = typing.get_type_hints(declared, include_extras=True) if names else {}
    return {name: compile_plan(hints[name], f"{declared.__qualname__}.{name}") for name in names}


def _dataclass_fields(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
