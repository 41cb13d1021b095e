"""Connections by address, shared by all services of a consumer.

A provider that exports ten services has one address and one connection here. Connections are made in the background as
soon as a node is known, because an idle connection is how an idle node tells its load; a call that comes before
that simply connects itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from steelyard.errors import RpcError
from steelyard.model import NOTHING, LoadReport
from steelyard.security import Tls
from steelyard.wire import Channel, ChannelState, LaneConnector, WireLimits, read_offer

log = logging.getLogger(__name__)

OnLoad = Callable[[str, LoadReport], None]
OnState = Callable[[str, ChannelState], None]

# A balancer has other nodes meanwhile, but wants this one back soon after a partition heals (the project's bar: 5 s): a
# try that hangs is given up after 2 s, and the next one follows within 2.4 s.
POOL_LIMITS = WireLimits(connect_timeout_s=2.0, backoff_max_s=2.0)
# Background connects at once: enough to fill a fleet's worth of connections within a second, few enough that a thousand
# new nodes do not open a thousand sockets in one loop turn.
CONNECTING_AT_ONCE = 128
# How often a connection that nobody refers to any more is looked at, until its last call has ended.
RETIRE_LOOK_EVERY_S = 0.05
# A provider that has drained may still accept, only to say again that it drains: its address is not asked at once.
DRAINED_PAUSE_S = 0.25


class ChannelPool:
    """``acquire`` and ``release`` count users; the last release closes the connection. *carrier* as in Consumer."""

    def __init__(
        self, limits: WireLimits | None = None, identity: str = "", carrier: str = "auto", tls: Tls | None = None
    ) -> None:
        self._tls = tls
        self._limits = limits or POOL_LIMITS
        self._identity = identity
        self._carrier = carrier
        self._connectors: dict[str, LaneConnector] = {}
        self._channels: dict[str, Channel] = {}
        self._users: dict[str, list[OnState | None]] = {}
        self._hearers: dict[str, list[OnLoad]] = {}
        self._listeners: set[OnLoad] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._turn = asyncio.Semaphore(CONNECTING_AT_ONCE)

    def listen(self, on_load: OnLoad) -> Callable[[], None]:
        """Calls *on_load* (address, report) for every load report of every node; returns what stops it. Whoever has
        nodes of its own says so in ``acquire`` instead."""
        self._listeners.add(on_load)
        return lambda: self._listeners.discard(on_load)

    def acquire(
        self,
        address: str,
        on_state: OnState | None = None,
        tags: Mapping[str, str] = NOTHING,
        is_foreign: bool = False,
        on_load: OnLoad | None = None,
    ) -> Channel:
        """The channel to *address*, made (and connected in the background) if it is the first user. *on_state*
        (address, state) hears of every change of its state until this use is released. *tags* are the node's, and
        *is_foreign* is as in ``foreign``. *on_load* (address, report) hears of the loads of this address alone: a
        hundred references that all heard of a thousand nodes' loads would be a hundred thousand calls a second."""
        channel = self._channels.get(address)
        if channel is None:
            connector = LaneConnector(self._carrier, read_offer(tags), self._tls, is_foreign)
            self._connectors[address] = connector
            channel = Channel(
                address,
                limits=self._limits,
                identity=self._identity,
                on_load=lambda report: self._load(address, report),
                on_state=lambda state: self._state(address, state),
                connector=connector,
            )
            self._channels[address] = channel
            self._users[address] = []
            _own(self._connecting, self._connect(channel))
        self._users[address].append(on_state)
        if on_load is not None:
            self._hearers.setdefault(address, []).append(on_load)
        return channel

    def release(self, address: str, on_state: OnState | None = None, on_load: OnLoad | None = None) -> None:
        """Gives one use back (the one with this *on_state* and *on_load*). The last one closes the channel when its
        calls have ended."""
        self._users[address].remove(on_state)
        if on_load is not None:
            self._hearers[address].remove(on_load)
            if not self._hearers[address]:
                del self._hearers[address]
        if self._users[address]:
            return
        del self._users[address]
        del self._connectors[address]
        _own(self._closing, self._retire(self._channels.pop(address)))

    def advise(self, address: str, tags: Mapping[str, str], is_foreign: bool = False) -> None:
        """The node at *address* may offer other lanes now; it counts from the next connection on."""
        connector = self._connectors.get(address)
        if connector is not None:
            connector.lanes = read_offer(tags)
            connector.is_foreign = is_foreign

    def carriers(self) -> dict[str, str]:
        """What each address was last connected over: grpc, tcp, uds, plain (a foreign server), or "" for not yet."""
        return {address: connector.last for address, connector in self._connectors.items()}

    def hurry(self, address: str) -> None:
        """Somebody has news of *address* (the registry says that its node was restarted): try to connect now."""
        channel = self._channels.get(address)
        if channel is not None and channel.state is not ChannelState.READY:
            _own(self._connecting, self._connect(channel))

    def states(self) -> dict[str, ChannelState]:
        """The state of every connection by address."""
        return {address: channel.state for address, channel in self._channels.items()}

    async def close(self) -> None:
        """Closes every channel and waits for what the pool started."""
        self._over.set()
        for task in self._connecting:
            task.cancel()
        channels = list(self._channels.values())
        self._channels.clear()
        self._connectors.clear()
        self._users.clear()
        self._hearers.clear()
        ending = (*self._connecting, *self._closing, *(channel.close() for channel in channels))
        await asyncio.gather(*ending, return_exceptions=True)

    async def _retire(self, channel: Channel) -> None:
        # A node that drains leaves the registry first and finishes its accepted calls then; closing at once would
        # cut off the very calls that it waits for.
        while channel.open_calls and not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETIRE_LOOK_EVERY_S):
                    await self._over.wait()
        await channel.close()

    def _load(self, address: str, report: LoadReport) -> None:
        for listener in (*self._hearers.get(address, ()), *self._listeners):
            listener(address, report)

    def _state(self, address: str, state: ChannelState) -> None:
        for on_state in tuple(self._users.get(address, ())):
            if on_state is not None:
                on_state(address, state)
        if state is ChannelState.IDLE and address in self._users:
            # Drained, and still in somebody's list: nobody may be waiting to call it, so the pool asks for its return.
            _own(self._connecting, self._return(address))

    async def _return(self, address: str) -> None:
        await asyncio.sleep(DRAINED_PAUSE_S)
        channel = self._channels.get(address)
        if channel is not None:
            await self._connect(channel)

    async def _connect(self, channel: Channel) -> None:
        async with self._turn:
            try:
                await channel.connect()
            except RpcError as error:
                log.debug("not connected yet: %s", error)  # the first call, or the channel itself, tries again


def _own(tasks: set[asyncio.Task[None]], work: asyncio._CoroutineLike[None]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
