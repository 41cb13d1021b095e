"""What users set, checked where they set it: the message names the setting, what it may be, and what it was.

A number is checked by its type as well as by its range, because comparing is not enough: NaN passes every "is it too
small", True is 1, and text fails with a TypeError of Python's that names nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from steelyard.errors import ConfigError

LONGEST_S = 1e9
"""The longest finite time that is taken for one, in seconds: 31 years. What is longer was meant in another unit."""


def checked(name: str, value: Any, is_good: bool, wanted: str) -> Any:
    """*value* when it is good. Raises ConfigError: "name: wanted, not value"."""
    if is_good:
        return value
    text = repr(value)
    raise ConfigError(f"{name}: {wanted}, not {text if len(text) <= 80 else text[:77] + '...'}")


def near(name: str, known: Iterable[str]) -> str:
    """``"; did you mean X?"`` for a name that is much like one of *known*, else nothing: the end of a message."""
    import difflib

    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def whole_number(name: str, value: Any, low: int, high: int, note: str = "") -> int:
    """An int (and no bool) from *low* to *high*. Raises ConfigError."""
    is_good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    number: int = checked(name, value, is_good, f"a whole number from {low} to {high}{note and f' ({note})'}")
    return number


def seconds(name: str, value: Any) -> float:
    """A time of 0 or more seconds, at most LONGEST_S. Raises ConfigError."""
    number: float = checked(name, value, _is_number(value) and 0 <= value <= LONGEST_S, "0 or more seconds")
    return number


def timeout(name: str, value: Any) -> float:
    """A time of more than 0 seconds: at most LONGEST_S, or infinite. Raises ConfigError."""
    is_good = _is_number(value) and (0 < value <= LONGEST_S or value == math.inf)
    number: float = checked(name, value, is_good, "more than 0 seconds")
    return number


def text(name: str, value: Any) -> str:
    """Raises ConfigError for what is not text, or cannot be encoded (half of a surrogate pair)."""
    found: str = checked(name, value, isinstance(value, str) and _is_encodable(value), "text")
    return found


def texts(name: str, value: Any) -> dict[str, str]:
    """A copy of a mapping of text by text. Raises ConfigError that shows the pair at fault."""
    pairs: dict[str, str] = dict(checked(name, value, isinstance(value, Mapping), "a mapping of text by text"))
    for key, each in pairs.items():
        is_good = isinstance(key, str) and isinstance(each, str) and _is_encodable(key + each)
        checked(name, {key: each}, is_good, "a mapping of text by text")
    return pairs


def instance(name: str, value: Any, kind: Any, wanted: str) -> Any:
    """*value* when it is one of *kind*, a class or a union of them. Raises ConfigError."""
    return checked(name, value, isinstance(value, kind), wanted)


def function(name: str, value: Any) -> Any:
    """*value* when it can be called. Raises ConfigError."""
    return checked(name, value, callable(value), "a function")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
