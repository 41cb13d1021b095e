"""Metered: a policy made of a meter and a chooser. Their pairs have names in ``catalogue``."""

from __future__ import annotations

from collections.abc import Collection

from steelyard.model import Outcome
from steelyard_registry.node import Node

from ..candidate import Candidate
from ..draw import Dice
from ..policy import PolicyBase
from .choosers import Chooser
from .meters import InFlight, Meter
from .trace import Traced


class Metered(PolicyBase[Traced]):
    """Asks the chooser whom to measure and the meter how loaded that is."""

    def __init__(self, name: str, meter: Meter, chooser: Chooser) -> None:
        super().__init__()
        self.name = name
        self._meter = meter
        self._chooser = chooser
        self._choose = chooser.choose

    def pick(self, now_s: float, dice: Dice, key: int | None = None, excluded: Collection[str] = ()) -> Traced | None:
        return self._choose(self._meter, now_s, dice, excluded)

    def _new_candidate(self, node: Node, now_s: float) -> Traced:
        return Traced(node, now_s, self._meter.new_trace(now_s))

    def _rebuild(self, now_s: float) -> None:
        self._chooser.set_members(self.eligible)


class Learning(Metered):
    """Metered, by a meter that remembers and is therefore told of each call."""

    def __init__(self, name: str, meter: Meter, chooser: Chooser) -> None:
        super().__init__(name, meter, chooser)
        self._hears_starts = type(meter).started is not InFlight.started

    def started(self, candidate: Candidate, now_s: float) -> None:
        # By name and not by super(), which costs as much again; this and ``ended`` run for every call.
        PolicyBase.started(self, candidate, now_s)
        if self._hears_starts:
            assert isinstance(candidate, Traced)
            self._meter.started(candidate, now_s)

    def ended(
        self,
        candidate: Candidate,
        outcome: Outcome,
        now_s: float,
        *,
        latency_s: float,
        in_flight: int | None = None,
        is_transport: bool = False,
    ) -> None:
        PolicyBase.ended(self, candidate, outcome, now_s, latency_s=latency_s, in_flight=in_flight)
        assert isinstance(candidate, Traced)
        self._meter.ended(candidate, outcome, now_s, latency_s, is_transport)


def metered(name: str, meter: Meter, chooser: Chooser) -> Metered:
    """Most meters look at what every policy counts, and need not be told."""
    learns = type(meter).ended is not InFlight.ended
    return Learning(name, meter, chooser) if learns else Metered(name, meter, chooser)
