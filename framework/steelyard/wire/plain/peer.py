"""A gRPC server that knows nothing of us: how it is connected to, and how it is seen that it is still there.

gRPC's channel keeps the connection; here is only told what it hides. A GOAWAY (servers rotate their connections by
age) is followed by a new connection at once and costs no call, while a server that is gone is told within one attempt
to connect, so that a balancer passes it over.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from steelyard.security import Tls

from ..carrier import CarrierLost
from ..grpc_carrier import open_channel
from ..limits import WireLimits

# gRPC servers take pings more often than every five minutes for an attack and cut the connection off (gRFC A8).
_KEEPALIVE_MS = 310_000
_HEALTH = "/grpc.health.v1.Health/Check"


def plain_options(limits: WireLimits) -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", limits.message_bytes),
        ("grpc.max_send_message_length", -1),
        # Whoever uses this decides when to give up; gRPC's shared pool would keep another channel's pace.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.service_config_disable_resolution", 1),
        ("grpc.initial_reconnect_backoff_ms", int(limits.backoff_base_s * 1000)),
        ("grpc.min_reconnect_backoff_ms", int(limits.backoff_base_s * 1000)),
        ("grpc.max_reconnect_backoff_ms", int(limits.backoff_max_s * 1000)),
        ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", 10_000),
    ]


class PlainPeer:
    """A connected channel to a foreign server. ``channel`` is gRPC's."""

    def __init__(self, channel: grpc.aio.Channel, limits: WireLimits) -> None:
        self.channel = channel
        self.rotated = asyncio.Event()  # the connection is being replaced, or lost
        self._limits = limits

    @property
    def is_connected(self) -> bool:
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    async def lost(self) -> str:
        """Returns when the server is gone, and says how that was seen."""
        while True:
            state = self.channel.get_state(try_to_connect=True)
            if state is grpc.ChannelConnectivity.READY:
                await self.channel.wait_for_state_change(state)
                self.rotated.set()
                continue
            try:
                async with asyncio.timeout(self._limits.connect_timeout_s):
                    await _connected(self.channel)
            except TimeoutError:
                return f"the connection was lost, and there was no new one within {self._limits.connect_timeout_s:g} s"
            except CarrierLost:
                return "the connection was lost, and no new one could be made"

    async def answers(self, within_s: float) -> bool:
        """Whether the server says anything at all. Asked with the standard health check, which may be UNIMPLEMENTED."""
        try:
            await self.channel.unary_unary(_HEALTH)(b"", timeout=within_s)
        except grpc.aio.AioRpcError as error:
            return error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED  # a lost connection is seen by ``lost``
        return True

    async def close(self) -> None:
        await self.channel.close()


async def connect_plain(address: str, limits: WireLimits, tls: Tls | None = None) -> PlainPeer:
    """Connects to *address* (``host:port``). Raises CarrierLost."""
    channel = open_channel(address, plain_options(limits), tls)
    try:
        await _connected(channel)
    except BaseException:
        await channel.close()
        raise
    return PlainPeer(channel, limits)


async def _connected(channel: grpc.aio.Channel) -> None:
    """Waits for a connection. Raises CarrierLost when an attempt has failed."""
    while True:
        state = channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            return
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise CarrierLost("UNAVAILABLE: no gRPC server could be connected to")
        await channel.wait_for_state_change(state)
