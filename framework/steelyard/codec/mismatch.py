"""How a value that is not what its annotation asks for is worded, for people who write Python."""

from __future__ import annotations

import re


class Mismatch(Exception):
    """A value that is not what its annotation asks for: "expected int, got str"."""


def type_name(kind: type) -> str:
    """How messages name a type."""
    if kind is type(None):
        return "None"
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


# msgspec names types as JSON does; messages here are for people who write Python.
_NAMES = {
    "array": "list",
    "object": "map",
    "null": "None",
    "uuid": "UUID",
    "decimal": "Decimal",
    "duration": "timedelta",
}
_QUOTED = re.compile(r"`([^`]*)`")
_WORD = re.compile(r"\b(" + "|".join(_NAMES) + r")\b")
_MISSING = re.compile(r"^Object missing required field `([^`]*)`")


def plainly(message: str) -> str:
    """An error of msgspec's: "Expected `int`, got `null` - at `$.x`" is "expected int, got None (at x)"."""
    text, _, place = message.partition(" - at ")
    text = _MISSING.sub(r"missing required field \1", text)
    text = _QUOTED.sub(lambda quoted: _WORD.sub(lambda word: _NAMES[word[1]], quoted[1]), text)
    place = place.replace("`key` in ", "a key of ").replace("`", "").replace("$.", "").replace("$[", "[")
    place = place.replace("a key of $", "a key").removeprefix("$")
    return (text[:1].lower() + text[1:]) + (f" (at {place})" if place else "")
