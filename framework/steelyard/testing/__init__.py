"""For tests of your own services, and of Steelyard itself: a cluster in this process, and a clock that stands still."""

from .clock import ManualClock
from .local import LocalCluster

__all__ = ["LocalCluster", "ManualClock"]
