"""One root, and for each error: whose fault it is, whether the call may have run, and what to do next.

Statuses are gRPC's (https://grpc.github.io/grpc/core/md_doc_statuscodes.html). The table between statuses and
errors stands once, at the end, and is symmetric: an error that crosses the wire arrives as the same class.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar


class Status(IntEnum):
    """gRPC status codes, by their numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class SteelyardError(Exception):
    """Root of every error that Steelyard raises on purpose."""


class ConfigError(SteelyardError, ValueError):
    """A setting that cannot be used; names the field, the range and the bad value."""


class ContractError(SteelyardError, TypeError):
    """A service declaration, or an implementation that does not fulfil its contract; names both signatures."""


class RegistryUnavailable(SteelyardError, ConnectionError):
    """The registry could not be opened or understood."""


class ListenError(SteelyardError, OSError):
    """A provider cannot listen where it should; names host:port and what to do."""


class RpcError(SteelyardError):
    """A call that did not succeed.

    ``status`` is the gRPC status. ``may_have_run`` is False only when it is certain that the method did not start, so
    that even a method that is not idempotent can be tried on another node. ``node`` is the identity of the node
    that answered or failed, where one is known. ``is_remote`` is True when the error was answered by a provider
    and False when it arose on this side.
    """

    status: ClassVar[Status] = Status.UNKNOWN

    def __init__(
        self,
        message: str = "",
        *,
        may_have_run: bool = False,
        node: str | None = None,
        is_remote: bool = False,
        details: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.may_have_run = may_have_run
        self.node = node
        self.is_remote = is_remote
        self.details = details

    def __str__(self) -> str:
        where = f" (node {self.node})" if self.node else ""
        return f"{self.status.name}: {self.message}{where}"


class CallCancelled(RpcError):
    """The other side gave the call up."""

    status = Status.CANCELLED


class RemoteError(RpcError):
    """The handler raised something that its service does not declare. ``message`` is "Type: text".

    ``details``, when there, is an encoded declared exception (see ``codec``) that the consumer's proxy rebuilds.
    """

    status = Status.UNKNOWN


class InvalidArgument(RpcError, ValueError):
    """The caller's fault: wrong count or type of arguments, or a body that cannot be decoded."""

    status = Status.INVALID_ARGUMENT


class DeadlineExceeded(RpcError, TimeoutError):
    """The call's time ran out."""

    status = Status.DEADLINE_EXCEEDED


class PermissionDenied(RpcError):
    status = Status.PERMISSION_DENIED


_RETRY_AFTER = b"retry-after-ms="


class Overloaded(RpcError):
    """A bound was reached (size, queue, concurrency, rate); the call did not run. Back off, or send less.

    ``retry_after_s``: when the one who refused thinks that it pays to ask it again; it travels in ``details``.
    """

    status = Status.RESOURCE_EXHAUSTED

    def __init__(self, message: str = "", *, retry_after_s: float | None = None, **facts: Any) -> None:
        if retry_after_s is not None:
            facts["details"] = _RETRY_AFTER + str(max(1, round(retry_after_s * 1000))).encode()
        super().__init__(message, **facts)

    @property
    def retry_after_s(self) -> float | None:
        """Seconds, or None where nothing was said."""
        details = self.details or b""
        number = details.removeprefix(_RETRY_AFTER)
        if number == details or not number.isdigit() or len(number) > 9:
            return None
        return int(number) / 1000


class Unimplemented(RpcError):
    """The provider has no such service or method; the message lists what it has."""

    status = Status.UNIMPLEMENTED


class InternalError(RpcError):
    """A broken promise inside the framework or on the wire (for example a reply that cannot be decoded)."""

    status = Status.INTERNAL


class Unavailable(RpcError, ConnectionError):
    """No connection, a lost connection, or a provider that drains."""

    status = Status.UNAVAILABLE


class NoProvider(Unavailable):
    """Nothing to call: no node is registered, or none is left after routing and filtering."""


class Degraded(Unavailable):
    """Refused by active protection, without being sent."""


class Unauthenticated(RpcError):
    status = Status.UNAUTHENTICATED


_BY_STATUS: dict[Status, type[RpcError]] = {
    error.status: error
    for error in (
        CallCancelled,
        RemoteError,
        InvalidArgument,
        DeadlineExceeded,
        PermissionDenied,
        Overloaded,
        Unimplemented,
        InternalError,
        Unavailable,
        Unauthenticated,
    )
}


def error_for(status: int, message: str, **facts: object) -> RpcError:
    """The error of a status that came over the wire; *facts* are RpcError's keywords. Statuses without a class of
    their own (NOT_FOUND, ABORTED, ..., and numbers gRPC does not define) arrive as RemoteError."""
    try:
        known = Status(status)
    except ValueError:
        return RemoteError(f"status {status}: {message}", **facts)  # type: ignore[arg-type]
    kind = _BY_STATUS.get(known)
    if kind is None:
        return RemoteError(f"{known.name}: {message}", **facts)  # type: ignore[arg-type]
    return kind(message, **facts)  # type: ignore[arg-type]
