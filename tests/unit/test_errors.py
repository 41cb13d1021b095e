"""The table between statuses and errors is symmetric."""

import pytest

from steelyard.errors import RemoteError, RpcError, Status, SteelyardError, error_for


def concrete(kind: type[RpcError]) -> list[type[RpcError]]:
    return [kind, *(inner for child in kind.__subclasses__() for inner in concrete(child))]


@pytest.mark.parametrize(
    "kind", [kind for kind in concrete(RpcError) if kind is not RpcError], ids=lambda k: k.__name__
)
def test_an_error_arrives_as_its_class_or_the_class_of_its_status(kind: type[RpcError]) -> None:
    arrived = error_for(kind.status, "why", may_have_run=True, node="n", is_remote=True, details=b"d")
    assert issubclass(kind, type(arrived))
    assert (arrived.status, arrived.message, arrived.may_have_run) == (kind.status, "why", True)
    assert (arrived.node, arrived.is_remote, arrived.details) == ("n", True, b"d")


@pytest.mark.parametrize("number", [-1, 17, 99, Status.NOT_FOUND, Status.ABORTED])
def test_a_status_without_a_class_arrives_as_a_remote_error(number: int) -> None:
    arrived = error_for(number, "why")
    assert type(arrived) is RemoteError
    assert "why" in str(arrived)


def test_everything_has_one_root() -> None:
    assert all(issubclass(kind, SteelyardError) for kind in concrete(RpcError))


def test_the_text_names_status_and_node() -> None:
    assert str(error_for(14, "connection lost", node="ads.Ctr@10.0.0.1:1")) == (
        "UNAVAILABLE: connection lost (node ads.Ctr@10.0.0.1:1)"
    )
