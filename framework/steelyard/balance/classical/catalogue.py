"""The textbook policies by their usual names: which measure goes with which way of choosing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..policy import Policy
from ..settings import NoSettings, check_range
from .choosers import First, LeastOfTwo, OwnZone
from .hashed import BoundedHashSettings, BoundedRing, ConsistentHashSettings, RingOwner
from .metered import metered
from .meters import (
    AdaptiveLoad,
    AdaptiveSettings,
    AvailableSettings,
    InFlight,
    PeakEwma,
    PeakEwmaSettings,
    Reachability,
    ResponseTime,
    ShortestResponseSettings,
)
from .outliers import OutlierEjection
from .prequal import Prequal, PrequalSettings
from .ranked import Ranked
from .spreaders import Draw, Stride, Turns
from .weighers import IdleCpu, ReportedLoad, StaticWeight, WeightedRoundRobinSettings
from .weighted import Ejecting, Weighted


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneAwareSettings:
    """``zone``: the consumer's own; "" knows no zone and takes all alike. ``spill_over`` (1..1000): a call leaves the
    zone when the node found there is this many times as loaded as one found elsewhere."""

    zone: str = ""
    spill_over: float = 2.0

    def __post_init__(self) -> None:
        check_range("spill_over", self.spill_over, 1.0, 1000.0)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A policy's name, the type of its settings, and how to make it of them."""

    name: str
    settings_type: type[Any]
    make: Callable[[Any], Policy]


def _weighted_round_robin(settings: WeightedRoundRobinSettings) -> Policy:
    name, weigher, spreader = "weighted_round_robin", ReportedLoad(settings), Stride()
    if settings.outlier_ejection:
        return Ejecting(name, weigher, spreader, OutlierEjection())
    return Weighted(name, weigher, spreader)


RECIPES: tuple[Recipe, ...] = (
    Recipe("random", NoSettings, lambda _: Weighted("random", StaticWeight(), Draw())),
    Recipe("round_robin", NoSettings, lambda _: Weighted("round_robin", StaticWeight(), Turns())),
    Recipe("weighted_round_robin", WeightedRoundRobinSettings, _weighted_round_robin),
    Recipe("ralb", NoSettings, lambda _: Weighted("ralb", IdleCpu(), Draw())),
    Recipe(
        "consistent_hash", ConsistentHashSettings, lambda s: Weighted("consistent_hash", StaticWeight(), RingOwner(s))
    ),
    Recipe("bounded_hash", BoundedHashSettings, lambda s: Weighted("bounded_hash", StaticWeight(), BoundedRing(s))),
    Recipe("least_active", NoSettings, lambda _: Ranked("least_active", InFlight())),
    Recipe("p2c", NoSettings, lambda _: metered("p2c", InFlight(), LeastOfTwo())),
    Recipe(
        "shortest_response",
        ShortestResponseSettings,
        lambda s: Ranked("shortest_response", ResponseTime(s)),
    ),
    Recipe("peak_ewma", PeakEwmaSettings, lambda s: metered("peak_ewma", PeakEwma(s), LeastOfTwo())),
    Recipe("adaptive", AdaptiveSettings, lambda s: metered("adaptive", AdaptiveLoad(s), LeastOfTwo())),
    Recipe("zone_aware", ZoneAwareSettings, lambda s: metered("zone_aware", InFlight(), OwnZone(s.zone, s.spill_over))),
    Recipe("available", AvailableSettings, lambda s: metered("available", Reachability(s), First())),
    Recipe("prequal", PrequalSettings, Prequal),
)
