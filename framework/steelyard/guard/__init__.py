"""Whether a call is made at all, and how often: pure laws. Retry budget, hedging's quantile, protection,
concurrency limit."""

from .concurrency import SLACK_S, ConcurrencyLimit, ConcurrencySettings, ConcurrencyStatistics, Ending
from .protection import (
    Admission,
    Level,
    Protection,
    ProtectionEvent,
    ProtectionSettings,
    ProtectionStatistics,
    WaitStatistics,
)
from .quantile import Quantile
from .rate import Rate, Rates
from .retry import RetryBudget, backoff_s

__all__ = [
    "SLACK_S",
    "Admission",
    "ConcurrencyLimit",
    "ConcurrencySettings",
    "ConcurrencyStatistics",
    "Ending",
    "Level",
    "Protection",
    "ProtectionEvent",
    "ProtectionSettings",
    "ProtectionStatistics",
    "Quantile",
    "Rate",
    "Rates",
    "RetryBudget",
    "WaitStatistics",
    "backoff_s",
]
