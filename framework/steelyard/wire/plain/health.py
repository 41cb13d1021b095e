"""``grpc.health.v1.Health``: whether a service takes calls, in the words that load balancers, Envoy and Kubernetes ask.

Answered from the services' life cycle, and here and not by grpcio-health-checking, because that needs protobuf, and a
provider without protobuf methods is probed all the same. The two messages have one field each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from . import message

SERVICE = "grpc.health.v1.Health"
_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3


class HealthService:
    """*states* gives, at any time, whether each service is served, by service key and by interface; the empty name
    stands for the provider as a whole. ``changed`` is to be called when that has changed."""

    def __init__(self, states: Callable[[], Mapping[str, bool]]) -> None:
        self._states = states
        self._news = asyncio.Event()
        self.handler: Any = grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check),
                "List": grpc.unary_unary_rpc_method_handler(self._list),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    def changed(self) -> None:
        """Wakes whoever watches. On the loop."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _status(self, name: str) -> int:
        is_served = self._states().get(name)
        if is_served is None:
            return _SERVICE_UNKNOWN
        return _SERVING if is_served else _NOT_SERVING

    async def _check(self, request: bytes, context: Any) -> bytes:
        name = await _asked(request, context)
        status = self._status(name)
        if status == _SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {name[:200]!r} here")
        return _answer(status)

    async def _list(self, _: bytes, __: Any) -> bytes:
        return b"".join(
            message.data(1, message.text(1, name) + message.data(2, _answer(self._status(name))))
            for name in self._states()
        )

    async def _watch(self, request: bytes, context: Any) -> None:
        name = await _asked(request, context)
        told = None
        while True:
            news, status = self._news, self._status(name)
            if status != told:
                await context.write(_answer(status))
                told = status
            await news.wait()


async def _asked(request: bytes, context: Any) -> str:
    name = ""
    try:
        for field, value in message.fields(request):
            if field == 1:
                name = message.as_text(value)
    except ValueError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a HealthCheckRequest: {error}")
    return name


def _answer(status: int) -> bytes:
    return message.number(1, status)
