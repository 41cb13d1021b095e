"""Invoker, Filter, and the Stack: the order of filters as data.

An Invoker is ``async (Invocation) -> Reply``: a remote node, a whole cluster, a local object and a fake in a test are
all Invokers and nest in one another. A Filter is ``async (Invocation, next) -> Reply``. A Stack is a list of named
positions, each with the reason why it stands where it stands, and stays data until it is built: users insert,
replace and remove by name, and printing it shows the order. (The idea is Finagle's Stack; a plain list of
functions could neither be edited by name nor explain itself.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from steelyard.errors import ConfigError
from steelyard.model import Invocation, Reply

Invoker = Callable[[Invocation], Awaitable[Reply]]
Filter = Callable[[Invocation, Invoker], Awaitable[Reply]]


class Bound:
    """A Filter that is made for what follows it: *bind* (following) gives the Invoker of both.

    It is called as any Filter is; built into a Stack it costs one frame a call less, which counts in the filters that
    every call passes and most calls only pass."""

    __slots__ = ("bind",)

    def __init__(self, bind: Callable[[Invoker], Invoker]) -> None:
        self.bind = bind

    def __call__(self, invocation: Invocation, following: Invoker) -> Awaitable[Reply]:
        return self.bind(following)(invocation)


@dataclass(frozen=True, slots=True)
class Position:
    """A filter's place: its name, the filter, and why it stands here."""

    name: str
    filter: Filter
    reason: str = ""


class Stack:
    """An immutable order of filters, outermost first. Every change gives a new Stack. Raises ConfigError for a name
    that is not there, with those that are, and for one that would be there twice."""

    __slots__ = ("_positions",)

    def __init__(self, *positions: Position) -> None:
        names = [position.name for position in positions]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"two filters of one name in a stack: {', '.join(twice)}")
        self._positions = positions

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(position.name for position in self._positions)

    def __iter__(self) -> Iterator[Position]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def insert_before(self, name: str, position: Position) -> Stack:
        at = self._index(name)
        return Stack(*self._positions[:at], position, *self._positions[at:])

    def insert_after(self, name: str, position: Position) -> Stack:
        at = self._index(name) + 1
        return Stack(*self._positions[:at], position, *self._positions[at:])

    def replace(self, name: str, position: Position) -> Stack:
        at = self._index(name)
        return Stack(*self._positions[:at], position, *self._positions[at + 1 :])

    def remove(self, name: str) -> Stack:
        at = self._index(name)
        return Stack(*self._positions[:at], *self._positions[at + 1 :])

    def build(self, innermost: Invoker) -> Invoker:
        """The whole stack as one Invoker around *innermost*."""
        invoker = innermost
        for position in reversed(self._positions):
            invoker = _bind(position.filter, invoker)
        return invoker

    def _index(self, name: str) -> int:
        for at, position in enumerate(self._positions):
            if position.name == name:
                return at
        raise ConfigError(f"no filter named {name!r} in this stack; there are: {', '.join(self.names)}")

    def __repr__(self) -> str:
        width = max((len(name) for name in self.names), default=0)
        lines = (f"  {position.name:<{width}}  {position.reason}".rstrip() for position in self._positions)
        return "\n".join(("Stack (outermost first)", *lines))


def _bind(filter_: Filter, following: Invoker) -> Invoker:
    if isinstance(filter_, Bound):
        return filter_.bind(following)

    # A plain function and not a coroutine: it hands the filter's own awaitable on, so a filter costs one frame.
    def invoke(invocation: Invocation) -> Awaitable[Reply]:
        return filter_(invocation, following)

    return invoke
