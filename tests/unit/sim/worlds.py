"""Small worlds for the simulator's tests."""

from __future__ import annotations

from typing import Any

import msgspec

from steelyard.balance import make_policy
from steelyard.sim.arrivals import draw_arrivals
from steelyard.sim.scenario import Scenario
from steelyard.sim.world import World


def scenario(**parts: Any) -> Scenario:
    """A scenario from plain data, with four nodes of one core unless said otherwise."""
    document: dict[str, Any] = {
        "name": "small",
        "text": "A small one.",
        "seconds": 20,
        "nodes": [{"name": "node", "count": 4, "discipline": "sharing"}],
        "measure": {"from_s": 5},
    }
    return msgspec.convert({**document, **parts}, Scenario)


def run(policy: str = "random", seed: int = 1, **parts: Any) -> World:
    """A world that has run to its end."""
    described = scenario(**parts)
    world = World(described, draw_arrivals(described, seed), lambda: make_policy(policy), seed)
    world.run()
    return world
