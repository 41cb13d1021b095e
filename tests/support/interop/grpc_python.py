"""A server of ``echo.proto`` as a user of grpcio writes it, on its event loop or in its threads."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from .contract import Ask, Told


def orca(cpu: float) -> bytes:
    """An OrcaLoadReport: cpu_utilization is field 1, rps_fractional field 6."""
    return b"\x09" + struct.pack("<d", cpu) + b"\x31" + struct.pack("<d", 10.0)


class AsyncEcho:
    """Its words as those of EchoModel; besides ``fail CODE`` ends with that status."""

    def __init__(self, *, pushes: float | None = None, header: str = "") -> None:
        self.pushes = pushes  # cpu, out of band
        self.header = header
        self.load_streams = 0
        self.calls = 0
        self.cancelled = 0

    async def say(self, ask: Any, context: Any) -> Any:
        self.calls += 1
        heard = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        if self.header:
            context.set_trailing_metadata((("endpoint-load-metrics", self.header),))
        await context.send_initial_metadata((("answered-by", "grpcio"),))
        if ask.text.startswith("fail "):
            await context.abort(getattr(grpc.StatusCode, ask.text[5:]), "as told", (("grpc-retry-pushback-ms", "250"),))
        if ask.text == "wait":
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        remaining_s = context.time_remaining()
        return Told(text=ask.text * ask.times, heard=heard | {"remaining": f"{remaining_s:.1f}"})

    async def count(self, ask: Any, context: Any) -> AsyncIterator[Any]:
        self.calls += 1
        try:
            for number in range(ask.times):
                yield Told(text=f"{ask.text}{number}")
            if ask.text == "break":
                await context.abort(grpc.StatusCode.DATA_LOSS, "broken")
            if ask.text == "wait":
                await asyncio.sleep(30)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def sum(self, asks: Any, _: Any) -> Any:
        return Told(text="".join([ask.text async for ask in asks]))

    async def chat(self, asks: Any, _: Any) -> AsyncIterator[Any]:
        async for ask in asks:
            yield Told(text=ask.text * ask.times)

    async def push(self, _: bytes, context: Any) -> None:
        if self.pushes is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no load is pushed here")
        self.load_streams += 1
        try:
            while True:
                await context.write(orca(self.pushes))
                await asyncio.sleep(0.2)
        finally:
            self.load_streams -= 1


class BlockingEcho:
    """The same in threads, as far as the tests ask for it."""

    def say(self, ask: Any, context: Any) -> Any:
        if ask.text.startswith("fail "):
            context.abort(getattr(grpc.StatusCode, ask.text[5:]), "as told")
        if ask.text == "wait":
            time.sleep(0.5)
        return Told(text=ask.text * ask.times)

    def count(self, ask: Any, _: Any) -> Iterator[Any]:
        for number in range(ask.times):
            yield Told(text=f"{ask.text}{number}")

    def sum(self, asks: Any, _: Any) -> Any:
        return Told(text="".join(ask.text for ask in asks))

    def chat(self, asks: Any, _: Any) -> Iterator[Any]:
        for ask in asks:
            yield Told(text=ask.text * ask.times)


def _handler(echo: Any) -> Any:
    facts = {"request_deserializer": Ask.FromString, "response_serializer": Told.SerializeToString}
    return grpc.method_handlers_generic_handler(
        "interop.Echo",
        {
            "Say": grpc.unary_unary_rpc_method_handler(echo.say, **facts),
            "Count": grpc.unary_stream_rpc_method_handler(echo.count, **facts),
            "Sum": grpc.stream_unary_rpc_method_handler(echo.sum, **facts),
            "Chat": grpc.stream_stream_rpc_method_handler(echo.chat, **facts),
        },
    )


@asynccontextmanager
async def async_server(
    echo: AsyncEcho,
    port: int = 0,
    options: Any = (),
    grace_s: float | None = None,
    certificate: tuple[bytes, bytes] | None = None,
) -> AsyncIterator[str]:
    """Its address. *certificate* (with chain, key): it speaks TLS."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0), *options))
    push = {"StreamCoreMetrics": grpc.unary_stream_rpc_method_handler(echo.push)}
    orca_service = grpc.method_handlers_generic_handler("xds.service.orca.v3.OpenRcaService", push)
    server.add_generic_rpc_handlers((_handler(echo), orca_service))
    if certificate is None:
        port = server.add_insecure_port(f"127.0.0.1:{port}")
    else:
        port = server.add_secure_port(f"127.0.0.1:{port}", grpc.ssl_server_credentials([certificate[::-1]]))
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(grace_s)


@asynccontextmanager
async def blocking_server() -> AsyncIterator[str]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=(_handler(BlockingEcho()),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await asyncio.to_thread(server.stop(None).wait)
