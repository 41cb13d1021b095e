"""Traced: a Candidate with a place for what a meter or a weigher remembers of the node.

One slot instead of one Candidate class per meter: what is remembered belongs to the measure, and a policy is any
measure with any chooser.
"""

from __future__ import annotations

from typing import Any

from steelyard_registry.node import Node

from ..candidate import Candidate


class Traced(Candidate):
    """``trace`` is made and read by the policy's meter or weigher alone; None for those that remember nothing."""

    __slots__ = ("trace",)

    def __init__(self, node: Node, now_s: float, trace: Any = None) -> None:
        super().__init__(node, now_s)
        self.trace = trace
