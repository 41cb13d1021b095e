"""Apache Dubbo for Python through the same ZooKeeper: it finds and calls us, and we find and call it."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote

import grpc
import grpc.aio
import pytest
from support.dubbo import CONSUMER, PROVIDER, dubbo_python
from support.zookeeper import ZooKeeperServer, free_port

from steelyard import Provider, method, service
from steelyard_registry import ServiceKey, open_registry

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.timeout(240)]


@service("interop.Adds")
class Adds:
    @method(idempotent=True)
    async def add(self, a: int, b: int) -> int:
        return a + b


@pytest.fixture(scope="module")
def python() -> str:
    return dubbo_python()


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Dubbo's root is not to be chosen there, so it has a server of its own."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
async def foreign(python: str, server: ZooKeeperServer) -> AsyncIterator[str]:
    """A provider of interop.Echo; its address."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        python, "-c", PROVIDER, f"zookeeper://{server.hosts}", "interop.Echo", str(port),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while b"serving" not in await process.stdout.readline():
                pass
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        await process.communicate()


async def test_its_consumer_finds_and_calls_our_provider(python: str, server: ZooKeeperServer) -> None:
    async with Provider(server.url(), host="127.0.0.1") as provider:
        await provider.export(Adds())
        done = await asyncio.to_thread(
            subprocess.run,
            [python, "-c", CONSUMER, f"zookeeper://{server.hosts}", "interop.Adds", "add", "2", "3"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert "answer: 5" in done.stdout, done.stderr[-2000:]


async def test_our_registry_finds_its_provider_beside_broken_ones(server: ZooKeeperServer, foreign: str) -> None:
    with server.client() as operator:
        for broken in ("%zz", quote("dubbo://10.0.0.2:1/interop.Echo", safe=""), quote("tri://nowhere", safe="")):
            operator.create(f"/dubbo/interop.Echo/providers/{broken}", ephemeral=True)
        async with open_registry(server.url()) as registry:
            snapshot = (await registry.subscribe(ServiceKey(interface="interop.Echo", version="*"))).snapshot
    assert ([node.address for node in snapshot.nodes], snapshot.skipped) == ([foreign], 3)
    node = snapshot.nodes[0]
    assert (node.interface, node.protocol) == ("interop.Echo", "tri")
    # What it speaks is plain gRPC, at the address that the registry gave.
    async with grpc.aio.insecure_channel(node.address) as channel:
        assert await channel.unary_unary("/interop.Echo/echo")(b"body", timeout=20) == b"body"
