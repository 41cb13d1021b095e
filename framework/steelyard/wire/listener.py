"""Listener: one gRPC server with both ways in, our Exchange streams and everyone's plain calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from steelyard.errors import ListenError
from steelyard.invoke import Invoker
from steelyard.model import LoadReport

from .grpc_carrier import EXCHANGE, GrpcServerCarrier, server_options
from .limits import WireLimits
from .serving import Acceptor
from .unary import PlainHandler

CLOSE_GRACE_S = 0.25


class Listener:
    """Runs the calls that come to ``host:port`` with *invoker*.

    The invoker gets ``Invocation(service, method, body, deadline_at, attachments, priority)`` and answers
    ``Reply(body=...)`` or ``Reply(stream=<async iterator of bytes>)``, or raises an RpcError; anything else that it
    raises becomes UNKNOWN with "Type: text". It is cancelled at the call's deadline, when the caller gives up and
    when the connection is lost. An RpcError's ``may_have_run=False`` is told to the consumer, who may then repeat the
    call elsewhere: set it to True on what leaves a handler.

    *handlers* are further gRPC handlers for the same port (health, reflection). Port 0 picks a free one.
    """

    def __init__(
        self,
        invoker: Invoker,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: WireLimits | None = None,
        identity: str = "",
        handlers: Sequence[Any] = (),
    ) -> None:
        self.host = host
        self.port = port
        self.limits = limits or WireLimits()
        self._invoker = invoker
        self._identity = identity
        self._handlers = tuple(handlers)
        self._acceptor: Acceptor | None = None
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        """``host:port``, with IPv6 hosts in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def in_flight(self) -> int:
        """Calls accepted and not finished, over all connections and ways in."""
        return self._acceptor.in_flight.count if self._acceptor is not None else 0

    @property
    def connections(self) -> int:
        return len(self._acceptor.connections) if self._acceptor is not None else 0

    async def start(self) -> int:
        """Listens; returns the port. Raises ListenError when the address cannot be had."""
        if self._server is not None:
            raise RuntimeError("this listener has been started already")
        self._acceptor = acceptor = Acceptor(self._invoker, limits=self.limits, identity=self._identity)
        exchange = _ExchangeHandler(acceptor)
        server = grpc.aio.server(
            handlers=(exchange, *self._handlers, PlainHandler(acceptor)), options=server_options(self.limits)
        )
        try:
            self.port = server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise ListenError(
                f"cannot listen on {self.address}: another process (another provider?) has the port, or this machine "
                f"does not have the address. Choose another port, or port 0 for any free one. ({error})"
            ) from error
        await server.start()
        self._server = server
        return self.port

    def publish_load(self, report: LoadReport) -> None:
        """Pushes *report* to every connected consumer, and to each that connects later."""
        if self._acceptor is not None:
            self._acceptor.publish_load(report)

    async def drain(self, timeout_s: float) -> bool:
        """Takes no new calls, waits for the accepted ones; False when some still run after *timeout_s* seconds."""
        return await self._acceptor.drain(timeout_s) if self._acceptor is not None else True

    async def close(self) -> None:
        """Ends every connection, cancels what still runs, frees the port. Harmless when closed already."""
        server, self._server = self._server, None
        if server is not None and self._acceptor is not None:
            await self._acceptor.close()
            # A moment for the ended streams to leave: without one gRPC cuts them off and every consumer logs a GOAWAY.
            await server.stop(CLOSE_GRACE_S)

    async def __aenter__(self) -> Listener:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        state = "listening" if self._server is not None else "not listening"
        return f"<Listener {self.address} {state}, {self.connections} connections, {self.in_flight} calls in flight>"


class _ExchangeHandler(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, acceptor: Acceptor) -> None:
        async def exchange(_: Any, context: Any) -> None:
            await acceptor.serve(GrpcServerCarrier(context))

        self._handler = grpc.stream_stream_rpc_method_handler(exchange)

    def service(self, details: Any) -> Any:
        return self._handler if details.method == EXCHANGE else None
