"""Channel and Listener in one process and without a socket: the same core over queues in memory.

For tests and for services that live beside their caller. Everything above the carrier is what runs over gRPC.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from steelyard.errors import ListenError
from steelyard.invoke import Invoker
from steelyard.model import LoadReport

from .carrier import CarrierLost
from .channel import Channel, ChannelState
from .limits import WireLimits
from .serving import Acceptor

# Packets under way in one direction before ``send`` waits, as a socket's buffer would make it.
_QUEUE = 4


class _Pipe:
    """One direction."""

    def __init__(self) -> None:
        self.packets: deque[bytes] = deque()
        self.ending: str | None = None
        self.changed = asyncio.Condition()

    async def put(self, data: bytes) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.packets) < _QUEUE or self.ending is not None)
            if self.ending is not None:
                raise CarrierLost(self.ending or "the other side has ended")
            self.packets.append(data)
            self.changed.notify_all()

    async def get(self) -> bytes | None:
        async with self.changed:
            await self.changed.wait_for(lambda: bool(self.packets) or self.ending is not None)
            if self.packets:
                data = self.packets.popleft()
                self.changed.notify_all()
                return data
            if self.ending:
                raise CarrierLost(self.ending)
            return None

    async def end(self, reason: str) -> None:
        """With a reason it is a loss, and what was under way is lost too; without one, an orderly end."""
        async with self.changed:
            if self.ending is None:
                self.ending = reason
                if reason:
                    self.packets.clear()
            self.changed.notify_all()


class MemoryCarrier:
    """One end of a pair; see ``pair``."""

    def __init__(self, outward: _Pipe, inward: _Pipe) -> None:
        self._outward = outward
        self._inward = inward

    async def send(self, data: bytes) -> None:
        await self._outward.put(data)

    async def receive(self) -> bytes | None:
        return await self._inward.get()

    async def close(self) -> None:
        await self._outward.end("")
        await self._inward.end("")

    async def sever(self, reason: str = "the connection was cut") -> None:
        """Cuts both directions, as a pulled cable with a quick reset would."""
        await self._outward.end(reason)
        await self._inward.end(reason)


def pair() -> tuple[MemoryCarrier, MemoryCarrier]:
    """Two carriers joined to each other."""
    one, two = _Pipe(), _Pipe()
    return MemoryCarrier(one, two), MemoryCarrier(two, one)


class LoopbackListener:
    """What Listener is, for LocalChannels of the same event loop."""

    def __init__(self, invoker: Invoker, *, limits: WireLimits | None = None, identity: str = "") -> None:
        self.limits = limits or WireLimits()
        self._invoker = invoker
        self._identity = identity
        self._acceptor: Acceptor | None = None
        self._serving: set[asyncio.Task[str]] = set()
        self._carriers: list[MemoryCarrier] = []

    address = "loopback"

    @property
    def in_flight(self) -> int:
        return self._acceptor.in_flight.count if self._acceptor is not None else 0

    @property
    def connections(self) -> int:
        return len(self._acceptor.connections) if self._acceptor is not None else 0

    async def start(self) -> int:
        """Returns 0: there is no port."""
        if self._acceptor is not None:
            raise ListenError("this listener has been started already")
        self._acceptor = Acceptor(self._invoker, limits=self.limits, identity=self._identity)
        return 0

    async def connect(self, address: str, limits: WireLimits) -> MemoryCarrier:
        """A Connector: an open carrier to this listener. Raises CarrierLost when it is not started."""
        if self._acceptor is None:
            raise CarrierLost(f"{address}: nobody listens")
        mine, theirs = pair()
        task = asyncio.get_running_loop().create_task(self._acceptor.serve(theirs))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self._carriers.append(theirs)
        return mine

    async def sever(self) -> None:
        """Cuts every connection without a word: for tests of loss."""
        carriers, self._carriers = self._carriers, []
        for carrier in carriers:
            await carrier.sever()

    def publish_load(self, report: LoadReport) -> None:
        if self._acceptor is not None:
            self._acceptor.publish_load(report)

    async def drain(self, timeout_s: float) -> bool:
        return await self._acceptor.drain(timeout_s) if self._acceptor is not None else True

    async def close(self) -> None:
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            await acceptor.close()
        if self._serving:
            await asyncio.wait(self._serving)

    async def __aenter__(self) -> LoopbackListener:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class LocalChannel(Channel):
    """A Channel to a LoopbackListener."""

    def __init__(
        self,
        listener: LoopbackListener,
        *,
        limits: WireLimits | None = None,
        identity: str = "",
        on_load: Callable[[LoadReport], None] | None = None,
        on_state: Callable[[ChannelState], None] | None = None,
    ) -> None:
        super().__init__(
            listener.address,
            limits=limits,
            identity=identity,
            on_load=on_load,
            on_state=on_state,
            connector=listener.connect,
        )
