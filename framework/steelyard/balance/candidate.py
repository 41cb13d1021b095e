"""Candidate: what a policy knows of one node, kept for as long as the node stays in the snapshot.

Every policy counts the same things (open calls, outcomes, loads), also those that do not steer by them: the same table
can then be read beside any policy, and a policy can be exchanged at run time without going blind.
"""

from __future__ import annotations

from steelyard_registry.node import Node, NodeState

from .load import LoadSignal
from .window import OutcomeWindow


class Candidate:
    """One node of a policy. The object stays the same while the node stays, also when its record (weight, tags,
    state) changes; a node that went and came back is a new Candidate.

    ``in_flight`` counts this consumer's own open calls. ``queue`` is what is known of the node's queue: the in-flight
    count of its last reply plus own calls sent since, never below ``in_flight``. ``weight`` is 0 when the node
    takes no traffic (not READY, or weight 0 or less).
    """

    __slots__ = ("identity", "in_flight", "is_member", "joined_at_s", "load", "node", "queue", "weight", "window")

    def __init__(self, node: Node, now_s: float) -> None:
        self.identity = node.identity
        self.joined_at_s = now_s
        self.in_flight = 0
        self.queue = 0.0
        self.is_member = True
        self.window = OutcomeWindow()
        self.load = LoadSignal()
        self.update(node)

    def update(self, node: Node) -> None:
        """Take a newer record of the same node."""
        self.node = node
        self.weight = max(0, node.weight) if node.state is NodeState.READY else 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.identity}, in_flight={self.in_flight}, queue={self.queue:.1f})"
