"""To whom a call goes: pure laws. No clock, no random generator, no I/O; ``now_s`` and ``dice`` are arguments."""

from .candidate import Candidate
from .classical import LatencyByLoad
from .draw import Dice
from .dual import DualSettings
from .factory import make_policy, policy_names
from .hashing import hash_key
from .load import ReportState, steering_load
from .policy import Policy, PolicyBase, ProbingPolicy
from .statistics import NodeList, NodeStatistics, Objective, PolicyStatistics, Reason

__all__ = [
    "Candidate",
    "Dice",
    "DualSettings",
    "LatencyByLoad",
    "NodeList",
    "NodeStatistics",
    "Objective",
    "Policy",
    "PolicyBase",
    "PolicyStatistics",
    "ProbingPolicy",
    "Reason",
    "ReportState",
    "hash_key",
    "make_policy",
    "policy_names",
    "steering_load",
]
