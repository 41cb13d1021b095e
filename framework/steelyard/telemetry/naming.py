"""How a call and its end are named: the same words on spans and on metrics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from steelyard.errors import RpcError, Status
from steelyard.invoke import is_business, outcome_of
from steelyard.model import Invocation, Outcome
from steelyard_registry.node import ServiceKey


def method_name(invocation: Invocation) -> str:
    """``interface/method``, without version and group: low in number, and the same on every node and version."""
    return f"{_interface(invocation.service)}/{invocation.method}"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended: its gRPC status, what that says of the node, and ``error.type`` (None: no error).

    ``is_answer`` is True for an exception that the service declares: to the caller an exception, but no fault.
    """

    status: Status
    outcome: Outcome
    error_type: str | None = None
    is_answer: bool = False


_OK = Ending(Status.OK, Outcome.OK)
_LEFT = Ending(Status.CANCELLED, Outcome.IGNORED)


def ending_of(invocation: Invocation, error: BaseException | None) -> Ending:
    """The end of *invocation* by *error* (None: a success).

    A declared exception comes as an RpcError where it is encoded and as itself outside of the codec filter. Leaving (a
    cancelled task, a closed stream) is CANCELLED and no error. Any other exception is UNKNOWN, and the node's fault.
    """
    if error is None:
        return _OK
    if isinstance(error, RpcError):
        return Ending(error.status, outcome_of(error), error.status.name, is_business(error))
    if not isinstance(error, Exception):
        return _LEFT
    if invocation.spec is not None and isinstance(error, invocation.spec.raises):
        return Ending(Status.UNKNOWN, Outcome.IGNORED, _full_name(error), True)
    return Ending(Status.UNKNOWN, Outcome.FAILED, _full_name(error))


def _full_name(error: Exception) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@lru_cache(maxsize=1024)
def _interface(service: str) -> str:
    return ServiceKey.parse(service).interface
