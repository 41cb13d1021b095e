"""Carriers for tests of the wire: how to open a pair of ends over each, and an invoker that does what it is told."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from support.pki import Pki, shared_pki

from steelyard.errors import error_for
from steelyard.model import Invocation, Reply
from steelyard.security import Tls
from steelyard.wire import Channel, LaneConnector, Listener, LocalChannel, LoopbackListener, WireLimits


def call(method: str = "echo", body: bytes = b"hi", **facts: Any) -> Invocation:
    return Invocation(service="test.Echo", method=method, body=body, **facts)


class Handler:
    """An invoker whose method names say what it does. Remembers what happened to its calls."""

    def __init__(self) -> None:
        self.started: list[Invocation] = []
        self.cancelled = 0
        self.closed_streams = 0
        self.sent_items = 0
        self.gate = asyncio.Event()

    async def __call__(self, invocation: Invocation) -> Reply:
        self.started.append(invocation)
        action: Callable[[Invocation], Awaitable[Reply]] = getattr(self, invocation.method)
        try:
            return await action(invocation)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def echo(self, invocation: Invocation) -> Reply:
        return Reply(body=invocation.body, attachments=invocation.attachments)

    async def late_echo(self, invocation: Invocation) -> Reply:
        await asyncio.sleep(int(invocation.body or b"0") / 1000)
        return Reply(body=invocation.body)

    async def wait(self, invocation: Invocation) -> Reply:
        await self.gate.wait()
        return Reply(body=b"waited")

    async def stubborn(self, invocation: Invocation) -> Reply:
        """Does not let itself be cancelled."""
        while not self.gate.is_set():
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        return Reply(body=b"too late")

    async def block(self, invocation: Invocation) -> Reply:
        """Blocks the event loop, as a careless handler does."""
        time.sleep(0.05)
        return Reply(body=b"blocked")

    async def fail(self, invocation: Invocation) -> Reply:
        facts = json.loads(invocation.body or b"{}")
        raise error_for(facts["status"], "as told", details=b"d", may_have_run=facts["may_have_run"])

    async def crash(self, invocation: Invocation) -> Reply:
        raise ValueError("no such thing")

    async def cancel_itself(self, invocation: Invocation) -> Reply:
        raise asyncio.CancelledError

    async def large(self, invocation: Invocation) -> Reply:
        return Reply(body=bytes(int(invocation.body or b"0")))

    async def nothing(self, invocation: Invocation) -> Reply:
        return Reply()

    async def count(self, invocation: Invocation) -> Reply:
        """A stream of as many numbers as the body says."""
        return Reply(stream=self._numbers(int(invocation.body or b"0")), attachments={"kind": "numbers"})

    async def count_and_crash(self, invocation: Invocation) -> Reply:
        return Reply(stream=self._numbers(int(invocation.body or b"0"), crash=True))

    async def drip(self, invocation: Invocation) -> Reply:
        """A stream that never ends."""
        return Reply(stream=self._numbers(10**9, pause_s=0.01))

    async def flood(self, invocation: Invocation) -> Reply:
        """A stream of large items that never ends."""
        return Reply(stream=self._numbers(10**9, size=10_000))

    async def total(self, invocation: Invocation) -> Reply:
        """How many bytes the caller streams."""
        assert invocation.stream is not None
        return Reply(body=b"%d" % sum([len(body) async for body in invocation.stream]))

    async def first(self, invocation: Invocation) -> Reply:
        """Answers after one item, whatever else the caller has."""
        assert invocation.stream is not None
        return Reply(body=await anext(invocation.stream))

    async def slow_total(self, invocation: Invocation) -> Reply:
        """Reads nothing until the gate opens."""
        await self.gate.wait()
        return await self.total(invocation)

    async def double(self, invocation: Invocation) -> Reply:
        """Answers every item, at once, with itself twice."""
        assert invocation.stream is not None
        return Reply(stream=self._doubled(invocation.stream))

    async def _doubled(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for body in stream:
                yield body + body
        finally:
            self.closed_streams += 1

    async def _numbers(
        self, count: int, *, crash: bool = False, pause_s: float = 0.0, size: int = 0
    ) -> AsyncIterator[bytes]:
        try:
            for number in range(count):
                self.sent_items += 1
                yield b"%d" % number + bytes(size)
                if pause_s:
                    await asyncio.sleep(pause_s)
            if crash:
                raise ValueError("the well is dry")
        finally:
            self.closed_streams += 1


AnyListener = Listener | LoopbackListener
Opened = tuple[AnyListener, Callable[..., Channel]]


@asynccontextmanager
async def socket_carrier(
    kind: str, handler: Handler, limits: WireLimits | None = None, *, pki: Callable[[], Pki] | None = None
) -> AsyncIterator[Opened]:
    """With *pki* under mutual TLS: what is true of it is true of the server's alone, and not the other way round."""
    server = client = None
    if pki is not None:
        server, client = pki().provider("127.0.0.1", mutual=True), Tls(pki().consumer("dns:caller.test"))
    listener = Listener(handler, limits=limits, lanes=() if kind == "grpc" else (kind,), credentials=server)
    await listener.start()
    listener.identity = listener.address
    channels: list[Channel] = []

    def channel(**facts: Any) -> Channel:
        channels.append(Channel(listener.address, connector=LaneConnector(kind, listener.offer, client), **facts))
        return channels[-1]

    try:
        yield listener, channel
    finally:
        for one in channels:
            await one.close()
        await listener.close()


@asynccontextmanager
async def loopback_carrier(handler: Handler, limits: WireLimits | None = None) -> AsyncIterator[Opened]:
    listener = LoopbackListener(handler, limits=limits)
    await listener.start()
    channels: list[Channel] = []

    def channel(**facts: Any) -> Channel:
        channels.append(LocalChannel(listener, **facts))
        return channels[-1]

    try:
        yield listener, channel
    finally:
        for one in channels:
            await one.close()
        await listener.close()


Carrier = Callable[..., AbstractAsyncContextManager[Opened]]
CARRIERS: dict[str, Carrier] = {
    "grpc": partial(socket_carrier, "grpc"),
    "loopback": loopback_carrier,
    "tcp": partial(socket_carrier, "tcp"),
    "uds": partial(socket_carrier, "uds"),
    "grpc+tls": partial(socket_carrier, "grpc", pki=shared_pki),
    "tcp+tls": partial(socket_carrier, "tcp", pki=shared_pki),
    "uds+tls": partial(socket_carrier, "uds", pki=shared_pki),
}


async def until(condition: Callable[[], Any], *, within_s: float = 10.0) -> None:
    """Waits for *condition*; a bound for liveness only."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.002)


def soon(seconds: float) -> float:
    """A deadline so far away."""
    return time.monotonic() + seconds
