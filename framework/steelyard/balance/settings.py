"""Checks that settings share: the message names the field, the range and the bad value."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from steelyard.errors import ConfigError

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSettings:
    """For policies with nothing to set."""


def check_range(field: str, value: float, low: float, high: float) -> None:
    """Raise ConfigError unless *value* is a finite number in [low, high]."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high:
        raise ConfigError(f"{field} must be a number in [{low:g}, {high:g}], not {value!r}")


def build_settings(kind: type[S], owner: str, given: dict[str, Any]) -> S:
    """*kind* made of *given*; unknown names raise ConfigError with the known ones."""
    known = sorted(field.name for field in fields(kind))  # type: ignore[arg-type]
    unknown = sorted(set(given) - set(known))
    if unknown:
        listed = ", ".join(known) or "none"
        raise ConfigError(f"policy {owner!r} has no setting {', '.join(map(repr, unknown))}; its settings: {listed}")
    return kind(**given)
