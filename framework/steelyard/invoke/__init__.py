"""The two words that carry everything: Invoker and Filter, and the Stack that orders filters."""

from .context import Served, current_call, serving
from .stack import Bound, Filter, Invoker, Position, Stack
from .verdict import is_business, outcome_of

__all__ = [
    "Bound",
    "Filter",
    "Invoker",
    "Position",
    "Served",
    "Stack",
    "current_call",
    "is_business",
    "outcome_of",
    "serving",
]
