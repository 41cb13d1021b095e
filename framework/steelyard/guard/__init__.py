"""Whether a call is made at all: pure laws. The retry budget now; breaker, limits and protection stand here too."""

from .retry import RetryBudget, backoff_s

__all__ = ["RetryBudget", "backoff_s"]
