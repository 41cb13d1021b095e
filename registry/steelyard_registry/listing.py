"""A service's nodes as a list that is changed in place: what one entry's coming or going costs does not depend on how
many others there are.

Shows what ``select`` shows: one node an identity, sorted by it; of two entries of one identity the one that started
last, and at equal start the one whose name is later, so that every consumer decides alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from .node import Node, ServiceKey

_FEW = 64
"""More changes than this at once are cheaper by sorting anew (10,000 entries: 3 ms) than one by one."""


@dataclass(frozen=True, slots=True)
class Difference:
    """``nodes`` are all; ``gone`` those that the list showed before under identities that it does not show now."""

    nodes: tuple[Node, ...]
    gone: tuple[Node, ...]


class Listing:
    """Entries by name, as a registry has them; None for one that cannot be read."""

    def __init__(self, service: ServiceKey) -> None:
        self._service = service
        self._entries: dict[str, Node | None] = {}
        self._rivals: dict[str, list[str]] = {}  # identity -> names, where there are several
        self._sole: dict[str, str] = {}  # identity -> name, where there is one
        self._identities: list[str] = []
        self._nodes: list[Node] = []
        self.skipped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def names(self) -> Collection[str]:
        """Of all entries. A live view."""
        return self._entries.keys()

    @property
    def readable(self) -> list[str]:
        """The names that are nodes, sorted: what is worth keeping."""
        return sorted(name for name, node in self._entries.items() if node is not None)

    def shows(self, identity: str) -> bool:
        """Whether there is a node of this identity."""
        return identity in self._sole or identity in self._rivals

    def change(self, come: Mapping[str, Node | None], gone: Iterable[str]) -> Difference:
        """Take *come* in and *gone* out; names that are there already, or not there, change nothing."""
        touched: set[str] = set()
        for name in gone:
            if name in self._entries:
                self._take_out(name, touched)
        for name, node in come.items():
            if name not in self._entries:
                self._put_in(name, node, touched)
        lost = self._show(touched) if len(touched) <= _FEW else self._show_all(touched)
        return Difference(tuple(self._nodes), tuple(lost))

    def _take_out(self, name: str, touched: set[str]) -> None:
        node = self._entries.pop(name)
        if node is None:
            self.skipped -= 1
        elif self._service.accepts(node):
            identity = node.identity
            touched.add(identity)
            rivals = self._rivals.get(identity)
            if rivals is None:
                del self._sole[identity]
            else:
                rivals.remove(name)
                if len(rivals) == 1:
                    self._sole[identity] = self._rivals.pop(identity)[0]

    def _put_in(self, name: str, node: Node | None, touched: set[str]) -> None:
        self._entries[name] = node
        if node is None:
            self.skipped += 1
        elif self._service.accepts(node):
            identity = node.identity
            touched.add(identity)
            if identity in self._rivals:
                self._rivals[identity].append(name)
            elif identity in self._sole:
                self._rivals[identity] = [self._sole.pop(identity), name]
            else:
                self._sole[identity] = name

    def _chosen(self, identity: str) -> Node | None:
        name = self._sole.get(identity)
        if name is not None:
            return self._entries[name]
        nodes = [
            (node.started_at_ms, name, node) for name in self._rivals.get(identity, ()) if (node := self._entries[name])
        ]
        return max(nodes, key=lambda one: one[:2])[2] if nodes else None

    def _show(self, touched: Iterable[str]) -> list[Node]:
        lost = []
        for identity in touched:
            at = bisect_left(self._identities, identity)
            is_shown = at < len(self._identities) and self._identities[at] == identity
            node = self._chosen(identity)
            if node is None and is_shown:
                lost.append(self._nodes[at])
                del self._identities[at], self._nodes[at]
            elif node is not None and is_shown:
                self._nodes[at] = node
            elif node is not None:
                self._identities.insert(at, identity)
                self._nodes.insert(at, node)
        return lost

    def _show_all(self, touched: Iterable[str]) -> list[Node]:
        shown = dict(zip(self._identities, self._nodes, strict=True))
        lost = []
        for identity in touched:
            node = self._chosen(identity)
            if node is not None:
                shown[identity] = node
            elif identity in shown:
                lost.append(shown.pop(identity))
        self._identities = sorted(shown)
        self._nodes = [shown[identity] for identity in self._identities]
        return lost
