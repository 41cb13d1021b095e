"""What the demonstration does and when, as data: the fleet, the phases, the traffic.

Everything scales with ``--seconds``, so that a test can play the same piece in twelve seconds. The sizes below were
found by measuring on two cores; the reasons stand beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from steelyard.errors import ConfigError

SHORTEST_S = 8.0
LONGEST_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What a user chose. ``registry``: None makes a private embedded one. ``plot`` None: no picture."""

    seconds: float = 30.0
    json: Path | None = None
    plot: Path | None = None
    has_fault: bool = True
    registry: str | None = None
    policy: str = "dual"

    def __post_init__(self) -> None:
        if not SHORTEST_S <= self.seconds <= LONGEST_S:
            raise ConfigError(
                f"--seconds: {SHORTEST_S:g} to {LONGEST_S:g}, not {self.seconds:g} "
                "(less leaves the balancer no time to show anything)"
            )
        if self.plot is not None and self.plot.suffix.lower() not in PICTURE_SUFFIXES:
            raise ConfigError(f"--plot: a file ending in {' or '.join(PICTURE_SUFFIXES)}, not {self.plot}")


PICTURE_SUFFIXES = (".png", ".html")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One provider process. ``quota`` is in cores (None: no limit); ``device_s`` is the service time of its emulated
    device for one call (None: it computes on its CPU)."""

    name: str
    quota: float | None = None
    device_s: float | None = None

    @property
    def is_gpu(self) -> bool:
        return self.device_s is not None


# CPU shares 1 : 1.6 : 2.5, the spread of the machine generations of a grown fleet, and two devices beside them.
# Together about 0.8 of a core, so that two cores leave one for the consumer, the live table and whatever else the
# machine does: a quota that cannot be had would make the node look idle and be slow.
FLEET = (
    NodePlan(name="tiny-1", quota=0.08),
    NodePlan(name="tiny-2", quota=0.08),
    NodePlan(name="mid-1", quota=0.13),
    NodePlan(name="mid-2", quota=0.13),
    NodePlan(name="big-1", quota=0.20),
    NodePlan(name="big-2", quota=0.20),
    NodePlan(name="gpu-1", device_s=0.006),
    NodePlan(name="gpu-2", device_s=0.006),
)
# A middling node: neither its loss nor its return decides the picture of the others. Its twin has the same hardware and
# stays well, so the twin's share is what is fair for it, whatever the policy makes of the hardware.
SICK_NODE = "mid-1"
TWIN = "mid-2"
SICK_SHARE_OF_FAILURES = 0.5

# Open loop: calls come when they come, whether or not the last ones were answered; only so does a slow node hurt.
RATE_PER_S = 240.0
USERS = 5000
# What the model may cost a CPU node per call, beside what the framework costs: the model must be the larger part.
MODEL_COST_S = 0.0012
WARM_UP_S = 0.6

# One BLAS thread a process: eight nodes with a thread per core each would measure the scheduler, and the calibration of
# the model (``copies_for``) would measure how busy the machine is.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

_WHAT = {"dual": "dual: availability first, then utilization"}


@dataclass(frozen=True, slots=True)
class Phase:
    """A named stretch of the run, in seconds from its start."""

    name: str
    start_s: float
    end_s: float
    what: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """When things happen, in seconds from the first counted call."""

    seconds: float
    has_fault: bool
    policy: str

    @property
    def switch_s(self) -> float:
        """The end of plain hashing."""
        return self.seconds / 6

    @property
    def fault_s(self) -> float:
        return self.seconds / 3

    @property
    def heal_s(self) -> float:
        return self.seconds * 2 / 3

    @property
    def settled_s(self) -> float:
        """From here on a sick node must be out of the way: the third second of the fault (or its second half, when
        it lasts less than four seconds)."""
        return self.fault_s + min(2.0, (self.heal_s - self.fault_s) / 2)

    @property
    def before(self) -> tuple[float, float]:
        """The window in which the spread of plain hashing is measured."""
        return 0.0, self.switch_s

    @property
    def after(self) -> tuple[float, float]:
        """The last seconds: as long as ``before``."""
        return self.seconds - self.switch_s, self.seconds

    @property
    def spread_over_s(self) -> float:
        """Over how long loads are averaged before they are compared. In one second the smallest node answers a dozen
        calls, and chance alone spreads the loads by a quarter of what plain hashing does; over three by a seventh."""
        return min(3.0, max(1.0, math.floor(self.switch_s)))

    @property
    def phases(self) -> tuple[Phase, ...]:
        plain = Phase("plain hashing", 0.0, self.switch_s, "every node gets about as many calls, able or not")
        does = _WHAT.get(self.policy, f"by {self.policy}")
        if not self.has_fault:
            return plain, Phase("balancing", self.switch_s, self.seconds, does)
        return (
            plain,
            Phase("balancing", self.switch_s, self.fault_s, does),
            Phase("fault", self.fault_s, self.heal_s, f"{SICK_NODE} fails half its calls"),
            Phase("healed", self.heal_s, self.seconds, f"{SICK_NODE} is well again"),
        )

    def phase_at(self, at_s: float) -> Phase:
        return next((phase for phase in self.phases if at_s < phase.end_s), self.phases[-1])
