"""The demonstration: an unequal cluster of real processes, a real model, and one node that falls ill."""

from .command import demo_command
from .plan import DemoOptions

__all__ = ["DemoOptions", "demo_command"]
