"""Which nodes a line of a scenario means: ``old``, ``old:0-3``, or a list of these."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard.errors import ConfigError

from .scenario import NodeGroup


def node_places(groups: Sequence[NodeGroup], target: str | Sequence[str]) -> list[int]:
    """Places in the fleet, which lists its groups one after the other. Raises ConfigError for an unknown group, or
    nodes that it does not have."""
    starts: dict[str, tuple[int, int]] = {}
    total = 0
    for group in groups:
        starts[group.name] = (total, group.count)
        total += group.count
    places: list[int] = []
    for text in [target] if isinstance(target, str) else target:
        name, _, part = text.partition(":")
        if name not in starts:
            raise ConfigError(f"there is no node group {name!r}; there are: {', '.join(starts)}")
        start, count = starts[name]
        first, last = _range(text, part, count)
        places.extend(range(start + first, start + last + 1))
    return places


def _range(text: str, part: str, count: int) -> tuple[int, int]:
    if not part:
        return 0, count - 1
    low, _, high = part.partition("-")
    if not low.isdigit() or not (high or low).isdigit() or not int(low) <= int(high or low) < count:
        raise ConfigError(f"{text!r}: takes group:first or group:first-last with numbers from 0 to {count - 1}")
    return int(low), int(high or low)
