"""What an error says about the node, and whether the call may be tried on another one.

Two tables, because they answer different questions: a business exception is an answer (neither a fault nor a reason to
try again), a refused argument will be refused everywhere, and a node that drains is no sick node.
"""

from __future__ import annotations

from steelyard.errors import RpcError, Status
from steelyard.invoke import is_business, outcome_of
from steelyard.model import Outcome

__all__ = ["is_business", "is_transport", "may_repeat", "outcome_for_node", "outcome_of"]

_REPEATABLE = frozenset({Status.UNKNOWN, Status.RESOURCE_EXHAUSTED, Status.INTERNAL, Status.UNAVAILABLE})


def outcome_for_node(error: RpcError) -> Outcome:
    """``outcome_of`` as the account of the node that was asked: a bound of this side's own (its calls in flight,
    its queue) says nothing about the node, which never heard of the call."""
    if error.status is Status.RESOURCE_EXHAUSTED and not error.is_remote:
        return Outcome.IGNORED
    return outcome_of(error)


def is_transport(error: RpcError) -> bool:
    """Whether the node could not be reached at all, as opposed to answering badly."""
    return error.status is Status.UNAVAILABLE and not error.is_remote


def may_repeat(error: RpcError, is_idempotent: bool) -> bool:
    """Whether another node may be asked: only what certainly did not run, or may run twice. A deadline is the whole
    call's, so after DEADLINE_EXCEEDED nothing is left to try with."""
    if error.status not in _REPEATABLE or is_business(error):
        return False
    return is_idempotent or not error.may_have_run
