"""A reference's statistics for people: the service, and one line a node with the reason of its share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from steelyard.balance import NodeStatistics, PolicyStatistics

if TYPE_CHECKING:
    from .reference import ReferenceStatistics

_TITLES = ("node", "list", "share", "flow", "avail.", "load", "in flight", "because")
_LEFT = (True, True, False, False, False, True, False, True)


def shown(statistics: ReferenceStatistics) -> str:
    """Several lines, none of them with blanks at its end."""
    lines = [_service(statistics), *_calls(statistics)]
    nodes = statistics.balance.nodes
    if not nodes:
        return "\n".join([*lines, "no node is known"])
    rows = [_TITLES, *(_row(node) for node in sorted(nodes, key=lambda node: -node.share))]
    return "\n".join([*lines, *_columns(rows)])


def _service(statistics: ReferenceStatistics) -> str:
    snapshot, balance = statistics.snapshot, statistics.balance
    known = len(balance.nodes)
    parts = [f"{statistics.service}: {known} node{'' if known == 1 else 's'}, policy {balance.policy}"]
    if snapshot.is_stale:
        parts.append("the registry does not vouch for the list")
    if snapshot.lost:
        parts.append(f"{len(snapshot.lost)} lost by the registry")
    if snapshot.skipped:
        parts.append(f"{snapshot.skipped} entries of the registry skipped")
    return "; ".join([*parts, *_aims(balance)])


def _aims(balance: PolicyStatistics) -> list[str]:
    parts = []
    if balance.availability is not None:
        parts.append(f"availability {balance.availability:.2%}")
    if balance.load_ref is not None:
        parts.append(f"utilization aimed at {balance.load_ref:.0%}")
    if balance.diverted_fraction:
        parts.append(f"{balance.diverted_fraction:.1%} of the calls diverted")
    return [*parts, "panic: most nodes are sick, so none is avoided"] if balance.is_panic else parts


def _calls(statistics: ReferenceStatistics) -> list[str]:
    lines = []
    failover, protection = statistics.failover, statistics.protection
    if failover is not None:
        lines.append(
            f"{failover.calls} calls took {failover.attempts} attempts: {failover.retries} retries, {failover.hedges} "
            f"hedges ({failover.hedges_won} answered first), {failover.denied} refused by the budget"
        )
    if statistics.probes is not None:
        probes = statistics.probes
        lines.append(f"{probes.asked} probes wanted, {probes.sent} sent, {probes.answered} answered")
    if protection is not None and protection.level:
        share = f"{protection.last_degraded_share:.1%} of the calls degraded"
        lines.append(f"protection {protection.level.name}: {protection.reason}; {share}")
    if statistics.switches:
        switches = ", ".join(f"{method} at {mode}" for method, mode in sorted(statistics.switches.items()))
        lines.append(f"switched by hand: {switches}")
    return lines


def _row(node: NodeStatistics) -> tuple[str, ...]:
    load = node.report_state.value if node.load is None else f"{node.resource or 'load'} {node.load:.0%}"
    return (
        node.node.address,
        node.list.value,
        f"{node.share:.1%}",
        f"{node.flow_ratio:.2f}",
        "-" if node.availability is None else f"{node.availability:.1%}",
        load,
        str(node.in_flight),
        node.because,
    )


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(_TITLES))]
    return [
        "  ".join(
            cell.ljust(width) if is_left else cell.rjust(width)
            for cell, width, is_left in zip(row, widths, _LEFT, strict=True)
        ).rstrip()
        for row in rows
    ]
