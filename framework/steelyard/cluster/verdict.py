"""What an error says about the node, and whether the call may be tried on another one.

Two tables, because they answer different questions: a business exception is an answer (neither a fault nor a reason to
try again), a refused argument will be refused everywhere, and a node that drains is no sick node.
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
_REPEATABLE = frozenset({Status.UNKNOWN, Status.RESOURCE_EXHAUSTED, Status.INTERNAL, Status.UNAVAILABLE})


def outcome_of(error: RpcError) -> Outcome:
    """FAILED for faults of the node or of the way to it; IGNORED for business exceptions and the caller's own
    faults."""
    if error.status in _FAULTS and not is_business(error):
        return Outcome.FAILED
    return Outcome.IGNORED


def is_business(error: RpcError) -> bool:
    """Whether this carries an exception that the service declares: an answer, not a fault."""
    return error.status is Status.UNKNOWN and error.details is not None


def is_transport(error: RpcError) -> bool:
    """Whether the node could not be reached at all, as opposed to answering badly."""
    return error.status is Status.UNAVAILABLE and not error.is_remote


def may_repeat(error: RpcError, is_idempotent: bool) -> bool:
    """Whether another node may be asked: only what certainly did not run, or may run twice. A deadline is the whole
    call's, so after DEADLINE_EXCEEDED nothing is left to try with."""
    if error.status not in _REPEATABLE or is_business(error):
        return False
    return is_idempotent or not error.may_have_run
