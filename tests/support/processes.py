"""Provider processes for tests: started, waited for, and ended by their own ids."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

TESTS = Path(__file__).parent.parent

_PROGRAM = """
import asyncio, sys
from support.shop import ShopModel
from steelyard import Provider

async def main():
    async with Provider(sys.argv[1], host=sys.argv[4], port=int(sys.argv[2]), drain_s=5) as provider:
        await provider.export(ShopModel(sys.argv[3]))
        print(provider.address, flush=True)
        await provider.serve()

asyncio.run(main())
"""


class ProviderProcess:
    """One provider of ``support.shop`` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    def kill(self) -> None:
        """SIGKILL: no drain, no goodbye."""
        self.process.kill()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.terminate()
        return await self.process.wait()


@asynccontextmanager
async def provider_process(
    registry: str, *, port: int = 0, name: str = "shop", host: str = "127.0.0.1", prefix: Sequence[str] = ()
) -> AsyncIterator[ProviderProcess]:
    """*prefix* runs it somewhere else (in a network namespace)."""
    process = await asyncio.create_subprocess_exec(
        *prefix,
        sys.executable,
        "-c",
        _PROGRAM,
        registry,
        str(port),
        name,
        host,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode().strip()
        assert line, f"the provider ended with {await process.wait()}"
        yield ProviderProcess(process, line)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
