"""For tests of your own services, and of Steelyard itself: a cluster in this process, a clock that stands still, and
what stands in for hardware that this machine does not have."""

from .clock import ManualClock
from .device import DutyCycle, EmulatedDevice
from .local import LocalCluster
from .quotas import QUOTA_PREFIX, Quotas, QuotasRefused, is_of_dead_run, run_name

__all__ = [
    "QUOTA_PREFIX",
    "DutyCycle",
    "EmulatedDevice",
    "LocalCluster",
    "ManualClock",
    "Quotas",
    "QuotasRefused",
    "is_of_dead_run",
    "run_name",
]
