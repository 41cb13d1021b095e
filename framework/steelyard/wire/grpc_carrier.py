"""The carrier that is always there: one bidirectional gRPC stream, a packet a message.

gRPC's cost is per message and per call object and not per byte, so calls share one long-lived stream. HTTP/2, flow
control, TLS and proxies stay gRPC's.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from steelyard.model import Identity
from steelyard.security import Pems, Tls, identity_of_grpc

from .carrier import CarrierLost
from .limits import MIB, WireLimits

EXCHANGE = "/steelyard.v1.Wire/Exchange"

# A large body travels in parts; the largest frame has a failure's details, of the size of a body, among small frames.
# It bounds plain gRPC's messages too, which gRPC refuses by their announced size, before they have come.
PACKET_SLACK_BYTES = MIB // 2
# Of one connection; clients let further calls wait. 16 times what saturates two cores: a stream may last for hours, and
# each of these may hold a body.
STREAMS = 1024


def _packet_bytes(limits: WireLimits) -> int:
    return min(limits.message_bytes + PACKET_SLACK_BYTES, 2**31 - 1)


# Answers, and not failures, to somebody who asks for our stream: of servers that have no such method, and of proxies
# that let only known paths through (nginx shows a page and ends the stream, which gRPC calls INTERNAL). Plain calls
# then tell what is the matter, if anything is.
_NOT_SPOKEN = frozenset(
    (
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    )
)


_CLOSED = "the connection is closed"


class NotSpoken(CarrierLost):
    """There is a gRPC server, and it does not speak our wire."""


def channel_options(limits: WireLimits) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", _packet_bytes(limits)),
        ("grpc.max_send_message_length", -1),
        # The channel object of this package decides when to reconnect; gRPC's own pool would share back-off
        # between them and keep a dead connection's pace.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
        # Beside the heartbeat: finds a half-open connection below a stream that is stuck in flow control.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
    ]


def server_options(limits: WireLimits) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", _packet_bytes(limits)),
        ("grpc.max_send_message_length", -1),
        # With it two providers could take one port and share its callers by chance, without an error.
        ("grpc.so_reuseport", 0),
        # gRPC's own patience with a peer that connects and says nothing is two minutes.
        ("grpc.server_handshake_timeout_ms", max(1, int(limits.connect_timeout_s * 1000))),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ]


class GrpcCarrier:
    """The calling end of an Exchange stream."""

    __slots__ = ("_call", "_channel", "_first")

    def __init__(self, channel: grpc.aio.Channel, call: Any, first: bytes | None) -> None:
        self._channel: grpc.aio.Channel | None = channel
        self._call = call
        self._first = first  # read while it was found out whether the server speaks our wire

    async def send(self, data: bytes) -> None:
        if self._call is None:
            raise CarrierLost(_CLOSED)
        try:
            await self._call.write(data)
        except grpc.aio.AioRpcError as error:
            raise CarrierLost(_reason(error)) from error
        except (asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError) as error:
            raise CarrierLost(f"the stream has ended: {error}") from error

    async def receive(self) -> bytes | None:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._call is None:
            raise CarrierLost(_CLOSED)
        try:
            data = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise CarrierLost(_reason(error)) from error
        except (asyncio.InvalidStateError, grpc.aio.UsageError, grpc.aio.InternalError) as error:
            raise CarrierLost(f"the stream has ended: {error}") from error
        return None if data is grpc.aio.EOF else data

    async def close(self) -> None:
        """gRPC closes the socket when nobody has the call any more, and what has this carrier goes in circles that wait
        for the garbage collector: so it lets go."""
        call, channel = self._call, self._channel
        self._call = self._channel = None
        if call is not None and channel is not None:
            call.cancel()
            await channel.close()


async def connect(address: str, limits: WireLimits, tls: Tls | None = None) -> GrpcCarrier:
    """Opens a stream to *address* (``host:port``), on which the provider has the first word. Raises CarrierLost, and
    NotSpoken where the server has no such method."""
    channel = open_channel(address, channel_options(limits), tls)
    try:
        call = channel.stream_stream(EXCHANGE)()
        await call.wait_for_connection()
        first = await call.read()
    except grpc.aio.AioRpcError as error:
        await channel.close()
        raise (NotSpoken if error.code() in _NOT_SPOKEN else CarrierLost)(_reason(error)) from error
    except BaseException:
        await channel.close()
        raise
    return GrpcCarrier(channel, call, None if first is grpc.aio.EOF else first)


def open_channel(address: str, options: list[tuple[str, Any]], tls: Tls | None) -> grpc.aio.Channel:
    """A gRPC channel, with TLS where *tls* is there. Raises ConfigError when that knows nobody to believe."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    tls.client_context()  # what it would refuse, gRPC would find out at each handshake, in words of its own
    pems = tls.pems()
    credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.certificate)
    if tls.server_name:
        options = [*options, ("grpc.ssl_target_name_override", tls.server_name)]
    return grpc.aio.secure_channel(address, credentials, options=options)


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Asked for at each handshake, in a thread of gRPC's own. Raises ConfigError without a certificate."""
    tls.server_context()
    given = tls.pems()

    def now() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        pems = tls.pems()
        if pems is given:
            return None  # as before
        given = pems
        return _configuration(pems)

    return grpc.dynamic_ssl_server_credentials(_configuration(given), now, tls.is_mutual)


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.ca)


class GrpcServerCarrier:
    """The serving end: lives inside the gRPC handler, and ends when that returns."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    @property
    def caller(self) -> Identity | None:
        """By its certificate."""
        return identity_of_grpc(self._context.auth_context())

    async def send(self, data: bytes) -> None:
        try:
            await self._context.write(data)
        except Exception as error:
            raise CarrierLost(f"the stream has ended: {error}") from error

    async def receive(self) -> bytes | None:
        try:
            data = await self._context.read()
        except Exception as error:
            raise CarrierLost(f"the stream has ended: {error}") from error
        return None if data is grpc.aio.EOF else data

    async def close(self) -> None:
        pass


def _reason(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"
