"""The textbook policies. They use what every policy counts and have no control loop."""

from .consistent_hash import ConsistentHash, ConsistentHashSettings
from .metered import LeastActive, TwoChoices
from .round_robin import RoundRobin
from .weighted_random import WeightedRandom

__all__ = ["ConsistentHash", "ConsistentHashSettings", "LeastActive", "RoundRobin", "TwoChoices", "WeightedRandom"]
