"""The textbook policies: meters with choosers, weighers with spreaders, and Prequal. They use what every policy
counts."""

from .catalogue import RECIPES, Recipe
from .prequal import LatencyByLoad

__all__ = ["RECIPES", "LatencyByLoad", "Recipe"]
