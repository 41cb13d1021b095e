"""Which nodes can be reached now, by the states of their connections.

The registry tells late: a killed provider's entry lives until its session ends, ten seconds by default, and a partition
between consumer and provider is never seen there at all. The connection knows at once. So the pick looks here as well.
Nodes are not taken out of the balancing policy for it: the policy would forget what it has learned of them, and most of
them are back within seconds.

Kept as sets that one state change touches once, because picks read them: nothing here is a walk over all nodes except
when no connection at all is ready.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from steelyard.wire import ChannelState
from steelyard_registry import Node

_WAITING = (ChannelState.IDLE, ChannelState.CONNECTING)


class Reach:
    """While any connection is ready, only ready ones take calls (as in gRPC: a call that waits for a first connection
    may wait for a host that is gone). Otherwise those being made do, and calls wait for them. Where there are none of
    these either, every node does: its call fails at once and says why."""

    def __init__(self) -> None:
        self._identities: dict[str, tuple[str, ...]] = {}
        self._ready: set[str] = set()
        self._waiting: set[str] = set()
        self._out: set[str] = set()

    @property
    def out(self) -> Collection[str]:
        """Identities that are not to be picked now. A live set: for use at once, not to keep."""
        if self._ready:
            return self._out
        if not self._waiting:
            return ()
        return self._out.difference(*(self._identities[address] for address in self._waiting))

    def takes_calls(self, address: str) -> bool:
        """Whether a call may be sent to *address* now."""
        if self._ready:
            return address in self._ready
        return address in self._waiting if self._waiting else address in self._identities

    def set_nodes(self, nodes: Iterable[Node], states: Mapping[str, ChannelState]) -> None:
        """The nodes there are, and the states of their connections by address."""
        self._identities = {}
        self._ready, self._waiting, self._out = set(), set(), set()
        self.change(nodes, (), states)

    def change(self, come: Iterable[Node], gone: Iterable[Node], states: Mapping[str, ChannelState]) -> Collection[str]:
        """Nodes that came and went; *states* holds at least the addresses of the former. The addresses at which no node
        is left."""
        touched = set()
        left = set()
        for node in gone:
            rest = tuple(one for one in self._identities.get(node.address, ()) if one != node.identity)
            self._out.discard(node.identity)
            self._identities[node.address] = rest
            touched.add(node.address)
        for node in come:
            self._identities[node.address] = (*self._identities.get(node.address, ()), node.identity)
            self.set_state(node.address, states[node.address])
        for address in touched:
            if not self._identities[address]:
                del self._identities[address]
                self._ready.discard(address)
                self._waiting.discard(address)
                left.add(address)
        return left

    def set_state(self, address: str, state: ChannelState) -> None:
        """The connection to *address* changed; unknown addresses are ignored."""
        identities = self._identities.get(address)
        if identities is None:
            return
        self._ready.discard(address)
        self._waiting.discard(address)
        if state is ChannelState.READY:
            self._ready.add(address)
            self._out.difference_update(identities)
            return
        self._out.update(identities)
        if state in _WAITING:
            self._waiting.add(address)
