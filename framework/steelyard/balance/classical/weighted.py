"""Weighted: a policy made of a weigher and a spreader, with outlier ejection on request. Names are in ``catalogue``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from steelyard.model import LoadReport, Outcome
from steelyard_registry.node import Node

from ..candidate import Candidate
from ..draw import Dice
from ..load import is_believable
from ..policy import PolicyBase
from ..statistics import NodeList, PolicyStatistics
from .hashed import BoundedRing, RingOwner
from .outliers import OutlierEjection
from .spreaders import Spreader
from .trace import Traced
from .weighers import Weigher


class Weighted(PolicyBase[Traced]):
    """Asks the weigher for weights (once per change, or at each tick if they live) and lets the spreader follow
    them."""

    _ejection: OutlierEjection | None = None

    def __init__(self, name: str, weigher: Weigher, spreader: Spreader) -> None:
        super().__init__()
        self.name = name
        self._weigher = weigher
        self._spreader = spreader
        self._spread_call = spreader.pick
        self._bounded = spreader if isinstance(spreader, BoundedRing) else None
        self._members: list[Traced] = []
        self._weights: list[float] = []

    def pick(self, now_s: float, dice: Dice, key: int | None = None, excluded: Collection[str] = ()) -> Traced | None:
        if not self._members:
            return None
        if self._bounded is not None:
            self._bounded.open_calls = self.open_calls
        picked = self._spread_call(now_s, dice, key, excluded)
        if picked is None and len(self._members) < len(self.eligible):
            # All that are in are excluded: better an ejected node than none.
            return next((one for one in self.eligible if one.identity not in excluded), None)
        return picked

    def report(self, address: str, report: LoadReport, now_s: float) -> None:
        super().report(address, report, now_s)
        if self._weigher.is_live and is_believable(report):
            for candidate in self.at(address):
                self._weigher.reported(candidate, report, now_s)

    def tick(self, now_s: float) -> None:
        is_changed = self._ejection is not None and self._ejection.look(self.eligible, now_s)
        if is_changed or self._weigher.is_live:
            self._spread(now_s)

    def statistics(self, now_s: float) -> PolicyStatistics:
        statistics = super().statistics(now_s)
        shares = self._shares()
        nodes = tuple(
            replace(
                node,
                share=share,
                flow_ratio=share / node.base_share if node.base_share else 0.0,
                list=NodeList.EJECTED if self._is_out(self.candidates[node.identity]) else node.list,
            )
            for node in statistics.nodes
            for share in (shares.get(node.identity, 0.0),)
        )
        return replace(statistics, nodes=nodes)

    def _shares(self) -> dict[str, float]:
        if not self._members:
            return {}
        arcs = self._spreader.arcs if isinstance(self._spreader, RingOwner) else None
        total = sum(self._weights)
        parts = arcs if arcs is not None else [weight / total for weight in self._weights]
        return {member.identity: part for member, part in zip(self._members, parts, strict=True)}

    def _is_out(self, candidate: Traced) -> bool:
        return self._ejection is not None and self._ejection.is_out(candidate)

    def _spread(self, now_s: float) -> None:
        members = [member for member in self.eligible if not self._is_out(member)] or self.eligible
        if not members:
            self._members, self._weights = [], []
            return
        said = [self._weigher.weight(member, now_s) for member in members]
        known = [weight for weight in said if weight is not None and weight > 0]
        if len(known) < 2:
            weights = [float(member.weight) for member in members]
        else:
            mean = sum(known) / len(known)
            weights = [weight if weight is not None and weight > 0 else mean for weight in said]
        if members != self._members or weights != self._weights:
            self._members, self._weights = list(members), weights
            self._spreader.set_weights(self._members, weights)

    def _new_candidate(self, node: Node, now_s: float) -> Traced:
        return Traced(node, now_s, self._weigher.new_trace(now_s))

    def _rebuild(self, now_s: float) -> None:
        if self._ejection is not None:
            self._ejection.forget(self.eligible)
        self._spread(now_s)


class Ejecting(Weighted):
    """Weighted, with outlier ejection. A class of its own, so that nobody else's calls are asked about it."""

    def __init__(self, name: str, weigher: Weigher, spreader: Spreader, ejection: OutlierEjection) -> None:
        super().__init__(name, weigher, spreader)
        self._ejection: OutlierEjection = ejection

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
        if outcome is not Outcome.IGNORED and candidate.is_member:
            assert isinstance(candidate, Traced)
            self._ejection.count(candidate, is_ok=outcome is Outcome.OK)
