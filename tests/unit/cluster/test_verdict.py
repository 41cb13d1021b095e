"""What an error says of the node, and whether the call may be repeated."""

import pytest

from steelyard import errors
from steelyard.cluster import is_transport, may_repeat, outcome_for_node, outcome_of
from steelyard.model import Outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.Unavailable("gone"), Outcome.FAILED),
        (errors.DeadlineExceeded("late"), Outcome.FAILED),
        (errors.Overloaded("full"), Outcome.FAILED),
        (errors.InternalError("bug"), Outcome.FAILED),
        (errors.RemoteError("ValueError: x"), Outcome.FAILED),
        (errors.RemoteError("NoSuchUser: 7", details=b"x"), Outcome.IGNORED),
        (errors.CallCancelled("left"), Outcome.IGNORED),
        (errors.InvalidArgument("bad"), Outcome.IGNORED),
        (errors.Unimplemented("no"), Outcome.IGNORED),
        (errors.PermissionDenied("no"), Outcome.IGNORED),
        (errors.Unauthenticated("no"), Outcome.IGNORED),
    ],
)
def test_outcomes(error: errors.RpcError, outcome: Outcome) -> None:
    assert outcome_of(error) is outcome


@pytest.mark.parametrize(
    ("error", "idempotent", "otherwise"),
    [
        (errors.Unavailable("not sent", may_have_run=False), True, True),
        (errors.Unavailable("lost", may_have_run=True), True, False),
        (errors.Overloaded("full", may_have_run=False), True, True),
        (errors.RemoteError("ValueError: x", may_have_run=True), True, False),
        (errors.InternalError("bug", may_have_run=True), True, False),
        (errors.RemoteError("NoSuchUser: 7", may_have_run=True, details=b"x"), False, False),
        (errors.DeadlineExceeded("late", may_have_run=False), False, False),
        (errors.InvalidArgument("bad"), False, False),
        (errors.Unimplemented("no"), False, False),
    ],
)
def test_repeats(error: errors.RpcError, idempotent: bool, otherwise: bool) -> None:
    assert may_repeat(error, is_idempotent=True) is idempotent
    assert may_repeat(error, is_idempotent=False) is otherwise


def test_only_an_unreachable_node_is_a_transport_failure() -> None:
    assert is_transport(errors.Unavailable("connection refused"))
    assert not is_transport(errors.Unavailable("it says so itself", is_remote=True))
    assert not is_transport(errors.RemoteError("ValueError: x"))


def test_a_bound_of_the_callers_own_is_not_on_the_nodes_account() -> None:
    assert outcome_for_node(errors.Overloaded("4096 calls are in flight here")) is Outcome.IGNORED
    assert outcome_for_node(errors.Overloaded("the provider's queue is full", is_remote=True)) is Outcome.FAILED
    assert outcome_for_node(errors.Unavailable("gone")) is Outcome.FAILED
