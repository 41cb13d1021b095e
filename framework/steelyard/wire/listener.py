"""Listener: one gRPC server with both ways in, our Exchange streams and everyone's plain calls, and the fast lanes
beside it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from steelyard.errors import ListenError
from steelyard.guard import Rate
from steelyard.invoke import Invoker
from steelyard.model import LoadReport
from steelyard.security import Credentials, Tls

from .door import Door
from .grpc_carrier import EXCHANGE, GrpcServerCarrier, server_credentials, server_options
from .lane import TLS_MUTUAL, TLS_SERVER, TLS_TAG, socket_path
from .limits import WireLimits
from .serving import Acceptor
from .socket_carrier import Link
from .tally import Tally
from .unary import PlainHandler, TakesStream

log = logging.getLogger(__name__)

CLOSE_GRACE_S = 0.25
# Connections that a crowd of consumers makes in the same moment wait here and are not refused.
_BACKLOG = 1024


class Listener:
    """Runs the calls that come to ``host:port`` with *invoker*.

    The invoker gets ``Invocation(service, method, body, deadline_at, attachments, priority)`` and answers
    ``Reply(body=...)`` or ``Reply(stream=<async iterator of bytes>)``, or raises an RpcError; anything else that it
    raises becomes UNKNOWN with "Type: text". It is cancelled at the call's deadline, when the caller gives up and
    when the connection is lost. An RpcError's ``may_have_run=False`` is told to the consumer, who may then repeat the
    call elsewhere: set it to True on what leaves a handler.

    *handlers* are further gRPC handlers for the same port (health, reflection). *takes_stream* says of which methods
    plain callers stream (None: of none). Port 0 picks a free one. *lanes* are
    the fast ways in beside gRPC, any of ``tcp`` and ``uds``; *lane_port* is the port of the first. A lane that cannot
    be had is left out and logged. *identity* (``host:port`` as registered) is how a consumer knows that it has come to
    the right provider by a lane. *credentials*: every way in speaks TLS, but for the Unix socket of a provider that
    asks for no certificate (see ``LaneConnector``).
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
        lanes: Sequence[str] = (),
        lane_port: int = 0,
        credentials: Credentials | None = None,
        takes_stream: TakesStream | None = None,
    ) -> None:
        if credentials is not None:
            credentials.check_for_provider()
        self._tls = None if credentials is None else Tls(credentials)
        self._doors: list[Door] = []
        self.host = host
        self.port = port
        self.limits = limits or WireLimits()
        self._invoker = invoker
        self._identity = identity
        self._handlers = tuple(handlers)
        self._acceptor: Acceptor | None = None
        self._server: grpc.aio.Server | None = None
        self._takes_stream = takes_stream
        self._wanted_lanes = tuple(lanes)
        self._lane_port = lane_port
        self._lanes: dict[str, str] = {}
        self._lane_servers: list[asyncio.Server] = []
        self._serving: set[asyncio.Task[str]] = set()

    @property
    def lanes(self) -> Mapping[str, str]:
        """The lanes that are open: ``{"tcp": port, "uds": path}``."""
        return dict(self._lanes)

    @property
    def offer(self) -> Mapping[str, str]:
        """What a LaneConnector wants to know: the lanes, and ``tls``."""
        if self._tls is None:
            return self.lanes
        return {**self._lanes, TLS_TAG: TLS_MUTUAL if self._tls.is_mutual else TLS_SERVER}

    @property
    def identity(self) -> str:
        """What connections are told that this is; may be set until the first comes."""
        return self._identity

    @identity.setter
    def identity(self, identity: str) -> None:
        self._identity = identity
        if self._acceptor is not None:
            self._acceptor.identity = identity

    @property
    def address(self) -> str:
        """``host:port``, with IPv6 hosts in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def in_flight(self) -> int:
        """Calls accepted and not finished, over all connections and ways in."""
        return self._acceptor.in_flight.count if self._acceptor is not None else 0

    @property
    def tally(self) -> Tally:
        """What was counted of the calls that are over; all zero before the start."""
        return self._acceptor.tally if self._acceptor is not None else Tally()

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
            handlers=(exchange, *self._handlers, PlainHandler(acceptor, self._takes_stream)),
            options=server_options(self.limits),
        )
        try:
            if self._tls is None:
                self.port = server.add_insecure_port(self.address)
            else:
                self.port = server.add_secure_port(self.address, server_credentials(self._tls))
        except RuntimeError as error:
            raise ListenError(
                f"cannot listen on {self.address}: another process (another provider?) has the port, or this machine "
                f"does not have the address. Choose another port, or port 0 for any free one. ({error})"
            ) from error
        await server.start()
        self._server = server
        await self._open_lanes(acceptor)
        return self.port

    async def _open_lanes(self, acceptor: Acceptor) -> None:
        loop = asyncio.get_running_loop()

        rate = Rate(self.limits.connects_per_s, loop.time()) if self.limits.connects_per_s else None

        def enter(link: Link) -> None:
            self._serve(acceptor, link)

        def admits() -> bool:
            return rate is None or rate.admits(loop.time())

        def link() -> Link:
            return Link(self.limits, enter if admits() else Link.abort)

        for kind in self._wanted_lanes:
            knock: Callable[[], asyncio.BaseProtocol] = link
            if self._tls is not None and (kind == "tcp" or self._tls.is_mutual):
                self._doors.append(Door(self._tls, self.limits, enter, admits))
                knock = self._doors[-1].knock
            try:
                if kind == "tcp":
                    server = await loop.create_server(knock, self.host, self._lane_port, backlog=_BACKLOG)
                    place = str(server.sockets[0].getsockname()[1])
                else:
                    place = socket_path(self.port)
                    server = await loop.create_unix_server(knock, place, backlog=_BACKLOG)
            except OSError as error:
                log.warning("%s: no %s lane: %s", self.address, kind, error)
                continue
            self._lane_servers.append(server)
            self._lanes[kind] = place

    def _serve(self, acceptor: Acceptor, link: Link) -> None:
        task = asyncio.get_running_loop().create_task(acceptor.serve(link))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _close_lanes(self) -> None:
        servers, self._lane_servers = self._lane_servers, []
        lanes, self._lanes = self._lanes, {}
        for server in servers:
            server.close()
        doors, self._doors = self._doors, []
        for door in doors:
            await door.close()
        if "uds" in lanes:
            with contextlib.suppress(OSError):
                os.unlink(lanes["uds"])

    def publish_load(self, report: LoadReport, load: float | None = None) -> None:
        """Pushes *report* to every connected consumer, and to each that connects later. *load*: the node's in one
        number, as plain gRPC clients want it."""
        if self._acceptor is not None:
            self._acceptor.publish_load(report, load)

    @property
    def load_trailer(self) -> bytes:
        """The latest report in ORCA's form; empty before there is one."""
        return self._acceptor.load_trailer if self._acceptor is not None else b""

    async def drain(self, timeout_s: float) -> bool:
        """Takes no new calls, waits for the accepted ones; False when some still run after *timeout_s* seconds."""
        return await self._acceptor.drain(timeout_s) if self._acceptor is not None else True

    async def close(self) -> None:
        """Ends every connection, cancels what still runs, frees the port. Harmless when closed already."""
        server, self._server = self._server, None
        if server is not None and self._acceptor is not None:
            await self._close_lanes()
            await self._acceptor.close()
            if self._serving:
                await asyncio.wait(self._serving)
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
