"""The result of a run: the numbers that the bars are about, what makes them trustworthy, and whether they were met."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from steelyard import __version__

from .measure import ConsumerWindow, NodeWindow
from .plan import SICK_NODE, TWIN


class NodeResult(msgspec.Struct, frozen=True, kw_only=True):
    """One node at the end. ``share`` and ``load`` are measured in the last seconds; ``availability``, ``flow_ratio``
    and ``list`` are the balancer's own words."""

    name: str
    hardware: Mapping[str, Any]
    share: float
    availability: float | None
    load: float
    flow_ratio: float
    list: str


class Expectation(msgspec.Struct, frozen=True, kw_only=True):
    """One bar, in words and numbers."""

    what: str
    value: float
    bound: float
    is_met: bool


class Second(msgspec.Struct, frozen=True, kw_only=True):
    """One second of the run. ``at_s`` is its end; ``nodes`` by name; ``balancer`` what it thought at its end."""

    at_s: float
    phase: str
    consumer: ConsumerWindow
    load_std: float
    nodes: Mapping[str, NodeWindow]
    balancer: Mapping[str, Mapping[str, Any]]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` writes. Shares and success are in [0, 1]; what is about the fault is None with ``--no-fault``.

    ``load_std`` of a second is the standard deviation over the nodes of their loads in the few seconds that end with
    it (``settings["load_std_over_s"]``). ``load_std_before`` and ``load_std_after`` are its means over plain hashing
    and over as long at the end, of stretches that lie in them as a whole (``settings`` says from when to when).
    ``sick_node_share_during_fault`` counts from the fault's third second on. ``sick_node_fair_share`` is the share of
    its healthy twin; it, ``sick_node_share_after_recovery`` and the nodes' shares and loads are of the same last
    seconds. ``failed_attempts`` are handlers that raised; ``failed_calls`` are what was left of them after retries.
    """

    calls: int
    failed_calls: int
    p50_ms: float | None
    p99_ms: float | None
    accuracy: float | None
    nodes: Sequence[NodeResult]
    load_std_before: float
    load_std_after: float
    sick_node: str | None
    sick_node_fair_share: float | None
    sick_node_share_during_fault: float | None
    sick_node_share_after_recovery: float | None
    consumer_success_during_fault: float | None
    failed_attempts: int
    expectations: Sequence[Expectation]
    settings: Mapping[str, Any]
    errors: Mapping[str, int]
    phases: Sequence[Mapping[str, Any]]
    series: Sequence[Second]

    @property
    def are_all_met(self) -> bool:
        return all(expectation.is_met for expectation in self.expectations)

    def encoded(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1)


def expectations(
    *,
    load_std: tuple[float, float],
    sick_share: float | None,
    success: float | None,
    share_after: float | None,
    fair_share: float | None,
) -> list[Expectation]:
    """The bars that this run can be held to."""
    before, after = load_std
    bars = [
        _at_most("spread of load in the last seconds / under plain hashing", after / before if before else 0.0, 0.4),
    ]
    if sick_share is not None and success is not None and share_after is not None and fair_share:
        bars += [
            _at_most("sick node's share from the fault's third second on", sick_share, 0.05),
            _at_least("success of the consumer's calls during the fault", success, 0.995),
            _at_least(
                f"share of the healed {SICK_NODE} / share of {TWIN}, its healthy twin, in the last seconds",
                share_after / fair_share,
                0.5,
            ),
        ]
    return bars


def machine() -> dict[str, Any]:
    """The class of machine, without its name."""
    from steelyard.hardware import detect

    hardware = detect()
    return {
        "cpu": hardware.model,
        "cores": hardware.cores,
        "memory_gib": round((hardware.memory_bytes or 0) / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    from importlib.metadata import version

    packages = ("grpcio", "numpy", "scikit-learn")
    return {"steelyard": __version__, "python": platform.python_version()} | {name: version(name) for name in packages}


def _at_most(what: str, value: float, bound: float) -> Expectation:
    return Expectation(what=what, value=value, bound=bound, is_met=value <= bound)


def _at_least(what: str, value: float, bound: float) -> Expectation:
    return Expectation(what=what, value=value, bound=bound, is_met=value >= bound)
