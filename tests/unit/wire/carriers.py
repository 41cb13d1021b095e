"""A provider's end of a carrier, played by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from unit.wire.sides import of

from steelyard.wire import Channel, WireLimits
from steelyard.wire.carrier import CarrierLost
from steelyard.wire.frames import AnyFrame, parse
from steelyard.wire.loopback import MemoryCarrier, pair


class Peer:
    """Accepts connections as a Connector; ``accept`` says what happens to each (None: it succeeds and stays silent)."""

    def __init__(self, accept: Callable[[MemoryCarrier], Awaitable[None]] | None = None) -> None:
        self.attempts: list[float] = []
        self.carriers: list[MemoryCarrier] = []
        self.refusal: str | None = None
        self._accept = accept

    async def connect(self, _: str, __: WireLimits) -> MemoryCarrier:
        self.attempts.append(asyncio.get_running_loop().time())
        if self.refusal is not None:
            raise CarrierLost(self.refusal)
        mine, theirs = pair()
        self.carriers.append(theirs)
        if self._accept is not None:
            await self._accept(theirs)
        return mine

    def channel(self, **facts: object) -> Channel:
        return Channel("peer:1", connector=self.connect, **facts)  # type: ignore[arg-type]


async def say(carrier: MemoryCarrier, *frames: AnyFrame) -> None:
    await carrier.send(of(*frames))


async def hear(carrier: MemoryCarrier) -> list[AnyFrame]:
    """The frames of the next packet; none when the other side has ended."""
    data = await carrier.receive()
    return [] if data is None else parse(data)
