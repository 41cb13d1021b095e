"""Policies by name: what a consumer's ``policy="p2c"`` means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from steelyard.errors import ConfigError

from .classical import RECIPES, Recipe
from .dual import Dual, DualSettings
from .policy import Policy
from .settings import build_settings

_DUAL = Recipe("dual", DualSettings, Dual)
# The published update beside ours; everything else about it is the dual policy's.
_RATIO = Recipe("ratio", DualSettings, lambda settings: Dual(replace(settings, law="ratio")))
_RECIPES = {recipe.name: recipe for recipe in (*RECIPES, _DUAL, _RATIO)}


def policy_names() -> tuple[str, ...]:
    """The names that ``make_policy`` takes."""
    return tuple(sorted(_RECIPES))


def make_policy(name: str, /, **settings: Any) -> Policy:
    """A new policy. Raises ConfigError for an unknown name or setting, listing the known ones, and for a value out
    of range."""
    recipe = _RECIPES.get(name)
    if recipe is None:
        raise ConfigError(f"there is no policy {name!r}; there are: {', '.join(policy_names())}")
    return recipe.make(build_settings(recipe.settings_type, name, settings))
