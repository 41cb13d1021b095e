"""Connections by address, shared by all services of a consumer.

A provider that exports ten services has one address and one connection here. Connections are made in the background as
soon as a node is known, because an idle connection is how an idle node tells its load; a call that comes before
that simply connects itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from steelyard.errors import RpcError
from steelyard.model import LoadReport
from steelyard.wire import Channel, ChannelState, WireLimits

log = logging.getLogger(__name__)

OnLoad = Callable[[str, LoadReport], None]

# Background connects at once: enough to fill a fleet's worth of connections within a second, few enough that a thousand
# new nodes do not open a thousand sockets in one loop turn.
CONNECTING_AT_ONCE = 32
# How often a connection that nobody refers to any more is looked at, until its last call has ended.
RETIRE_LOOK_EVERY_S = 0.05


class ChannelPool:
    """``acquire`` and ``release`` count users; the last release closes the connection."""

    def __init__(self, limits: WireLimits | None = None, identity: str = "") -> None:
        self._limits = limits or WireLimits()
        self._identity = identity
        self._channels: dict[str, Channel] = {}
        self._users: dict[str, int] = {}
        self._listeners: set[OnLoad] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        self._turn = asyncio.Semaphore(CONNECTING_AT_ONCE)

    def listen(self, on_load: OnLoad) -> Callable[[], None]:
        """Calls *on_load* (address, report) for every load report; returns what stops it."""
        self._listeners.add(on_load)
        return lambda: self._listeners.discard(on_load)

    def acquire(self, address: str) -> Channel:
        """The channel to *address*, made (and connected in the background) if it is the first user."""
        channel = self._channels.get(address)
        if channel is None:
            channel = Channel(
                address,
                limits=self._limits,
                identity=self._identity,
                on_load=lambda report: self._load(address, report),
            )
            self._channels[address] = channel
            _own(self._connecting, self._connect(channel))
        self._users[address] = self._users.get(address, 0) + 1
        return channel

    def release(self, address: str) -> None:
        """Gives one use back. The last one closes the channel when its calls have ended."""
        left = self._users[address] - 1
        if left:
            self._users[address] = left
            return
        del self._users[address]
        _own(self._closing, self._retire(self._channels.pop(address)))

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
        self._users.clear()
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
        for listener in tuple(self._listeners):
            listener(address, report)

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
