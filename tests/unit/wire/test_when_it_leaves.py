"""In which turn of the loop a call leaves: the wait for company costs a lone call, and a crowd's wait the other end."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from unit.wire.sides import call, hello, of

from steelyard.wire import WireLimits
from steelyard.wire.consuming import ConsumerConnection
from steelyard.wire.frames import Call, parse
from steelyard.wire.socket_carrier import Link


class Transport:
    """Remembers, packet by packet, how many calls were written."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.calls: list[int] = []

    def write(self, data: bytes) -> None:
        assert struct.unpack_from(">I", data)[0] == len(data) - 4
        calls = sum(isinstance(frame, Call) for frame in parse(data[4:]))
        if calls:
            self.calls.append(calls)

    def writelines(self, pieces: Sequence[bytes]) -> None:
        self.write(b"".join(pieces))

    def set_write_buffer_limits(self, **_: int) -> None: ...

    def get_extra_info(self, _: str) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        self._link.connection_lost(None)

    abort = close


@asynccontextmanager
async def consuming() -> AsyncIterator[tuple[ConsumerConnection, Transport]]:
    limits = WireLimits(heartbeat_interval_s=3600)
    link = Link(limits)
    transport = Transport(link)
    link.connection_made(transport)
    connection = ConsumerConnection(
        link,
        limits,
        node="node:1",
        identity="",
        on_load=lambda _: None,
        on_draining=lambda: None,
        on_ended=lambda _: None,
    )
    running = asyncio.ensure_future(connection.run())
    await asyncio.sleep(0)
    connection.packet(memoryview(of(hello())))
    await connection.welcomed()
    await asyncio.sleep(0)
    try:
        yield connection, transport
    finally:
        connection.stop("over")
        await running


def submit(connection: ConsumerConnection, count: int) -> list[asyncio.Future[object]]:
    return [connection.submit(call(deadline_at=1e9), 0.0).token for _ in range(count)]


async def leave(futures: list[asyncio.Future[object]]) -> None:
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)


async def test_a_lone_call_leaves_at_once() -> None:
    async with consuming() as (connection, transport):
        futures = submit(connection, 1)
        assert transport.calls == [1]
        await leave(futures)


async def test_those_that_follow_in_the_same_turn_share_a_packet() -> None:
    async with consuming() as (connection, transport):
        futures = submit(connection, 10)
        assert transport.calls == [1]
        await asyncio.sleep(0)
        assert transport.calls == [1, 9]
        await leave(futures)


async def test_a_crowd_does_not_wait_for_the_end_of_the_turn() -> None:
    async with consuming() as (connection, transport):
        futures = submit(connection, 100)
        before = list(transport.calls)
        assert len(before) > 3
        assert sum(before) > 80
        await asyncio.sleep(0)
        assert sum(transport.calls) == 100
        await leave(futures)
