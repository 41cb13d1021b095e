"""Duration, outcome and number of calls under way, on both sides.

Labels are few on purpose: method, status, outcome. A node is no label of a duration (a fleet of thousands would give
as many histograms); what a consumer knows of each node is shown by the gauges of ``Telemetry.observe``.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from steelyard.invoke import Bound, Filter, Invoker
from steelyard.model import Invocation, Reply
from steelyard.telemetry import CallInstruments, Telemetry, WatchedStream, conventions, ending_of, method_name

Clock = Callable[[], float]


def client_metrics(telemetry: Telemetry, clock: Clock = time.perf_counter) -> Filter:
    """``rpc.client.call.duration`` (s), ``steelyard.client.calls``, ``steelyard.client.active_calls``.

    A stream is measured until it ends. *clock* gives seconds.
    """

    def bind(following: Invoker) -> Invoker:
        def measure(invocation: Invocation) -> Awaitable[Reply]:
            if not telemetry.is_metering or (instruments := telemetry.client) is None:
                return following(invocation)
            return _measured(instruments, method_name(invocation), clock, invocation, following)

        return measure

    return Bound(bind)


def server_metrics(telemetry: Telemetry, clock: Clock = time.perf_counter) -> Filter:
    """``rpc.server.call.duration`` (s), ``steelyard.server.calls``, ``steelyard.server.active_calls``.

    A call whose method nobody has looked up (no ``spec``) is counted under "_OTHER": its name is the caller's to
    choose, and every name would begin a time series.
    """

    def bind(following: Invoker) -> Invoker:
        def measure(invocation: Invocation) -> Awaitable[Reply]:
            if not telemetry.is_metering or (instruments := telemetry.server) is None:
                return following(invocation)
            method = conventions.OTHER_METHOD if invocation.spec is None else method_name(invocation)
            return _measured(instruments, method, clock, invocation, following)

        return measure

    return Bound(bind)


async def _measured(
    instruments: CallInstruments, method: str, clock: Clock, invocation: Invocation, following: Invoker
) -> Reply:
    labels: dict[str, Any] = {conventions.RPC_SYSTEM_NAME: conventions.SYSTEM, conventions.RPC_METHOD: method}
    if method != conventions.OTHER_METHOD:
        labels[conventions.SERVICE] = invocation.service
    instruments.active.add(1, labels)
    end = partial(_end, instruments, labels, clock, clock(), invocation)
    try:
        reply = await following(invocation)
    except BaseException as error:
        end(error)
        raise
    if reply.stream is None:
        end(None)
        return reply
    return msgspec.structs.replace(reply, stream=WatchedStream(reply.stream, end))


def _end(
    instruments: CallInstruments,
    labels: dict[str, Any],
    clock: Clock,
    started_s: float,
    invocation: Invocation,
    error: BaseException | None,
) -> None:
    ending = ending_of(invocation, error)
    measured = {**labels, conventions.RPC_RESPONSE_STATUS_CODE: ending.status.name}
    if ending.error_type is not None:
        measured[conventions.ERROR_TYPE] = ending.error_type
    instruments.active.add(-1, labels)
    instruments.duration.record(clock() - started_s, measured)
    instruments.calls.add(1, {**labels, conventions.OUTCOME: ending.outcome.value})
