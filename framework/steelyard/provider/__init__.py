"""The serving side: Provider, and what a service is given for its life."""

from .batching import BatchStatistics
from .device import Trouble, trouble_of
from .hooks import Warm
from .life import Health
from .provider import Provider
from .statistics import ProviderStatistics

__all__ = ["BatchStatistics", "Health", "Provider", "ProviderStatistics", "Trouble", "Warm", "trouble_of"]
