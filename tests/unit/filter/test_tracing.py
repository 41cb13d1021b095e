from __future__ import annotations

import asyncio
import contextvars
import gc
import re
from collections.abc import AsyncIterator, Awaitable

import pytest
from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode
from support.otel import Recorder

from steelyard.errors import (
    CallCancelled,
    InvalidArgument,
    Overloaded,
    RemoteError,
    RpcError,
    Unavailable,
    Unimplemented,
)
from steelyard.filter import client_tracing, server_tracing
from steelyard.invoke import Filter, Invoker
from steelyard.model import Invocation, MethodSpec, Reply
from steelyard.telemetry import Telemetry, note_attempt
from steelyard_registry.node import Node

CALL = Invocation("g/ads.Ctr:1.0.0", "predict", attachments={"tenant": "7"})


class NoSuchUser(Exception):
    pass


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def around(filter_: Filter, following: Invoker) -> Invoker:
    return lambda invocation: filter_(invocation, following)


def failing(error: BaseException) -> Invoker:
    async def fail(invocation: Invocation) -> Reply:
        raise error

    return fail


async def echo(invocation: Invocation) -> Reply:
    return Reply(value=invocation)


async def test_a_client_span_says_what_was_called(recorder: Recorder) -> None:
    await around(client_tracing(recorder.telemetry), echo)(CALL)
    span = recorder.span()
    assert span.name == "ads.Ctr/predict"
    assert span.kind is SpanKind.CLIENT
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes == {
        "rpc.system.name": "steelyard",
        "rpc.method": "ads.Ctr/predict",
        "steelyard.service": "g/ads.Ctr:1.0.0",
        "rpc.response.status_code": "OK",
        "steelyard.outcome": "ok",
    }


async def test_the_context_goes_into_the_attachments_beside_what_is_there(recorder: Recorder) -> None:
    reply = await around(client_tracing(recorder.telemetry), echo)(CALL)
    attachments = reply.value.attachments
    assert attachments["tenant"] == "7"
    context = recorder.span().context
    # 01 is "sampled"; newer SDKs add 02, "the trace id is random".
    expected = f"00-{context.trace_id:032x}-{context.span_id:016x}-0[13]"
    assert re.fullmatch(expected, attachments["traceparent"])
    assert CALL.attachments == {"tenant": "7"}


async def test_a_client_span_is_a_child_of_the_applications(recorder: Recorder) -> None:
    with recorder.telemetry.tracer.start_as_current_span("page") as page:
        await around(client_tracing(recorder.telemetry), echo)(CALL)
        assert trace.get_current_span() is page
    call, _ = recorder.spans
    assert call.parent is not None
    assert call.parent.span_id == page.get_span_context().span_id


async def test_a_server_span_continues_the_callers_trace(recorder: Recorder) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    server = around(server_tracing(recorder.telemetry, lambda: "[::1]:8080"), echo)
    await server(Invocation("ads.Ctr", "predict", attachments={"traceparent": traceparent}))
    span = recorder.span()
    assert span.kind is SpanKind.SERVER
    assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    assert span.attributes is not None
    assert span.attributes["steelyard.node"] == "ads.Ctr@[::1]:8080"
    assert (span.attributes["server.address"], span.attributes["server.port"]) == ("::1", 8080)


