"""Errors of plain calls: gRPC statuses and trailers, by the one table of ``errors``.

What gRPC's status cannot say goes into trailers. Ours, which foreign clients pass over: ``steelyard-may-have-run``
(whether a refusal came before the handler) and ``steelyard-details-bin`` (a declared exception). Everybody's: the hint
when to ask again, as gRPC's own retries read it (``grpc-retry-pushback-ms``, gRFC A6) and as applications do
(``google.rpc.RetryInfo`` in ``grpc-status-details-bin``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio

from steelyard.errors import Overloaded, RpcError, Status, error_for

from . import message

MESSAGE_CHARACTERS = 2048
DETAILS_BYTES = 4 * 1024
"""Header lists above 8 KiB are refused by most servers and proxies; larger details stay behind."""

_MAY_HAVE_RUN = "steelyard-may-have-run"
_DETAILS = "steelyard-details-bin"
_PUSHBACK = "grpc-retry-pushback-ms"
_STATUS_DETAILS = "grpc-status-details-bin"
_RETRY_INFO = "type.googleapis.com/google.rpc.RetryInfo"
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# How gRPC's core begins the text of what it says itself: nothing has left, and nothing that came was taken. It has no
# other sign for it (grpcio 1.66 to 1.85).
_NEVER_SENT = ("failed to connect to all addresses",)
_OWN_BOUND = ("CLIENT: ", "Received message larger than max")

Trailers = list[tuple[str, str | bytes]]


def code_of(error: RpcError) -> grpc.StatusCode:
    return _CODES.get(int(error.status), grpc.StatusCode.UNKNOWN)


def text_of(error: RpcError) -> str:
    return str(error.message)[:MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()


def trailers_of(error: RpcError) -> Trailers:
    """What a provider says of *error* beside status and text."""
    trailers: Trailers = [(_MAY_HAVE_RUN, "1" if error.may_have_run else "0")]
    retry_after_s = error.retry_after_s if isinstance(error, Overloaded) else None
    if retry_after_s is not None:
        trailers.append((_PUSHBACK, str(round(retry_after_s * 1000))))
        trailers.append((_STATUS_DETAILS, _retry_info(error, retry_after_s)))
    elif error.details and len(error.details) <= DETAILS_BYTES:
        trailers.append((_DETAILS, error.details))
    return trailers


def error_of(error: grpc.aio.AioRpcError, node: str, *, is_connected: bool) -> RpcError:
    """What a caller is told. *is_connected*: the connection stood when the call ended.

    Only three things certainly did not run: what could not be sent, what the server has no method for, and what a
    provider of ours says has not.
    """
    code, text = error.code(), error.details() or ""
    trailers = dict(error.trailing_metadata() or ())
    told = trailers.get(_MAY_HAVE_RUN)
    is_ours = told in ("0", "1")
    is_unsent = not is_ours and code is grpc.StatusCode.UNAVAILABLE and text.startswith(_NEVER_SENT)
    is_local = not is_ours and (
        is_unsent
        or (code is grpc.StatusCode.UNAVAILABLE and not is_connected)
        or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and text.startswith(_OWN_BOUND))
    )
    may_have_run = told == "1" if is_ours else not is_unsent and code is not grpc.StatusCode.UNIMPLEMENTED
    facts: dict[str, Any] = {"node": node, "is_remote": not is_local, "may_have_run": may_have_run}
    status = int(code.value[0])
    if status == Status.RESOURCE_EXHAUSTED:
        return Overloaded(text, retry_after_s=_retry_after_s(trailers.items()), **facts)
    details = trailers.get(_DETAILS)
    return error_for(status, text, details=details if type(details) is bytes else None, **facts)


def _retry_after_s(trailers: Iterable[tuple[str, Any]]) -> float | None:
    """gRPC's own header, or else google.rpc.RetryInfo. Seconds; None where nothing usable was said."""
    found = None
    for key, value in trailers:
        if key == _PUSHBACK and type(value) is str and value.isascii() and value.isdigit() and len(value) < 10:
            return int(value) / 1000
        if key == _STATUS_DETAILS and type(value) is bytes:
            try:
                found = _read_retry_info(value)
            except ValueError:
                continue
    return found


def _retry_info(error: RpcError, retry_after_s: float) -> bytes:
    """A ``google.rpc.Status`` with one ``RetryInfo``."""
    seconds, rest = divmod(round(retry_after_s * 1000), 1000)
    delay = message.number(1, seconds) + message.number(2, rest * 1_000_000)
    info = message.text(1, _RETRY_INFO) + message.data(2, message.data(1, delay))
    return message.number(1, int(error.status)) + message.text(2, text_of(error)) + message.data(3, info)


def _read_retry_info(status: bytes) -> float | None:
    for field, detail in message.fields(status):
        if field != 3:
            continue
        parts = dict(message.fields(message.as_bytes(detail)))
        if parts.get(1) != _RETRY_INFO.encode():
            continue
        delay = dict(
            message.fields(message.as_bytes(dict(message.fields(message.as_bytes(parts.get(2, b"")))).get(1, b"")))
        )
        wait_s = message.as_number(delay.get(1, 0)) + message.as_number(delay.get(2, 0)) / 1e9
        return wait_s if 0 <= wait_s < 1e6 else None
    return None
