"""A cluster as one Invoker: directory, picking, failover, and the control loop beside them."""

from .channels import ChannelPool
from .control import control_loop
from .directory import Directory
from .invoker import ClusterInvoker, Failover, FailoverStatistics
from .probing import Prober, ProbeStatistics
from .registries import checked_registry, open_at, translated
from .verdict import is_business, is_transport, may_repeat, outcome_for_node, outcome_of
from .where import Predicate, where

__all__ = [
    "ChannelPool",
    "ClusterInvoker",
    "Directory",
    "Failover",
    "FailoverStatistics",
    "Predicate",
    "ProbeStatistics",
    "Prober",
    "checked_registry",
    "control_loop",
    "is_business",
    "is_transport",
    "may_repeat",
    "open_at",
    "outcome_for_node",
    "outcome_of",
    "translated",
    "where",
]
