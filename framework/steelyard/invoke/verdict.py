"""What the end of a call says about the node that it went to.

It stands on this low floor because the cluster (to balance) and the metrics filter (to count) must say the same.
"""

from __future__ import annotations

from steelyard.errors import RpcError, Status
from steelyard.model import Outcome

_FAULTS = frozenset(
    {
        Status.UNKNOWN,
        Status.DEADLINE_EXCEEDED,
        Status.RESOURCE_EXHAUSTED,
        Status.INTERNAL,
        Status.UNAVAILABLE,
        Status.DATA_LOSS,
    }
)


def outcome_of(error: RpcError) -> Outcome:
    """FAILED: a fault of the node or of the way to it. IGNORED: a business exception, or the caller's own fault."""
    if error.status in _FAULTS and not is_business(error):
        return Outcome.FAILED
    return Outcome.IGNORED


def is_business(error: RpcError) -> bool:
    """Whether this carries an exception that the service declares: an answer, not a fault."""
    return error.status is Status.UNKNOWN and error.details is not None
