"""What a policy says about itself: frozen records that the dashboard, the tests and bug reports all read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from steelyard_registry.node import Node

from .load import ReportState


class NodeList(StrEnum):
    """Where a node stands. REFUSE: gives calls away; ACCEPT: takes others' calls; PROBING: emptied, and tried now
    and then; EJECTED: not reachable, single probes only."""

    REFUSE = "refuse"
    ACCEPT = "accept"
    NEUTRAL = "neutral"
    EJECTED = "ejected"
    PROBING = "probing"
    WARMING = "warming"


class Objective(StrEnum):
    """Which of the law's aims explains a node's numbers."""

    NONE = "none"
    AVAILABILITY = "availability"
    UTILIZATION = "utilization"
    LATENCY = "latency"
    QUEUE = "queue"
    TRANSPORT = "transport"
    WARM_UP = "warm-up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a node's share is what it is. ``imbalance`` is D for availability (missing share of the cluster's
    success), log(load_ref / load) for utilization, log(mean / own) of a call's seconds for latency, the calls too many
    for a queue, consecutive failures for transport, and what is missing of the full ramp for warm-up. ``since_s`` is a
    moment on the caller's clock."""

    objective: Objective = Objective.NONE
    imbalance: float = 0.0
    since_s: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatistics:
    """One node.

    ``share`` is the planned share of all calls (p), ``base_share`` what the base policy alone would give (B),
    ``sent_share`` what was sent in the last 10 s, ``flow_ratio`` p / B, ``weight_ratio`` the utilization law's w.
    ``availability`` is ok / (ok + failed) in the window, None without calls. ``load`` is the dominant of ``loads`` and
    ``resource`` its name.
    ``refuse_ratio`` is the part of its own keys it gives away, ``accept_weight`` the share of all calls it takes over.
    ``passes``, in [0, 1], is the part of its draws that it takes of calls without a key: below 1 while a queue that it
    told of drains, and ``long_queue`` says what it told and since when; 0 while it is ejected.
    """

    identity: str
    node: Node
    share: float
    base_share: float
    sent_share: float
    availability: float | None
    ok: int
    failed: int
    load: float | None
    loads: Mapping[str, float]
    report_state: ReportState
    report_age_s: float | None
    in_flight: int
    queue: float
    flow_ratio: float = 1.0
    weight_ratio: float = 1.0
    refuse_ratio: float = 0.0
    accept_weight: float = 0.0
    passes: float = 1.0
    resource: str | None = None
    list: NodeList = NodeList.NEUTRAL
    reason: Reason = field(default_factory=Reason)
    long_queue: Reason = field(default_factory=Reason)

    @property
    def because(self) -> str:
        """``reason`` and ``long_queue`` in words; empty: nothing moves it."""
        return "; ".join(filter(None, (self.reason.text, self.long_queue.text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStatistics:
    """The fleet as one consumer sees it. ``availability`` is A_cluster; ``load_ref`` the utilization target (None: too
    few fresh reports); ``diverted_fraction`` the share of calls that leave their base node by plan."""

    policy: str
    nodes: tuple[NodeStatistics, ...]
    availability: float | None = None
    load_ref: float | None = None
    is_panic: bool = False
    panics: int = 0
    diverted_fraction: float = 0.0
    rejected_reports: int = 0
    open_calls: int = 0
