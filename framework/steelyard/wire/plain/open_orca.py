"""``xds.service.orca.v3.OpenRcaService``: the load, pushed to whoever asks for it (gRFC A51, out of band), from both
ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from . import message

SERVICE = "xds.service.orca.v3.OpenRcaService"
# Reports are made once a second; gRPC's own servers refuse to tell more often than every 30 s unless they are told to.
SHORTEST_S = 1.0
_LONGEST_S = 3600.0
_PATH = f"/{SERVICE}/StreamCoreMetrics"
_EVERY_SECOND = message.data(1, message.number(1, 1))


async def pushed_reports(channel: grpc.aio.Channel) -> AsyncIterator[bytes]:
    """A foreign server's reports, for as long as its stream lasts. Raises AioRpcError (UNIMPLEMENTED: it has none)."""
    call = channel.unary_stream(_PATH)(_EVERY_SECOND)
    try:
        while (report := await call.read()) is not grpc.aio.EOF:
            yield report
    finally:
        call.cancel()


class OpenOrcaService:
    """*report* gives the latest report in ORCA's form."""

    def __init__(self, report: Callable[[], bytes]) -> None:
        self._report = report
        self.handler: Any = grpc.method_handlers_generic_handler(
            SERVICE, {"StreamCoreMetrics": grpc.unary_stream_rpc_method_handler(self._stream)}
        )

    async def _stream(self, request: bytes, context: Any) -> None:
        try:
            every_s = _interval_s(request)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not an OrcaLoadReportRequest: {error}")
        while True:
            await context.write(self._report())
            await asyncio.sleep(every_s)


def _interval_s(request: bytes) -> float:
    """The asked interval, within bounds; unset is the shortest, as in gRPC."""
    every_s = 0.0
    for field, value in message.fields(request):
        if field == 1:
            for part, amount in message.fields(message.as_bytes(value)):
                every_s += message.as_number(amount) * {1: 1.0, 2: 1e-9}.get(part, 0.0)
    return min(max(every_s, SHORTEST_S), _LONGEST_S)
