"""How fast is a call? Echo over loopback: bare grpc.aio beside ours, in one run.

    python benchmarks/bench_rpc.py --json out.json [--seconds 2] [--rounds 5] [--callers 1,64] [--bytes 100]

Closed loop: each caller sends its next call when the last one was answered. A server process and a client process for
each measurement, on different cores where there are two; peers take turns round by round, so that what disturbs the
machine disturbs them all; the table shows medians over the rounds, and ratios to bare grpc.aio unary.

A peer is an entry of PEERS: how to serve, and how to connect. Both are coroutine functions.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
WARM_UP_S = 0.3
BASELINE = "grpc.aio unary"
PACKAGES = ("grpcio", "msgspec", "uvloop")

Echo = Callable[[bytes], Awaitable[Any]]


# Peers. serve() returns its port and keeps serving; connect(port) returns the echo of one client.


async def serve_grpc_unary() -> int:
    import grpc

    async def echo(body: bytes, _: Any) -> bytes:
        return body

    handler = grpc.method_handlers_generic_handler("bench.Echo", {"echo": grpc.unary_unary_rpc_method_handler(echo)})
    server = grpc.aio.server(handlers=(handler,), options=(("grpc.so_reuseport", 0),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    KEPT.append(server)
    return int(port)


async def connect_grpc_unary(port: int) -> Echo:
    import grpc

    channel = grpc.aio.insecure_channel(f"{HOST}:{port}")
    KEPT.append(channel)
    return channel.unary_unary("/bench.Echo/echo")  # type: ignore[no-any-return]


async def serve_wire() -> int:
    from steelyard.model import Invocation, Reply
    from steelyard.wire import Listener

    async def echo(invocation: Invocation) -> Reply:
        return Reply(body=invocation.body)

    listener = Listener(echo)
    KEPT.append(listener)
    return await listener.start()


async def connect_wire(port: int) -> Echo:
    from steelyard.model import Invocation
    from steelyard.wire import Channel

    channel = Channel(f"{HOST}:{port}")
    await channel.connect()
    KEPT.append(channel)
    monotonic = time.monotonic

    def call(body: bytes) -> Awaitable[Any]:
        return channel(Invocation(service="bench.Echo", method="echo", body=body, deadline_at=monotonic() + 1.0))

    return call


def bench_registry(port: int) -> str:
    """The embedded registry of one measurement: client and server know the port, and so the file."""
    return f"embedded://{tempfile.gettempdir()}/steelyard-bench-{os.getuid()}/{port}.db"


def echo_contract() -> tuple[type, type]:
    from typing import Protocol

    from steelyard import method, service

    @service("bench.Echo")
    class Echo(Protocol):
        @method(timeout_s=10.0, idempotent=True)
        async def echo(self, body: bytes) -> bytes: ...

    class EchoModel(Echo):
        async def echo(self, body: bytes) -> bytes:
            return body

    return Echo, EchoModel


async def serve_pipeline() -> int:
    from steelyard import Provider

    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    Path(bench_registry(port).removeprefix("embedded://")).parent.mkdir(mode=0o700, exist_ok=True)
    provider = Provider(bench_registry(port), host=HOST, port=port)
    await provider.open()
    await provider.export(echo_contract()[1]())
    KEPT.append(provider)
    return port


async def connect_pipeline(port: int) -> Echo:
    from steelyard import Consumer

    consumer = Consumer(bench_registry(port))
    await consumer.open()
    proxy: Any = consumer.refer(echo_contract()[0])
    await consumer.ready(proxy)
    KEPT.append(consumer)
    return proxy.echo  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Peer:
    serve: Callable[[], Awaitable[int]]
    connect: Callable[[int], Awaitable[Echo]]
    uses_uvloop: bool = False


PEERS = {
    BASELINE: Peer(serve_grpc_unary, connect_grpc_unary),
    "grpc.aio unary, uvloop": Peer(serve_grpc_unary, connect_grpc_unary, uses_uvloop=True),
    "wire: Channel to Listener": Peer(serve_wire, connect_wire),
    "wire: Channel to Listener, uvloop": Peer(serve_wire, connect_wire, uses_uvloop=True),
    "steelyard: whole pipeline": Peer(serve_pipeline, connect_pipeline),
    "steelyard: whole pipeline, uvloop": Peer(serve_pipeline, connect_pipeline, uses_uvloop=True),
}
KEPT: list[Any] = []


# One measurement, in its own two processes.


@dataclass
class Result:
    peer: str
    callers: int
    round: int
    calls_per_s: float
    p50_us: float
    p99_us: float
    client_cpu_us: float


def serve_main(name: str) -> None:
    async def main() -> None:
        port = await PEERS[name].serve()
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()

    run(PEERS[name], main())


def drive_main(name: str, port: int, callers: int, seconds: float, size: int) -> None:
    async def main() -> None:
        echo = await PEERS[name].connect(port)
        sys.stdout.write(json.dumps(await drive(echo, callers, seconds, os.urandom(size))))
        sys.stdout.flush()
        os._exit(0)  # some peers take seconds to close

    run(PEERS[name], main())


async def drive(echo: Echo, callers: int, seconds: float, body: bytes) -> dict[str, float]:
    await echo(body)
    begin_at = time.perf_counter() + WARM_UP_S
    end_at = begin_at + seconds
    took: list[float] = []

    async def caller() -> None:
        now = time.perf_counter
        while True:
            sent_at = now()
            await echo(body)
            done_at = now()
            if sent_at >= begin_at:
                took.append(done_at - sent_at)
            if done_at >= end_at:
                return

    cpu_s = time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    elapsed_s = time.perf_counter() - begin_at
    cpu_s = (time.process_time() - cpu_s) * elapsed_s / (elapsed_s + WARM_UP_S)
    took.sort()
    count = len(took)
    return {
        "calls_per_s": count / elapsed_s,
        "p50_us": took[count // 2] * 1e6,
        "p99_us": took[min(count - 1, int(count * 0.99))] * 1e6,
        "client_cpu_us": cpu_s / count * 1e6,
    }


def run(peer: Peer, main: Any) -> None:
    if peer.uses_uvloop:
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)


def spawn(core: int | None, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]

    def pin() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})

    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=pin)  # noqa: PLW1509


def measure(name: str, callers: int, round_: int, seconds: float, size: int) -> Result:
    cores = sorted(os.sched_getaffinity(0))
    server_core, client_core = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    server = spawn(server_core, "serve", name)
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"{name}: the server did not start")
        client = spawn(client_core, "drive", name, port, str(callers), str(seconds), str(size))
        answer, _ = client.communicate(timeout=seconds + 30)
        if client.returncode != 0:
            raise RuntimeError(f"{name}: the client failed with exit status {client.returncode}")
        return Result(name, callers, round_, **json.loads(answer))
    finally:
        server.kill()
        server.wait()


# The table.


def medians(results: Sequence[Result]) -> list[dict[str, Any]]:
    rows = []
    for callers in sorted({result.callers for result in results}):
        base = [result for result in results if result.callers == callers and result.peer == BASELINE]
        for name in dict.fromkeys(result.peer for result in results):
            mine = [result for result in results if result.callers == callers and result.peer == name]
            row: dict[str, Any] = {"peer": name, "callers": callers}
            for field in ("calls_per_s", "p50_us", "p99_us", "client_cpu_us"):
                row[field] = statistics.median(getattr(result, field) for result in mine)
            if base:
                row["calls_ratio"] = row["calls_per_s"] / statistics.median(result.calls_per_s for result in base)
                row["p50_ratio"] = row["p50_us"] / statistics.median(result.p50_us for result in base)
            rows.append(row)
    return rows


def show(rows: Sequence[dict[str, Any]], machine: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Echo over loopback", caption=", ".join(f"{key} {value}" for key, value in machine.items()))
    table.add_column("peer")
    for title in ("callers", "calls/s", "x base", "p50 us", "x base", "p99 us", "client CPU us"):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row["peer"],
            str(row["callers"]),
            f"{row['calls_per_s']:,.0f}",
            f"{row['calls_ratio']:.2f}" if "calls_ratio" in row else "",
            f"{row['p50_us']:,.0f}",
            f"{row['p50_ratio']:.2f}" if "p50_ratio" in row else "",
            f"{row['p99_us']:,.0f}",
            f"{row['client_cpu_us']:.1f}",
        )
    Console().print(table)


def machine_class() -> dict[str, Any]:
    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        model = platform.processor()
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    cores = len(os.sched_getaffinity(0))
    return {"cores": cores, "cpu": model, "kernel": platform.release(), "Python": platform.python_version(), **versions}


def available() -> list[str]:
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return [name for name, peer in PEERS.items() if not peer.uses_uvloop]
    return list(PEERS)


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        return serve_main(sys.argv[2])
    if sys.argv[1:2] == ["drive"]:
        name, port, callers, seconds, size = sys.argv[2:]
        return drive_main(name, int(port), int(callers), float(seconds), int(size))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write every result and the medians here")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--callers", default="1,64", help="concurrent callers, comma separated")
    parser.add_argument("--bytes", type=int, default=100, help="size of the body")
    parser.add_argument("--peers", help=f"only these, separated by ';' (there are: {'; '.join(PEERS)})")
    arguments = parser.parse_args()
    names = arguments.peers.split(";") if arguments.peers else available()
    results = [
        measure(name, int(callers), round_, arguments.seconds, arguments.bytes)
        for round_ in range(arguments.rounds)
        for callers in arguments.callers.split(",")
        for name in names
    ]
    rows, machine = medians(results), machine_class()
    show(rows, machine)
    if arguments.json:
        record = {"machine": machine, "bytes": arguments.bytes, "seconds": arguments.seconds, "rows": rows}
        record["results"] = [asdict(result) for result in results]
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
