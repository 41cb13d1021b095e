"""Connections by address: shared while they are used, closed when their last call has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from steelyard.cluster.channels import ChannelPool
from steelyard.errors import Unavailable
from steelyard.model import Invocation, LoadReport, Reply
from steelyard.wire import ChannelState, Listener


class Gate:
    """An invoker whose calls wait until they are let go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, invocation: Invocation) -> Reply:
        self.entered.set()
        await self.open.wait()
        return Reply(body=invocation.body)


@pytest.fixture
async def gate() -> Gate:
    return Gate()


@pytest.fixture
async def listener(gate: Gate) -> AsyncIterator[Listener]:
    async with Listener(gate) as listener:
        yield listener


def invocation() -> Invocation:
    return Invocation(service="test.S", method="m", body=b"x", deadline_at=time.monotonic() + 30)


async def test_users_share_a_connection_and_the_last_one_closes_it(listener: Listener) -> None:
    pool = ChannelPool()
    channel = pool.acquire(listener.address)
    assert pool.acquire(listener.address) is channel
    await channel.connect()
    pool.release(listener.address)
    assert pool.states() == {listener.address: ChannelState.READY}
    pool.release(listener.address)
    assert pool.states() == {}
    await pool.close()
    assert channel.state is ChannelState.CLOSED


async def test_a_released_connection_finishes_its_calls(listener: Listener, gate: Gate) -> None:
    pool = ChannelPool()
    channel = pool.acquire(listener.address)
    call = asyncio.ensure_future(channel(invocation()))
    await gate.entered.wait()
    pool.release(listener.address)
    await asyncio.sleep(0.2)
    assert not call.done()
    gate.open.set()
    assert (await call).body == b"x"
    async with asyncio.timeout(5):
        while channel.state is not ChannelState.CLOSED:
            await asyncio.sleep(0.01)
    await pool.close()


async def test_closing_the_pool_waits_for_nobody(listener: Listener, gate: Gate) -> None:
    pool = ChannelPool()
    channel = pool.acquire(listener.address)
    call = asyncio.ensure_future(channel(invocation()))
    await gate.entered.wait()
    pool.release(listener.address)
    async with asyncio.timeout(5):
        await pool.close()
    with pytest.raises(Unavailable):
        await call


async def test_a_load_is_told_to_those_who_have_the_node_and_to_nobody_else(listener: Listener) -> None:
    heard: list[str] = []
    pool = ChannelPool()
    hearers = [lambda address, _, name=name: heard.append(f"{name} {address}") for name in ("a", "b", "c")]
    async with Listener(Gate()) as other:
        pool.acquire(listener.address, on_load=hearers[0])
        pool.acquire(listener.address, on_load=hearers[1])
        pool.acquire(other.address, on_load=hearers[2])
        pool._load(listener.address, LoadReport())
        assert heard == [f"a {listener.address}", f"b {listener.address}"]
        pool.release(listener.address, None, hearers[0])
        heard.clear()
        pool._load(listener.address, LoadReport())
        pool._load(other.address, LoadReport())
        assert heard == [f"b {listener.address}", f"c {other.address}"]
        await pool.close()
