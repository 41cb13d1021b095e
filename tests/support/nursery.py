"""Providers in processes of their own, many of them, one after another: one process loads everything once and forks.

A fork takes a few hundredths of a second where a start takes one or two, and repeating something a thousand times
becomes possible. The forking process has imported gRPC and started none of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent.parent

_PROGRAM = """
import asyncio, os, signal, sys
from support.wires import Handler
from steelyard.wire import Listener, WireLimits

async def serve():
    limits = WireLimits(heartbeat_interval_s=0.2)
    async with Listener(Handler(), limits=limits, lanes=("tcp",)) as listener:
        listener.identity = listener.address
        print(os.getpid(), listener.address, listener.lanes["tcp"], flush=True)
        await asyncio.Event().wait()

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    if os.fork() == 0:
        os.close(0)
        asyncio.run(serve())
"""


@dataclass(frozen=True)
class Child:
    """A provider process. ``lanes`` as its listener's."""

    pid: int
    address: str
    lanes: dict[str, str]

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Nursery:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def child(self) -> Child:
        """A new one, which listens."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        async with asyncio.timeout(120):
            pid, address, lane = (await self._process.stdout.readline()).decode().split()
        return Child(int(pid), address, {"tcp": lane})


@asynccontextmanager
async def nursery() -> AsyncIterator[Nursery]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PROGRAM,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        start_new_session=True,
    )
    try:
        yield Nursery(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its children, in the session that was made for them
        await process.wait()
