"""How fast is a call? Echo over loopback: ours beside others, in one run.

    python benchmarks/bench_rpc.py --json out.json [--seconds 2] [--rounds 5] [--callers 1,64] [--bytes 100]
    python benchmarks/bench_rpc.py --scale      8, 512 and 4,096 callers, 8 and 64 providers; with memory

After the table come the bars of the wire, each with its ratio and a verdict. Those that are no echo (arrays, small
calls beside large ones, idle connections) are measured by bench_wire, which runs at the end (--no-edges leaves it out).

Closed loop: each caller sends its next call when the last one was answered. A server process and a client process for
each measurement, on different cores where there are two; peers take turns round by round, so that what disturbs the
machine disturbs them all; the table shows medians over the rounds, and ratios to bare grpc.aio unary on uvloop.

CPU is what each process used for a call. On a machine that does other things too, calls/s and latencies are those of
whoever the scheduler favours, and CPU is what can be compared; the load average is printed with the table.

A peer is an entry of PEERS: how to serve, and how to connect, two coroutine functions; peers that are not installed
(requirements-peers.txt, -dubbo, -ray) are left out and named. Peers that block serve and call from threads.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import rpc_bars
from rpc_common import HOST, KEPT, WARM_UP_S, Echo, free_port, summary
from rpc_peers import (
    Blocking,
    connect_dubbo,
    connect_grpc_sync,
    connect_grpclib,
    connect_pyro,
    connect_ray,
    connect_rpyc,
    connect_thrift,
    serve_dubbo,
    serve_grpc_sync,
    serve_grpclib,
    serve_pyro,
    serve_ray,
    serve_rpyc,
    serve_thrift,
)

BASELINE = "grpc.aio unary, uvloop"
PACKAGES = ("grpcio", "msgspec", "uvloop", "grpclib", "thriftpy2", "rpyc", "Pyro5", "apache-dubbo", "ray")


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

    port = free_port()
    listener = Listener(echo, port=port, lanes=("tcp",), lane_port=port + 1)
    KEPT.append(listener)
    return await listener.start()


async def connect_wire(port: int, carrier: str) -> Echo:
    from steelyard.model import Invocation
    from steelyard.wire import Channel, LaneConnector

    channel = Channel(f"{HOST}:{port}", connector=LaneConnector(carrier, {"tcp": str(port + 1)}))
    await channel.connect()
    KEPT.append(channel)
    monotonic = time.monotonic

    def call(body: bytes) -> Awaitable[Any]:
        return channel(Invocation(service="bench.Echo", method="echo", body=body, deadline_at=monotonic() + 10.0))

    return call


async def connect_plain(port: int) -> Echo:
    """Our channel to a server that knows nothing of us."""
    from steelyard.model import Invocation
    from steelyard.wire import Channel, LaneConnector

    channel = Channel(f"{HOST}:{port}", connector=LaneConnector(is_foreign=True))
    await channel.connect()
    KEPT.append(channel)

    def call(body: bytes) -> Awaitable[Any]:
        deadline_at = time.monotonic() + 1.0
        return channel(Invocation(service="bench.Echo", method="echo", body=body, deadline_at=deadline_at))

    return call


# The floor: what a Python protocol with a task for each call takes, and nothing more.


class RawProtocol(asyncio.Protocol):
    """A length before each message, msgpack, writes gathered by turn of the loop."""

    def __init__(self) -> None:
        import msgpack

        self.pack = msgpack.packb
        self.unpack = msgpack.unpackb
        self.rest = b""
        self.out: list[bytes] = []
        self.loop = asyncio.get_running_loop()
        self.answers: dict[int, asyncio.Future[Any]] = {}
        self.last = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        data = self.rest + data if self.rest else data
        at, end = 0, len(data)
        while end - at >= 4 and end - at - 4 >= (size := int.from_bytes(data[at : at + 4], "big")):
            self.message(self.unpack(data[at + 4 : at + 4 + size]))
            at += 4 + size
        self.rest = data[at:]

    def send(self, message: list[Any]) -> None:
        data = self.pack(message)
        if not self.out:
            self.loop.call_soon(self.flush)
        self.out += (len(data).to_bytes(4, "big"), data)

    def flush(self) -> None:
        self.transport.write(b"".join(self.out))
        self.out.clear()

    def message(self, message: list[Any]) -> None:
        self.answers.pop(message[0]).set_result(message[1])

    def call(self, body: bytes) -> asyncio.Future[Any]:
        self.last += 1
        future = self.answers[self.last] = self.loop.create_future()
        self.send([self.last, body])
        return future


class RawServer(RawProtocol):
    def message(self, message: list[Any]) -> None:
        self.loop.create_task(self.answer(*message))

    async def answer(self, number: int, body: bytes) -> None:
        self.send([number, await self.echo(body)])

    async def echo(self, body: bytes) -> bytes:
        return body


async def serve_raw() -> int:
    server = await asyncio.get_running_loop().create_server(RawServer, HOST, 0)
    KEPT.append(server)
    return int(server.sockets[0].getsockname()[1])


async def connect_raw(port: int) -> Echo:
    _, protocol = await asyncio.get_running_loop().create_connection(RawProtocol, HOST, port)
    KEPT.append(protocol)
    return protocol.call


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


async def serve_pipeline(providers: int = 1) -> int:
    from steelyard import Provider

    first = free_port()
    Path(bench_registry(first).removeprefix("embedded://")).parent.mkdir(mode=0o700, exist_ok=True)
    registry: Any = bench_registry(first)
    for at in range(providers):
        provider = Provider(registry, host=HOST, port=first if at == 0 else 0)
        await provider.open()
        registry = provider.registry  # the others share it: 64 writers would lock each other out of one file
        await provider.export(echo_contract()[1]())
        KEPT.append(provider)
    return first


async def connect_pipeline(port: int, carrier: str, providers: int = 1) -> Echo:
    from steelyard import Consumer

    consumer = Consumer(bench_registry(port), carrier=carrier)
    await consumer.open()
    proxy: Any = consumer.refer(echo_contract()[0])
    await consumer.ready(proxy, nodes=providers)
    KEPT.append(consumer)
    return proxy.echo  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Peer:
    """*needs* names the modules without which there is no such peer."""

    serve: Callable[[], Awaitable[int]]
    connect: Callable[[int], Awaitable[Any]]
    uses_uvloop: bool = False
    needs: tuple[str, ...] = ()


def ours(kind: str, carrier: str, *, uses_uvloop: bool = True) -> Peer:
    serve, connect = (serve_wire, connect_wire) if kind == "wire" else (serve_pipeline, connect_pipeline)
    return Peer(serve, partial(connect, carrier=carrier), uses_uvloop=uses_uvloop)


def several(providers: int) -> Peer:
    """So many providers in one process: what it costs a consumer to have a choice."""
    connect = partial(connect_pipeline, carrier="tcp", providers=providers)
    return Peer(partial(serve_pipeline, providers), connect, uses_uvloop=True)


# Everything on uvloop where it can be, as "the same loop for all" is the only fair comparison.
PEERS = {
    BASELINE: Peer(serve_grpc_unary, connect_grpc_unary, uses_uvloop=True),
    "grpc.aio unary, asyncio": Peer(serve_grpc_unary, connect_grpc_unary),
    "raw uvloop, a task a call": Peer(serve_raw, connect_raw, uses_uvloop=True),
    "wire grpc": ours("wire", "grpc"),
    "wire tcp": ours("wire", "tcp"),
    "wire plain, to grpc.aio": Peer(serve_grpc_unary, connect_plain, uses_uvloop=True),
    "steelyard grpc": ours("pipeline", "grpc"),
    "steelyard tcp": ours("pipeline", "tcp"),
    "steelyard uds": ours("pipeline", "uds"),
    "steelyard tcp, 8 providers": several(8),
    "steelyard tcp, 64 providers": several(64),
    "steelyard grpc, asyncio": ours("pipeline", "grpc", uses_uvloop=False),
    "steelyard tcp, asyncio": ours("pipeline", "tcp", uses_uvloop=False),
    "grpc sync, 16 threads": Peer(serve_grpc_sync, connect_grpc_sync),
    "grpclib": Peer(serve_grpclib, connect_grpclib, uses_uvloop=True, needs=("grpclib",)),
    "thriftpy2, 16 threads": Peer(serve_thrift, connect_thrift, needs=("thriftpy2",)),
    "rpyc, 16 threads": Peer(serve_rpyc, connect_rpyc, needs=("rpyc",)),
    "Pyro5 msgpack, 16 threads": Peer(serve_pyro, connect_pyro, needs=("Pyro5",)),
    "apache-dubbo, 16 threads": Peer(serve_dubbo, connect_dubbo, needs=("dubbo",)),
    "Ray Serve handle": Peer(serve_ray, connect_ray, needs=("ray",)),
}


SCALED = [
    BASELINE,
    "raw uvloop, a task a call",
    "steelyard grpc",
    "steelyard tcp",
    "steelyard tcp, 8 providers",
    "steelyard tcp, 64 providers",
]


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
    server_cpu_us: float
    client_mib: float
    server_mib: float


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
        body = os.urandom(size)
        facts = (
            echo.drive(callers, seconds, body)
            if isinstance(echo, Blocking)
            else await drive(echo, callers, seconds, body)
        )
        sys.stdout.write(json.dumps(facts))
        sys.stdout.flush()
        os._exit(0)  # some peers take seconds to close

    run(PEERS[name], main())


async def drive(echo: Echo, callers: int, seconds: float, body: bytes) -> dict[str, float]:
    await echo(body)
    begin_at = time.perf_counter() + WARM_UP_S
    end_at = begin_at + seconds
    took: list[float] = []
    made = 0

    async def caller() -> None:
        nonlocal made
        now = time.perf_counter
        while True:
            sent_at = now()
            await echo(body)
            done_at = now()
            made += 1
            if sent_at >= begin_at:
                took.append(done_at - sent_at)
            if done_at >= end_at:
                return

    cpu_s = time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return summary(took, made, time.perf_counter() - begin_at, time.process_time() - cpu_s)


def run(peer: Peer, main: Any) -> None:
    if peer.uses_uvloop:
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)


def spawn(core: int | None, *arguments: str) -> subprocess.Popen[str]:
    return spawn_script(__file__, *arguments, core=core)


def spawn_script(script: str, *arguments: str, core: int | None = None) -> subprocess.Popen[str]:
    """A process of *script*, kept to a core (None: to none) where there are several."""
    command = [sys.executable, str(Path(script).resolve()), *arguments]
    cores = sorted(os.sched_getaffinity(0))

    def pin() -> None:
        os.sched_setaffinity(0, {cores[core or 0]})

    before = pin if core is not None and len(cores) > 1 else None
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=before)  # noqa: PLW1509


def measure(name: str, callers: int, round_: int, seconds: float, size: int) -> Result:
    server = spawn(0, "serve", name)
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"{name}: the server did not start")
        before_s = cpu_seconds(server.pid)
        client = spawn(1, "drive", name, port, str(callers), str(seconds), str(size))
        try:
            answer, _ = client.communicate(timeout=seconds + 30)
        except subprocess.TimeoutExpired as error:
            client.kill()
            client.wait()
            raise RuntimeError(f"{name}: the client did not end within {seconds + 30:g} s") from error
        if client.returncode != 0:
            raise RuntimeError(f"{name}: the client failed with exit status {client.returncode}")
        facts = json.loads(answer)
        served_us = (cpu_seconds(server.pid) - before_s) / facts.pop("made") * 1e6
        return Result(name, callers, round_, server_cpu_us=served_us, server_mib=peak_mib(server.pid), **facts)
    finally:
        server.kill()
        server.wait()


def peak_mib(pid: int) -> float:
    """The most memory that a process has held so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def cpu_seconds(pid: int) -> float:
    """What a process has used so far, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# The table.


_FIELDS = ("calls_per_s", "p50_us", "p99_us", "client_cpu_us", "server_cpu_us", "client_mib", "server_mib")


def medians(results: Sequence[Result]) -> list[dict[str, Any]]:
    rows = []
    for callers in sorted({result.callers for result in results}):
        base = [result for result in results if result.callers == callers and result.peer == BASELINE]
        for name in dict.fromkeys(result.peer for result in results):
            mine = [result for result in results if result.callers == callers and result.peer == name]
            if not mine:
                continue
            row: dict[str, Any] = {"peer": name, "callers": callers}
            for field in _FIELDS:
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
    table.add_column("peer", no_wrap=True)
    for title in ("callers", "calls/s", "x base", "p50 us", "x base", "p99 us", "client CPU", "server CPU", "MiB"):
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
            f"{row['server_cpu_us']:.1f}",
            f"{row['client_mib']:.0f}+{row['server_mib']:.0f}",
        )
    Console(width=120).print(table)


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
            continue
    cores = len(os.sched_getaffinity(0))
    load = f"{os.getloadavg()[0]:.1f}"
    return {
        "load": load,
        "cores": cores,
        "cpu": model,
        "kernel": platform.release(),
        "Python": platform.python_version(),
        **versions,
    }


def available() -> list[str]:
    """The peers that can run here; what is missing is said."""
    names = []
    for name, peer in PEERS.items():
        needs = (*peer.needs, "uvloop") if peer.uses_uvloop else peer.needs
        missing = [module for module in needs if importlib.util.find_spec(module) is None]
        if missing:
            print(f"left out: {name} ({', '.join(missing)} is not installed)", file=sys.stderr)
        elif not name.endswith("providers"):
            names.append(name)
    return names


def measure_edges(rounds: int) -> dict[str, float]:
    """What bench_wire finds, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder) / "edges.json"
        script = Path(__file__).with_name("bench_wire.py")
        asked = ["--only", "array,mixed,idle", "--rounds", str(rounds), "--json", str(there)]
        subprocess.run([sys.executable, str(script), *asked], check=True)
        found: dict[str, float] = json.loads(there.read_text())["found"]
        return found


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
    parser.add_argument("--no-edges", action="store_true", help="only the echo")
    parser.add_argument("--scale", action="store_true", help="how cost grows, instead of the bars")
    arguments = parser.parse_args()
    if arguments.scale:
        arguments.callers, arguments.no_edges = "8,512,4096", True
    names = arguments.peers.split(";") if arguments.peers else SCALED if arguments.scale else available()
    results: list[Result] = []
    for round_ in range(arguments.rounds):
        for callers in arguments.callers.split(","):
            for name in names:
                try:
                    results.append(measure(name, int(callers), round_, arguments.seconds, arguments.bytes))
                except RuntimeError as error:  # grpc.aio at 4,096 callers: CANCELLED
                    print(f"no result, {callers} callers: {error}", file=sys.stderr)
    rows, machine = medians(results), machine_class()
    show(rows, machine)
    edges = {} if arguments.no_edges else measure_edges(arguments.rounds)
    found = rpc_bars.bars(rows, edges)
    if not arguments.scale:
        print(rpc_bars.shown(found))
    if arguments.json:
        record = {"machine": machine, "bytes": arguments.bytes, "seconds": arguments.seconds, "rows": rows}
        record |= {"bars": rpc_bars.records(found), "edges": edges}
        record["results"] = [asdict(result) for result in results]
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
