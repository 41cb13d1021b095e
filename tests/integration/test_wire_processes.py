"""The wire between real processes over real sockets: killed, stopped, restarted, and two on one port."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from support.wires import Handler, call, until

from steelyard.errors import DeadlineExceeded, ListenError, Unavailable
from steelyard.wire import Channel, ChannelState, Listener, WireLimits

TESTS = Path(__file__).parent.parent
QUICK = WireLimits(heartbeat_interval_s=0.2, connect_timeout_s=0.5, backoff_base_s=0.05, backoff_max_s=0.2)

PROVIDER = """
import asyncio, sys
from support.wires import Handler
from steelyard.wire import Listener, WireLimits

async def main():
    listener = Listener(Handler(), port=int(sys.argv[1]), limits=WireLimits(heartbeat_interval_s=0.2))
    print(await listener.start(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""

CONSUMER = """
import asyncio, sys
from support.wires import call
from steelyard.wire import Channel

async def main():
    channel = Channel(sys.argv[1])
    task = asyncio.ensure_future(channel(call("wait")))
    await channel.connect()
    print("ready", flush=True)
    await task

asyncio.run(main())
"""


@asynccontextmanager
async def process(program: str, argument: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process and its first line."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        argument,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(30):
            line = (await child.stdout.readline()).decode().strip()
        assert line, f"it ended with {await child.wait()}"
        yield child, line
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def test_a_killed_provider_fails_its_calls_at_once_and_comes_back() -> None:
    async with process(PROVIDER, "0") as (child, port), Channel(f"127.0.0.1:{port}", limits=QUICK) as channel:
        waiting = [asyncio.ensure_future(channel(call("wait", deadline_at=time.monotonic() + 60))) for _ in range(50)]
        assert (await channel(call())).body == b"hi"
        child.kill()
        await child.wait()
        async with asyncio.timeout(20):
            errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, Unavailable) and error.may_have_run for error in errors)
        await until(lambda: channel.state is ChannelState.UNREACHABLE)
        with pytest.raises(Unavailable, match="unreachable") as raised:
            await channel(call())
        assert raised.value.may_have_run is False
        async with process(PROVIDER, port):
            await until(lambda: channel.state is ChannelState.READY, within_s=30)
            assert (await channel(call())).body == b"hi"


async def test_a_stopped_provider_is_out_within_three_heartbeats_and_back_when_it_answers() -> None:
    async with process(PROVIDER, "0") as (child, port), Channel(f"127.0.0.1:{port}", limits=QUICK) as channel:
        assert (await channel(call())).body == b"hi"
        child.send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        with pytest.raises(Unavailable, match=r"nothing was heard for three heartbeats of 0.2 s") as raised:
            await channel(call(deadline_at=stopped_at + 60))
        assert raised.value.may_have_run is True
        assert channel.state is ChannelState.UNREACHABLE
        with pytest.raises(Unavailable):
            await channel(call())
        child.send_signal(signal.SIGCONT)
        await until(lambda: channel.state is ChannelState.READY, within_s=30)
        assert (await channel(call())).body == b"hi"


async def test_a_deadline_holds_against_a_stopped_provider() -> None:
    async with process(PROVIDER, "0") as (child, port), Channel(f"127.0.0.1:{port}") as channel:
        await channel.connect()
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(DeadlineExceeded):
            await channel(call(deadline_at=time.monotonic() + 0.1))
        child.send_signal(signal.SIGCONT)


async def test_a_consumer_that_stood_still_does_not_blame_its_provider() -> None:
    """A process that was suspended, or whose loop was blocked, sees a long silence that is its own."""
    impatient = WireLimits(heartbeat_interval_s=0.1)
    states: list[ChannelState] = []
    async with (
        process(PROVIDER, "0") as (_, port),
        Channel(f"127.0.0.1:{port}", limits=impatient, on_state=states.append) as channel,
    ):
        await channel.connect()
        time.sleep(0.4)  # four of its own intervals, and two of the provider's
        assert (await channel(call())).body == b"hi"
        await asyncio.sleep(0.2)
        assert states == [ChannelState.CONNECTING, ChannelState.READY]


async def test_a_killed_consumer_cancels_its_handlers() -> None:
    handler = Handler()
    async with Listener(handler) as listener, process(CONSUMER, listener.address) as (child, _):
        await until(lambda: handler.started)
        assert listener.in_flight == 1
        child.kill()
        await until(lambda: handler.cancelled == 1, within_s=20)
        await until(lambda: listener.in_flight == 0 and listener.connections == 0)


async def test_a_stopped_consumer_is_let_go_and_its_handlers_cancelled() -> None:
    handler = Handler()
    limits = WireLimits(heartbeat_interval_s=0.2)
    async with Listener(handler, limits=limits) as listener, process(CONSUMER, listener.address) as (child, _):
        await until(lambda: handler.started)
        child.send_signal(signal.SIGSTOP)
        await until(lambda: handler.cancelled == 1 and listener.connections == 0, within_s=20)
        child.send_signal(signal.SIGCONT)


async def test_two_providers_on_one_port() -> None:
    async with process(PROVIDER, "0") as (_, port):
        listener = Listener(Handler(), port=int(port))
        with pytest.raises(ListenError, match=rf"cannot listen on 127\.0\.0\.1:{port}: another process") as raised:
            await listener.start()
        assert isinstance(raised.value, OSError)
        assert "port 0 for any free one" in str(raised.value)
        async with Channel(f"127.0.0.1:{port}") as channel:
            assert (await channel(call())).body == b"hi", "the first one is unharmed"


async def test_a_port_is_free_again_after_close() -> None:
    listener = Listener(Handler())
    port = await listener.start()
    await listener.close()
    async with Listener(Handler(), port=port) as again:
        assert again.port == port


async def test_ipv6_and_localhost() -> None:
    try:
        listener = Listener(Handler(), host="::1")
        await listener.start()
    except ListenError:
        pytest.skip("this machine has no IPv6 loopback")
    try:
        assert listener.address == f"[::1]:{listener.port}"
        async with Channel(listener.address) as channel:
            assert (await channel(call())).body == b"hi"
    finally:
        await listener.close()


async def test_restarts_under_load() -> None:
    """16 callers while their provider is killed and restarted three times: each call ends, by its own reply or by
    Unavailable, and the callers go on with the same channel."""
    ended, is_over = {"ok": 0, "failed": 0}, asyncio.Event()

    async def caller(channel: Channel, name: bytes) -> None:
        while not is_over.is_set():
            try:
                reply = await channel(call(body=name, deadline_at=time.monotonic() + 60))
            except Unavailable:
                ended["failed"] += 1
                await asyncio.sleep(0.01)
            else:
                assert reply.body == name
                ended["ok"] += 1

    async with AsyncExitStack() as stack:
        child, port = await stack.enter_async_context(process(PROVIDER, "0"))
        channel = await stack.enter_async_context(Channel(f"127.0.0.1:{port}", limits=QUICK))
        callers = [asyncio.ensure_future(caller(channel, b"%d" % number)) for number in range(16)]
        for restart in range(1, 4):
            await until(lambda bar=restart * 100: ended["ok"] > bar, within_s=30)
            child.kill()
            await child.wait()
            await until(lambda: channel.state is ChannelState.UNREACHABLE)
            child, _ = await stack.enter_async_context(process(PROVIDER, port))
            await until(lambda: channel.state is ChannelState.READY, within_s=30)
        is_over.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*callers)
        assert ended["failed"] > 0
        assert channel.open_calls == 0
