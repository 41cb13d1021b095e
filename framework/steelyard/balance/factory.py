"""Policies by name: what a consumer's ``policy="p2c"`` means."""

from __future__ import annotations

from typing import Any

from steelyard.errors import ConfigError

from .classical import ConsistentHash, LeastActive, RoundRobin, TwoChoices, WeightedRandom
from .dual import Dual
from .policy import Policy
from .settings import build_settings

_KINDS: dict[str, Any] = {
    kind.name: kind for kind in (Dual, WeightedRandom, RoundRobin, ConsistentHash, LeastActive, TwoChoices)
}


def policy_names() -> tuple[str, ...]:
    """The names that ``make_policy`` takes."""
    return tuple(sorted(_KINDS))


def make_policy(name: str, **settings: Any) -> Policy:
    """A new policy. Raises ConfigError for an unknown name or setting, listing the known ones, and for a value out
    of range."""
    kind = _KINDS.get(name)
    if kind is None:
        raise ConfigError(f"there is no policy {name!r}; there are: {', '.join(policy_names())}")
    policy: Policy = kind(build_settings(kind.settings_type, name, settings))
    return policy
