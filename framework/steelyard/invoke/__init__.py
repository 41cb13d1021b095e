"""The two words that carry everything: Invoker and Filter, and the Stack that orders filters."""

from .context import current_call, serving
from .stack import Filter, Invoker, Position, Stack

__all__ = ["Filter", "Invoker", "Position", "Stack", "current_call", "serving"]
