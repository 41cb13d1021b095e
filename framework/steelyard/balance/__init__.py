"""To whom a call goes: pure laws. No clock, no random generator, no I/O; ``now_s`` and ``dice`` are arguments."""

from .candidate import Candidate
from .draw import Dice
from .dual import DualSettings
from .factory import make_policy, policy_names
from .hashing import hash_key
from .load import ReportState
from .policy import Policy
from .statistics import NodeList, NodeStatistics, Objective, PolicyStatistics, Reason

__all__ = [
    "Candidate",
    "Dice",
    "DualSettings",
    "NodeList",
    "NodeStatistics",
    "Objective",
    "Policy",
    "PolicyStatistics",
    "Reason",
    "ReportState",
    "hash_key",
    "make_policy",
    "policy_names",
]
