"""Policy: to whom a call goes. And PolicyBase: the bookkeeping that all policies share.

A policy is plain synchronous code without a clock or a random generator: ``now_s`` (seconds, monotonic, any origin)
and ``dice`` (uniform in [0, 1)) are arguments, so the simulator runs the same object in virtual time. One policy object
belongs to one event loop; nothing here locks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Generic, Protocol, TypeVar, runtime_checkable

from steelyard.model import LoadReport, Outcome
from steelyard_registry.node import Node

from .candidate import Candidate
from .draw import Dice
from .load import TAU_S, is_believable
from .statistics import NodeStatistics, PolicyStatistics

C = TypeVar("C", bound=Candidate)

_OK, _FAILED = Outcome.OK, Outcome.FAILED


class Policy(Protocol):
    """What a balancer does. Every call that was picked and started must be ended exactly once."""

    def set_nodes(self, nodes: Sequence[Node], now_s: float) -> None:
        """The nodes there are from now on; state of those that stay is kept."""

    def pick(
        self, now_s: float, dice: Dice, key: int | None = None, excluded: Collection[str] = ()
    ) -> Candidate | None:
        """The node for one call, or None when nothing is left. *key* is a 64-bit hash (``hash_key``); *excluded*
        are identities that must not be picked (already tried)."""

    def started(self, candidate: Candidate, now_s: float) -> None:
        """A call is sent to *candidate*."""

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
        """A started call is over. *in_flight* is what the reply said of the provider's open calls; *is_transport*
        marks a failure of the connection and not of the handler."""

    def report(self, address: str, report: LoadReport, now_s: float) -> None:
        """The provider at *address* told its load."""

    def tick(self, now_s: float) -> None:
        """One control period has passed (about a second)."""

    def statistics(self, now_s: float) -> PolicyStatistics:
        """Everything that explains the next picks."""


@runtime_checkable
class ProbingPolicy(Policy, Protocol):
    """A policy that asks nodes by itself. Whoever drives it calls ``probes`` after each call and about once a second,
    sends a probe to each of the answers, and reports what comes back; a probe that fails is not reported."""

    def probes(self, now_s: float, dice: Dice) -> Sequence[Candidate]:
        """The nodes to be probed now; often none."""

    def probed(self, candidate: Candidate, now_s: float, *, in_flight: int, latency_s: float) -> None:
        """*candidate* has *in_flight* calls, and one takes it about *latency_s* at that number."""


class PolicyBase(Generic[C]):
    """Members, their open calls, outcomes and loads. A policy adds ``pick`` and, if it keeps tables, ``_rebuild``.

    ``candidates`` are all members by identity; ``eligible`` those that may take traffic (READY, weight > 0).
    """

    name: str
    tau_s: float = TAU_S
    resources: frozenset[str] | None = None

    def __init__(self) -> None:
        self.candidates: dict[str, C] = {}
        self.eligible: list[C] = []
        self.open_calls = 0
        self.rejected_reports = 0
        self._records: dict[str, Node] = {}
        # One service is nearly always one node per address: the lone one needs no list (88 bytes each).
        self._by_address: dict[str, C | list[C]] = {}

    def set_nodes(self, nodes: Sequence[Node], now_s: float) -> None:
        before, self._records = self._records, {node.identity: node for node in nodes}
        changed = [node for identity, node in self._records.items() if before.get(identity) is not node]
        new = sum(node.identity not in before for node in changed)
        gone = before.keys() - self._records.keys() if len(self._records) != len(before) + new else ()
        known = self.candidates
        is_reshaped = False
        # Those that stay keep their order, so that a registry that shuffles its answer changes nothing.
        for candidate in [candidate for candidate in known.values() if candidate.identity in gone] if gone else ():
            is_reshaped |= candidate.weight > 0
            self._drop(candidate, now_s)
        for node in changed:
            found = known.get(node.identity)
            shape = None if found is None else _shape(found)
            if found is None:
                found = self._join(node, now_s)
            else:
                self._updated(found, node, now_s)
            is_reshaped |= shape != _shape(found)
        if is_reshaped:
            self.eligible = [candidate for candidate in known.values() if candidate.weight > 0]
            self._rebuild(now_s)

    def _join(self, node: Node, now_s: float) -> C:
        candidate = self.candidates[node.identity] = self._new_candidate(node, now_s)
        there = self._by_address.setdefault(node.address, candidate)
        if isinstance(there, list):
            there.append(candidate)
        elif there is not candidate:
            self._by_address[node.address] = [there, candidate]
        return candidate

    def _drop(self, candidate: C, now_s: float) -> None:
        del self.candidates[candidate.identity]
        address = candidate.node.address
        there = self._by_address[address]
        if isinstance(there, list):
            there.remove(candidate)
            if len(there) == 1:
                self._by_address[address] = there[0]
        else:
            del self._by_address[address]
        candidate.is_member = False
        self.open_calls -= candidate.in_flight
        self._left(candidate, now_s)

    def at(self, address: str) -> Sequence[C]:
        """The members at *address*."""
        there = self._by_address.get(address)
        return () if there is None else there if isinstance(there, list) else (there,)

    def started(self, candidate: Candidate, now_s: float) -> None:
        # The window's ``count_sent``, and below ``count_ok``, written out: these two run for every call, and calling a
        # method costs more than all that it does.
        candidate.in_flight += 1
        candidate.queue += 1.0
        window = candidate.window
        if now_s >= window.until_s:
            window.advance(now_s)
        window.sent += 1
        if candidate.is_member:
            self.open_calls += 1

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
        if candidate.in_flight <= 0:
            raise ValueError(f"a call to {candidate.identity} ended that never started, or ended twice")
        candidate.in_flight -= 1
        if candidate.is_member:
            self.open_calls -= 1
        if outcome is _OK:
            window = candidate.window
            if now_s >= window.until_s:
                window.advance(now_s)
            window.ok += 1
        elif outcome is _FAILED:
            candidate.window.count_failed(now_s)
        told = candidate.queue - 1.0 if in_flight is None or in_flight < 0 else float(in_flight)
        own = candidate.in_flight
        candidate.queue = told if told > own else float(own)

    def report(self, address: str, report: LoadReport, now_s: float) -> None:
        if not is_believable(report):
            self.rejected_reports += 1
            return
        for candidate in self.at(address):
            window = candidate.window
            if now_s >= window.until_s:
                window.advance(now_s)
            if not candidate.load.take(report, now_s, tau_s=self.tau_s, resources=self.resources, answered=window.ok):
                self.rejected_reports += 1
                self._disbelieved(candidate, now_s)

    def tick(self, now_s: float) -> None:
        """Nothing to learn for a policy without a control loop."""

    def statistics(self, now_s: float) -> PolicyStatistics:
        for candidate in self.candidates.values():
            candidate.window.advance(now_s)
        total_weight = sum(candidate.weight for candidate in self.candidates.values())
        shares = [c.weight / total_weight if total_weight else 0.0 for c in self.candidates.values()]
        sent = self._sent()
        nodes = tuple(
            node_statistics(candidate, now_s, sent=sent, share=share, base_share=share)
            for candidate, share in zip(self.candidates.values(), shares, strict=True)
        )
        return PolicyStatistics(
            policy=self.name,
            nodes=nodes,
            availability=_fleet_availability(nodes),
            rejected_reports=self.rejected_reports,
            open_calls=self.open_calls,
        )

    def _sent(self) -> int:
        return sum(candidate.window.sent for candidate in self.candidates.values())

    def _new_candidate(self, node: Node, now_s: float) -> C:
        raise NotImplementedError

    def _rebuild(self, now_s: float) -> None:
        """Eligible members, their weights or their zones changed."""

    def _updated(self, candidate: C, node: Node, now_s: float) -> None:
        """A newer record of the same node."""
        candidate.update(node)

    def _disbelieved(self, candidate: C, now_s: float) -> None:
        """The reports of *candidate* are frozen and no longer taken."""

    def _left(self, candidate: C, now_s: float) -> None:
        """*candidate* is no longer a member; its open calls will still end."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.eligible)} of {len(self.candidates)} nodes, {self.open_calls} open)"


def _shape(candidate: Candidate) -> tuple[int, str] | None:
    """What tables are made of; None for one that is in none."""
    return (candidate.weight, candidate.node.zone) if candidate.weight > 0 else None


def node_statistics(
    candidate: Candidate, now_s: float, *, sent: int, share: float, base_share: float
) -> NodeStatistics:
    """The part of the record that does not depend on the policy."""
    window = candidate.window
    judged = window.ok + window.failed
    return NodeStatistics(
        identity=candidate.identity,
        node=candidate.node,
        share=share,
        base_share=base_share,
        sent_share=window.sent / sent if sent else 0.0,
        availability=window.ok / judged if judged else None,
        ok=window.ok,
        failed=window.failed,
        load=candidate.load.load,
        loads=candidate.load.levels,
        report_state=candidate.load.state(now_s),
        report_age_s=candidate.load.age_s(now_s),
        in_flight=candidate.in_flight,
        queue=candidate.queue,
        flow_ratio=share / base_share if base_share else 0.0,
    )


def _fleet_availability(nodes: Sequence[NodeStatistics]) -> float | None:
    ok = sum(node.ok for node in nodes)
    judged = ok + sum(node.failed for node in nodes)
    return ok / judged if judged else None
