"""What travels beside the body of a plain call: attachments, and what gRPC's status cannot say."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.errors import InvalidArgument, Overloaded, RemoteError, Unavailable, error_for
from steelyard.model import Invocation
from steelyard.wire.plain.headers import attachments_of, call_headers, service_key, timeout_s
from steelyard.wire.plain.status import code_of, error_of, text_of, trailers_of


def call(**attachments: str) -> Invocation:
    return Invocation(service="blue/shop.Cart:1.0", method="add", body=b"", attachments=attachments)


keys = st.from_regex(r"[a-z0-9_.-]{1,20}", fullmatch=True).filter(
    lambda key: not key.endswith("-bin") and key not in ("te", "via", "date", "server")
)
# What a person reads: letters, blanks, line breaks; not the rest of the control characters.
values = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" \t\n"), max_size=40)


@given(st.dictionaries(keys, values, max_size=6))
def test_attachments_arrive_as_they_were(attachments: dict[str, str]) -> None:
    key, headers = call_headers(call(**attachments), "app")
    assert key.interface == "shop.Cart"
    assert service_key("shop.Cart", headers) == "blue/shop.Cart:1.0"
    found = attachments_of(headers)
    assert found.pop("tri-consumer-appname", "app") == "app"
    assert found == attachments


@pytest.mark.parametrize(
    "name", ["grpc-timeout", "te", "a b", "ümlaut", "x-bin", "steelyard-x", "tri-service-version", ""]
)
def test_an_attachment_that_cannot_travel_is_named(name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be sent to a plain gRPC server"):
        call_headers(call(**{name: "x"}), "")


def test_any_version_is_asked_for_by_asking_for_none() -> None:
    _, headers = call_headers(Invocation(service="*/shop.Cart:*", method="add", body=b""), "")
    assert headers == []


def test_triples_timeout_is_in_milliseconds_and_nonsense_is_none() -> None:
    assert [timeout_s((("tri-service-timeout", text),)) for text in ("1500", "-1", "soon", "9" * 20)] == [
        1.5,
        None,
        None,
        None,
    ]


def failed(code: grpc.StatusCode, text: str, trailers: Any = ()) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), text)


@pytest.mark.parametrize("may_have_run", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        Unavailable("x"),
        Overloaded("x", retry_after_s=2.5),
        RemoteError("x", details=b"\x00declared"),
        RemoteError("é" * 3000),
        *(error_for(status, "x") for status in (1, 3, 4, 7, 12, 13, 16)),
    ],
)
def test_our_errors_arrive_as_themselves_over_plain_grpc(error: Any, may_have_run: bool) -> None:
    error.may_have_run = may_have_run
    back = error_of(failed(code_of(error), text_of(error), trailers_of(error)), "n:1", is_connected=True)
    assert (type(back), back.may_have_run, back.is_remote, back.node) == (type(error), may_have_run, True, "n:1")
    assert back.details == error.details
    assert back.message == error.message[:2048]


@pytest.mark.parametrize(
    ("code", "text", "is_connected", "may_have_run", "is_remote"),
    [
        ("UNAVAILABLE", "failed to connect to all addresses; last error: refused", False, False, False),
        ("UNAVAILABLE", "Stream removed (Socket closed)", False, True, False),
        ("UNAVAILABLE", "we are closed on Mondays", True, True, True),
        ("UNIMPLEMENTED", "no such method", True, False, True),
        ("RESOURCE_EXHAUSTED", "CLIENT: Received message larger than max (5 vs. 4)", True, True, False),
        ("RESOURCE_EXHAUSTED", "too many", True, True, True),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", True, True, True),
    ],
)
def test_what_can_be_known_of_a_foreign_failure(
    code: str, text: str, is_connected: bool, may_have_run: bool, is_remote: bool
) -> None:
    error = error_of(failed(getattr(grpc.StatusCode, code), text), "n:1", is_connected=is_connected)
    assert (error.may_have_run, error.is_remote) == (may_have_run, is_remote)


def test_details_that_no_header_can_hold_stay_behind() -> None:
    assert [key for key, _ in trailers_of(RemoteError("x", details=bytes(5000)))] == ["steelyard-may-have-run"]


@given(st.binary(max_size=60))
def test_hostile_hints_are_none(status: bytes) -> None:
    trailers = (("grpc-status-details-bin", status), ("grpc-retry-pushback-ms", "-1"))
    error = error_of(failed(grpc.StatusCode.RESOURCE_EXHAUSTED, "x", trailers), "n:1", is_connected=True)
    assert isinstance(error, Overloaded)
