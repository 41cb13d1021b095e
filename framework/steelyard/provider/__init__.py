"""The serving side: Provider, and what a service is given for its life."""

from .batching import BatchStatistics
from .device import Trouble, trouble_of
from .hooks import Warm
from .life import Health
from .provider import Provider
from .statistics import ProviderStatistics
from .workers import MOST_WORKERS, Workers, WorkersFailed, worker_number

__all__ = [
    "MOST_WORKERS",
    "BatchStatistics",
    "Health",
    "Provider",
    "ProviderStatistics",
    "Trouble",
    "Warm",
    "Workers",
    "WorkersFailed",
    "trouble_of",
    "worker_number",
]
