"""What a provider can show of itself, for tests, operators and bug reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from steelyard.guard import ConcurrencyStatistics
from steelyard_registry import NodeState

from .batching import BatchStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityStatistics:
    """Calls refused since the start: ``unauthenticated`` (no proof, a wrong one, or a wrong service token), ``limited``
    (more a second than one caller may make), ``denied`` by the rules, by ``service key.method``."""

    unauthenticated: int
    limited: int
    denied: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderStatistics:
    """``states`` by service key, and ``reasons`` why those that are failed are. ``limits`` and ``batches`` by
    ``service key.method``. ``in_flight`` calls are served, of which ``queue_depth`` wait for a thread or a batch;
    ``calls`` are over since the start, of which ``errors`` speak against this node (business exceptions do not).
    ``utilization`` is the newest sample, ``age_s`` its age (None: none yet). ``security``: who was not let in."""

    states: Mapping[str, NodeState]
    reasons: Mapping[str, str]
    limits: Mapping[str, ConcurrencyStatistics]
    batches: Mapping[str, BatchStatistics]
    in_flight: int
    queue_depth: int
    calls: int
    errors: int
    utilization: Mapping[str, float]
    age_s: float | None
    security: SecurityStatistics
