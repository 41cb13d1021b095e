from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider
from support.otel import Recorder

from steelyard.errors import RemoteError, Unavailable
from steelyard.filter import client_metrics, server_metrics
from steelyard.invoke import Filter, Invoker
from steelyard.model import Invocation, MethodSpec, Reply
from steelyard.telemetry import Telemetry

SIDES = [(client_metrics, "client"), (server_metrics, "server")]
Side = Callable[..., Filter]


class NoSuchUser(Exception):
    pass


CALL = Invocation("g/ads.Ctr:1", "predict", spec=MethodSpec(name="predict", raises=(NoSuchUser,)))


def around(filter_: Filter, following: Invoker) -> Invoker:
    return lambda invocation: filter_(invocation, following)


def answering(reply: Reply | BaseException) -> Invoker:
    async def answer(invocation: Invocation) -> Reply:
        if isinstance(reply, BaseException):
            raise reply
        return reply

    return answer


@pytest.mark.parametrize(("side", "name"), SIDES)
async def test_a_call_is_timed_and_counted(side: Side, name: str) -> None:
    recorder, ticks = Recorder(), itertools.count(step=0.25)
    await around(side(recorder.telemetry, lambda: next(ticks)), answering(Reply(value=1)))(CALL)
    (duration,) = recorder.points(f"rpc.{name}.call.duration")
    assert duration.unit == "s"
    assert (duration.raw.count, duration.raw.sum) == (1, 0.25)
    assert 0.005 in duration.raw.explicit_bounds
    assert 0.0005 in duration.raw.explicit_bounds
    assert duration.attributes == {
        "rpc.system.name": "steelyard",
        "rpc.method": "ads.Ctr/predict",
        "steelyard.service": "g/ads.Ctr:1",
        "rpc.response.status_code": "OK",
    }
    assert recorder.values(f"steelyard.{name}.calls", "steelyard.outcome") == {"ok": 1}


@pytest.mark.parametrize(("side", "name"), SIDES)
@pytest.mark.parametrize(
    ("error", "status", "outcome", "error_type"),
    [
        (Unavailable("gone"), "UNAVAILABLE", "failed", "UNAVAILABLE"),
        (RemoteError("X: y"), "UNKNOWN", "failed", "UNKNOWN"),
        (RemoteError("X: y", details=b"1"), "UNKNOWN", "ignored", "UNKNOWN"),
        (NoSuchUser("7"), "UNKNOWN", "ignored", f"{__name__}.NoSuchUser"),
        (KeyError("x"), "UNKNOWN", "failed", "KeyError"),
        (asyncio.CancelledError(), "CANCELLED", "ignored", None),
    ],
)
async def test_errors_by_status_outcome_and_type(
    side: Side, name: str, error: BaseException, status: str, outcome: str, error_type: str | None
) -> None:
    recorder = Recorder()
    with pytest.raises(type(error)):
        await around(side(recorder.telemetry), answering(error))(CALL)
    (duration,) = recorder.points(f"rpc.{name}.call.duration")
    assert duration.attributes["rpc.response.status_code"] == status
    assert duration.attributes.get("error.type") == error_type
    assert recorder.values(f"steelyard.{name}.calls", "steelyard.outcome") == {outcome: 1}
    assert recorder.values(f"steelyard.{name}.active_calls", "rpc.method") == {"ads.Ctr/predict": 0}


@pytest.mark.parametrize(("side", "name"), SIDES)
async def test_calls_under_way_are_counted(side: Side, name: str) -> None:
    recorder, go = Recorder(), asyncio.Event()

    async def slow(invocation: Invocation) -> Reply:
        await go.wait()
        return Reply()

    calls = [asyncio.ensure_future(around(side(recorder.telemetry), slow)(CALL)) for _ in range(3)]
    await asyncio.sleep(0)
    assert recorder.values(f"steelyard.{name}.active_calls", "rpc.method") == {"ads.Ctr/predict": 3}
    assert recorder.points(f"rpc.{name}.call.duration") == []
    go.set()
    await asyncio.gather(*calls)
    assert recorder.values(f"steelyard.{name}.active_calls", "rpc.method") == {"ads.Ctr/predict": 0}


@pytest.mark.parametrize(("side", "name"), SIDES)
async def test_a_stream_is_measured_until_it_ends(side: Side, name: str) -> None:
    async def words() -> AsyncIterator[str]:
        yield "a"
        yield "b"

    recorder = Recorder()
    reply = await around(side(recorder.telemetry), answering(Reply(stream=words(), in_flight=2)))(CALL)
    assert reply.in_flight == 2
    assert recorder.values(f"steelyard.{name}.active_calls", "rpc.method") == {"ads.Ctr/predict": 1}
    assert reply.stream is not None
    assert [word async for word in reply.stream] == ["a", "b"]
    assert recorder.values(f"steelyard.{name}.active_calls", "rpc.method") == {"ads.Ctr/predict": 0}
    assert recorder.values(f"steelyard.{name}.calls", "steelyard.outcome") == {"ok": 1}


async def test_a_stream_that_is_left_says_nothing_of_the_node() -> None:
    async def words() -> AsyncIterator[str]:
        yield "a"

    recorder = Recorder()
    reply = await around(client_metrics(recorder.telemetry), answering(Reply(stream=words())))(CALL)
    await reply.stream.aclose()  # type: ignore[union-attr]
    assert recorder.values("steelyard.client.calls", "steelyard.outcome") == {"ignored": 1}


async def test_a_name_that_only_the_caller_knows_begins_no_time_series() -> None:
    recorder = Recorder()
    server = around(server_metrics(recorder.telemetry), answering(Reply()))
    for number in range(3):
        await server(Invocation("made.up", f"name{number}"))
    (point,) = recorder.points("rpc.server.call.duration")
    assert point.attributes["rpc.method"] == "_OTHER"
    assert "steelyard.service" not in point.attributes
    assert point.raw.count == 3


async def test_when_nobody_measures_the_call_is_handed_on_untouched() -> None:
    silent = Telemetry(tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider())
    answer = answering(Reply())(CALL)

    def following(invocation: Invocation) -> Awaitable[Reply]:
        assert invocation is CALL
        return answer

    for side, _ in SIDES:
        assert side(silent)(CALL, following) is answer  # not even a frame of its own
    await answer