@pytest.mark.parametrize("traceparent", ["", "garbage", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_a_bad_context_begins_a_new_trace(recorder: Recorder, traceparent: str) -> None:
    server = around(server_tracing(recorder.telemetry), echo)
    await server(Invocation("s", "m", attachments={"traceparent": traceparent}))
    assert recorder.span().parent is None


async def test_a_call_within_a_served_call_joins_one_trace(recorder: Recorder) -> None:
    """client -> (wire) -> server -> handler -> client -> (wire) -> server, each side with its own context."""
    telemetry = recorder.telemetry

    def over_the_wire(invoker: Invoker) -> Invoker:
        async def send(invocation: Invocation) -> Reply:
            received = Invocation(invocation.service, invocation.method, attachments=dict(invocation.attachments))
            # A task with an empty context: nothing but the attachments crosses.
            return await asyncio.get_running_loop().create_task(
                _awaited(invoker(received)), context=contextvars.Context()
            )

        return send

    inner = around(client_tracing(telemetry), over_the_wire(around(server_tracing(telemetry), echo)))

    async def handler(invocation: Invocation) -> Reply:
        return await inner(Invocation("inner", "b"))

    await around(client_tracing(telemetry), over_the_wire(around(server_tracing(telemetry), handler)))(
        Invocation("outer", "a")
    )
    by_id = {span.context.span_id: span for span in recorder.spans}
    assert len(by_id) == 4
    assert len({span.context.trace_id for span in recorder.spans}) == 1
    chain, span = [], recorder.spans[0]
    while True:
        chain.append((span.name, span.kind))
        if span.parent is None:
            break
        span = by_id[span.parent.span_id]
    assert chain == [
        ("inner/b", SpanKind.SERVER),
        ("inner/b", SpanKind.CLIENT),
        ("outer/a", SpanKind.SERVER),
        ("outer/a", SpanKind.CLIENT),
    ]


async def _awaited(reply: Awaitable[Reply]) -> Reply:
    return await reply


@pytest.mark.parametrize(
    ("error", "status", "client_is_error", "server_is_error", "outcome"),
    [
        (Unavailable("gone"), "UNAVAILABLE", True, True, "failed"),
        (RemoteError("KeyError: x"), "UNKNOWN", True, True, "failed"),
        (RemoteError("NoSuchUser: 7", details=b"x"), "UNKNOWN", False, False, "ignored"),
        (InvalidArgument("bad"), "INVALID_ARGUMENT", True, False, "ignored"),
        (Overloaded("full"), "RESOURCE_EXHAUSTED", True, False, "failed"),
        (Unimplemented("what"), "UNIMPLEMENTED", True, True, "ignored"),
        (CallCancelled("left"), "CANCELLED", True, False, "ignored"),
    ],
)
async def test_an_rpc_error_is_told_by_its_status(
    error: RpcError, status: str, client_is_error: bool, server_is_error: bool, outcome: str
) -> None:
    for side, is_error in ((client_tracing, client_is_error), (server_tracing, server_is_error)):
        recorder = Recorder()
        with pytest.raises(type(error)):
            await around(side(recorder.telemetry), failing(error))(CALL)
        span = recorder.span()
        assert span.attributes is not None
        assert span.attributes["rpc.response.status_code"] == status
        assert span.attributes["error.type"] == status
        assert span.attributes["steelyard.outcome"] == outcome
        assert (span.status.status_code is StatusCode.ERROR) == is_error
        assert span.status.description == (error.message if is_error else None)
        assert not span.events


async def test_a_strange_exception_is_recorded_whole(recorder: Recorder) -> None:
    with pytest.raises(ZeroDivisionError):
        await around(server_tracing(recorder.telemetry), failing(ZeroDivisionError("by zero")))(CALL)
    span = recorder.span()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "ZeroDivisionError"
    assert span.attributes["rpc.response.status_code"] == "UNKNOWN"
    assert [event.name for event in span.events] == ["exception"]


async def test_a_declared_exception_is_an_answer(recorder: Recorder) -> None:
    call = Invocation("s", "m", spec=MethodSpec(name="m", raises=(NoSuchUser,)))
    with pytest.raises(NoSuchUser):
        await around(client_tracing(recorder.telemetry), failing(NoSuchUser("7")))(call)
    span = recorder.span()
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes is not None
    assert span.attributes["steelyard.outcome"] == "ignored"
    assert str(span.attributes["error.type"]).endswith(".NoSuchUser")


async def test_a_caller_who_leaves_is_cancelled_and_no_error(recorder: Recorder) -> None:
    async def slow(invocation: Invocation) -> Reply:
        await asyncio.sleep(60)
        return Reply()

    task = asyncio.ensure_future(around(client_tracing(recorder.telemetry), slow)(CALL))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    span = recorder.span()
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes is not None
    assert span.attributes["rpc.response.status_code"] == "CANCELLED"
    assert "error.type" not in span.attributes


async def test_the_node_and_each_further_one_are_named(recorder: Recorder) -> None:
    async def cluster(invocation: Invocation) -> Reply:
        for port in (1, 2):
            note_attempt(Node(interface="s", host="h", port=port))
        return Reply()

    await around(client_tracing(recorder.telemetry), cluster)(CALL)
    span = recorder.span()
    assert span.attributes is not None
    assert span.attributes["steelyard.node"] == "s@h:2"
    assert (span.attributes["server.address"], span.attributes["server.port"]) == ("h", 2)
    assert span.attributes["steelyard.attempts"] == 2
    assert [(event.name, dict(event.attributes or {})) for event in span.events] == [
        ("steelyard.retry", {"steelyard.node": "s@h:2", "steelyard.attempts": 2})
    ]


async def test_the_node_of_an_error_is_named(recorder: Recorder) -> None:
    with pytest.raises(Unavailable):
        await around(client_tracing(recorder.telemetry), failing(Unavailable("gone", node="s@h:1")))(CALL)
    assert recorder.span().attributes is not None
    assert recorder.span().attributes["steelyard.node"] == "s@h:1"  # type: ignore[index]


async def test_attempts_of_an_untraced_call_go_nowhere() -> None:
    note_attempt(Node(interface="s", host="h", port=1))


async def words() -> AsyncIterator[str]:
    yield "a"
    yield "b"


async def stream_of_words(invocation: Invocation) -> Reply:
    return Reply(stream=words(), in_flight=4)


@pytest.mark.parametrize("side", [client_tracing, server_tracing])
async def test_a_streams_span_ends_with_the_stream(recorder: Recorder, side: type) -> None:
    reply = await around(side(recorder.telemetry), stream_of_words)(CALL)
    assert reply.in_flight == 4
    assert reply.stream is not None
    assert recorder.spans == []
    assert [word async for word in reply.stream] == ["a", "b"]
    span = recorder.span()
    assert span.attributes is not None
    assert span.attributes["rpc.response.status_code"] == "OK"


async def test_a_stream_that_fails_is_told(recorder: Recorder) -> None:
    async def broken() -> AsyncIterator[str]:
        yield "a"
        raise Unavailable("lost", node="s@h:1")

    async def following(invocation: Invocation) -> Reply:
        return Reply(stream=broken())

    reply = await around(client_tracing(recorder.telemetry), following)(CALL)
    assert reply.stream is not None
    with pytest.raises(Unavailable):
        _ = [word async for word in reply.stream]
    span = recorder.span()
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["rpc.response.status_code"] == "UNAVAILABLE"
    assert span.attributes["steelyard.node"] == "s@h:1"


async def test_a_stream_that_is_left_or_dropped_ends_its_span(recorder: Recorder) -> None:
    reply = await around(client_tracing(recorder.telemetry), stream_of_words)(CALL)
    await reply.stream.aclose()  # type: ignore[union-attr]
    assert len(recorder.spans) == 1
    reply = await around(client_tracing(recorder.telemetry), stream_of_words)(CALL)
    del reply
    gc.collect()
    assert len(recorder.spans) == 2
    for span in recorder.spans:
        assert span.attributes is not None
        assert span.attributes["rpc.response.status_code"] == "CANCELLED"
        assert span.status.status_code is StatusCode.UNSET


async def test_what_a_stream_calls_is_its_child(recorder: Recorder) -> None:
    inner = around(client_tracing(recorder.telemetry), echo)

    async def calling() -> AsyncIterator[str]:
        await inner(Invocation("inner", "b"))
        yield "a"

    async def following(invocation: Invocation) -> Reply:
        return Reply(stream=calling())

    reply = await around(server_tracing(recorder.telemetry), following)(Invocation("outer", "a"))
    assert reply.stream is not None
    async for _ in reply.stream:
        assert not trace.get_current_span().is_recording()
    child, parent = recorder.spans
    assert (child.name, parent.name) == ("inner/b", "outer/a")
    assert child.parent is not None
    assert child.parent.span_id == parent.context.span_id


async def test_when_nobody_traces_the_call_is_handed_on_untouched() -> None:
    silent = Telemetry(tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider())
    seen: list[Invocation] = []
    answer = echo(CALL)

    def following(invocation: Invocation) -> Awaitable[Reply]:
        seen.append(invocation)
        return answer

    for side in (client_tracing, server_tracing):
        assert side(silent)(CALL, following) is answer  # not even a frame of its own
    assert all(invocation is CALL for invocation in seen)
    assert len(seen) == 2
    await answer
