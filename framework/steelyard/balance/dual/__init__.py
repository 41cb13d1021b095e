"""The dual-objective law: availability first, then utilization, with least diversion. docs/design.md has the map."""

from .policy import Dual
from .settings import DualSettings

__all__ = ["Dual", "DualSettings"]
