"""The two words that carry everything: Invoker and Filter, and the Stack that orders filters."""

from .stack import Filter, Invoker, Position, Stack

__all__ = ["Filter", "Invoker", "Position", "Stack"]
