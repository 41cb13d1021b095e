"""How does the wire behave at its edges? Arrays, small calls beside large ones, streams, idle connections, compression.

    python benchmarks/bench_wire.py [--json out.json] [--seconds 1] [--rounds 3] [--connections 10000] [--items 1000000]

Each row is medians over rounds, and each ratio is of measurements that took turns in one run: a provider and a consumer
process, on different cores where there are two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import bench_rpc as rpc

MIB = 1024 * 1024
SMALL_CALLERS, LARGE_CALLERS = 8, 4


async def serve() -> int:
    """Our provider with arrays and streams, and grpc.aio beside it on the port after the next."""
    import grpc
    import numpy as np

    from steelyard import Provider, method, service

    class Edge:
        @method(timeout_s=60.0)
        async def echo(self, body: bytes) -> bytes:
            return body

        @method(timeout_s=60.0)
        async def array(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            return x

        @method(timeout_s=600.0)
        async def count(self, last: int) -> AsyncIterator[int]:
            for number in range(last):
                yield number

        @method(timeout_s=600.0)
        async def total(self, numbers: AsyncIterator[int]) -> int:
            return sum([number async for number in numbers])

    Edge.__annotations__ = {}
    rpc.KEPT.append(service("bench.Edge")(Edge))
    for name, hints in _HINTS.items():
        getattr(Edge, name).__annotations__ = hints(np)
    port = rpc.free_port()
    Path(rpc.bench_registry(port).removeprefix("embedded://")).parent.mkdir(mode=0o700, exist_ok=True)
    provider = Provider(rpc.bench_registry(port), host=rpc.HOST, port=port)
    await provider.open()
    await provider.export(Edge())

    async def echo(body: bytes, _: Any) -> bytes:
        x = np.frombuffer(body)
        return x.tobytes()

    handler = grpc.method_handlers_generic_handler("bench.Echo", {"array": grpc.unary_unary_rpc_method_handler(echo)})
    options = (("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0))
    server = grpc.aio.server(handlers=(handler,), options=options)
    server.add_insecure_port(f"{rpc.HOST}:{port + 1}")
    await server.start()
    rpc.KEPT += [provider, server]
    return port


_HINTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "echo": lambda _: {"body": bytes, "return": bytes},
    "array": lambda np: {"x": np.ndarray, "return": np.ndarray},
    "count": lambda _: {"last": int, "return": AsyncIterator[int]},
    "total": lambda _: {"numbers": AsyncIterator[int], "return": int},
}


async def refer(port: int, carrier: str) -> Any:
    from steelyard import Consumer
    from steelyard.model import CallShape, MethodSpec, Parameter

    consumer = Consumer(rpc.bench_registry(port), carrier=carrier)
    await consumer.open()
    methods = [
        MethodSpec(name="echo", parameters=(Parameter("body"),), timeout_s=60.0),
        MethodSpec(name="array", parameters=(Parameter("x"),), timeout_s=60.0),
        MethodSpec(name="count", parameters=(Parameter("last"),), timeout_s=600.0, shape=CallShape.SERVER_STREAM),
        MethodSpec(
            name="total",
            parameters=(Parameter("numbers"),),
            timeout_s=600.0,
            shape=CallShape.CLIENT_STREAM,
            stream_at=0,
        ),
    ]
    proxy = consumer.generic("bench.Edge", methods, protection=None)
    await consumer.ready(proxy)
    rpc.KEPT.append(consumer)
    return proxy


async def loop_calls(call: Callable[[], Awaitable[Any]], callers: int, seconds: float) -> list[float]:
    """Latencies in seconds of a closed loop."""
    took: list[float] = []
    end_at = time.perf_counter() + seconds

    async def caller() -> None:
        while (sent_at := time.perf_counter()) < end_at:
            await call()
            took.append(time.perf_counter() - sent_at)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return sorted(took)


async def arrays(port: int, seconds: float) -> dict[str, float]:
    """MB/s of 1 MiB arrays there and back, 4 at a time."""
    import grpc
    import numpy as np

    x = np.random.default_rng(7).random(MIB // 8)
    channel = grpc.aio.insecure_channel(f"{rpc.HOST}:{port + 1}", options=(("grpc.max_receive_message_length", -1),))
    plain = channel.unary_unary("/bench.Echo/array")
    ours = {f"steelyard {carrier}": (await refer(port, carrier)).array for carrier in ("grpc", "tcp", "uds")}
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "grpc.aio": lambda: plain(x.tobytes()),
        **{name: partial(call, x) for name, call in ours.items()},
    }
    found = {}
    for name, call in calls.items():
        await call()
        cpu_s = time.process_time()
        took = await loop_calls(call, LARGE_CALLERS, seconds)
        found[f"array {name}, calls/s"] = len(took) / seconds
        found[f"array {name}, client CPU us"] = (time.process_time() - cpu_s) / len(took) * 1e6
    return found


async def mixed(port: int, seconds: float) -> dict[str, float]:
    """p99 of small calls, alone and beside 1 MiB calls on the same connection."""
    found = {}
    large, tiny = bytes(MIB), b"x" * 100
    for carrier in ("grpc", "tcp", "uds"):
        proxy = await refer(port, carrier)
        small_call, large_call = partial(proxy.echo, tiny), partial(proxy.echo, large)
        await small_call()
        alone = await loop_calls(small_call, SMALL_CALLERS, seconds)
        flowing = asyncio.ensure_future(loop_calls(large_call, LARGE_CALLERS, seconds))
        beside = await loop_calls(small_call, SMALL_CALLERS, seconds)
        flown = await flowing
        for name, took in (("alone", alone), ("beside", beside)):
            found[f"small calls {carrier}, {name}: p50 us"] = took[len(took) // 2] * 1e6
            found[f"small calls {carrier}, {name}: p99 us"] = took[int(len(took) * 0.99)] * 1e6
        found[f"large calls beside them {carrier}, calls/s"] = len(flown) / seconds
    return found


async def streams(port: int, items: int) -> dict[str, float]:
    found = {}

    async def numbers() -> AsyncIterator[int]:
        for number in range(items):
            yield number

    for carrier in ("grpc", "tcp"):
        proxy = await refer(port, carrier)
        before = peak_mib()
        started_at = time.perf_counter()
        count = 0
        async for _ in proxy.count(items):
            count += 1
        assert count == items
        found[f"server stream {carrier}, items/s"] = items / (time.perf_counter() - started_at)
        started_at = time.perf_counter()
        assert await proxy.total(numbers()) == items * (items - 1) // 2
        found[f"client stream {carrier}, items/s"] = items / (time.perf_counter() - started_at)
        found[f"streams {carrier}, consumer's memory grew by MiB"] = peak_mib() - before
    return found


async def compression() -> dict[str, float]:
    """What compressing saves and costs, in this process: records as services send them, and an array of noise."""
    import numpy as np

    from steelyard.codec import packed, packings, unpacked
    from steelyard.model import Packed

    found = {}
    records = [{"id": n, "name": f"item-{n * 7919 % 10007}", "price": n * 37 % 9973 / 100} for n in range(20_000)]
    text = json.dumps(records).encode()
    noise = np.random.default_rng(7).normal(size=200_000).astype(np.float32).tobytes()
    bodies = {f"records, {size:,} bytes": text[:size] for size in (1024, 4096, 65_536, 800_000)}
    bodies[f"array, {len(noise):,} bytes"] = noise
    for what, body in bodies.items():
        for how in packings():
            took, size = [], 0
            for _ in range(max(9, min(500, 2_000_000 // len(body)))):
                started_at = time.process_time()
                small = await packed(how, body)
                back = await unpacked(small) if isinstance(small, Packed) else small
                took.append(time.process_time() - started_at)
                assert back == body
                size = len(small.data) if isinstance(small, Packed) else len(small)
            found[f"compression {how}, {what}: share of its size"] = size / len(body)
            found[f"compression {how}, {what}: there and back, CPU us"] = statistics.median(took) * 1e6
    return found


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def idle(carrier: str, connections: int) -> dict[str, float]:
    """What a provider holds for connections that only exist: this process is the provider, a child connects."""
    from steelyard.model import Invocation, Reply
    from steelyard.wire import Listener

    async def echo(invocation: Invocation) -> Reply:
        return Reply(body=invocation.body)

    port = rpc.free_port()
    listener = Listener(echo, port=port, lanes=("tcp",), lane_port=port + 1)
    await listener.start()
    await connect_some(listener, carrier, 100)
    before = rss_bytes(os.getpid())
    await connect_some(listener, carrier, connections)
    bytes_each = (rss_bytes(os.getpid()) - before) / connections
    return {f"idle connections {carrier}: {connections}, provider's bytes each": bytes_each}


async def connect_some(listener: Any, carrier: str, connections: int) -> None:
    target = listener.connections + connections
    child = rpc.spawn_script(__file__, "hold", carrier, str(listener.port), str(connections))
    rpc.KEPT.append(child)
    async with asyncio.timeout(300):
        while listener.connections < target:
            await asyncio.sleep(0.1)


async def hold(carrier: str, port: int, connections: int) -> None:
    from steelyard.wire import Channel, LaneConnector

    turn = asyncio.Semaphore(64)

    async def one() -> None:
        channel = Channel(f"{rpc.HOST}:{port}", connector=LaneConnector(carrier, {"tcp": str(port + 1)}))
        async with turn:
            await channel.connect()
        rpc.KEPT.append(channel)

    await asyncio.gather(*(one() for _ in range(connections)))
    await asyncio.Event().wait()


def in_uvloop(main: Any) -> Any:
    import uvloop

    return uvloop.run(main)


def measured(arguments: argparse.Namespace) -> list[dict[str, float]]:
    """The rounds of what has a provider of its own."""
    rounds = []
    for _ in range(arguments.rounds):
        server = rpc.spawn_script(__file__, "serve", core=0)
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            client = rpc.spawn_script(
                __file__, "drive", port, str(arguments.seconds), str(arguments.items), arguments.only, core=1
            )
            answer, _ = client.communicate(timeout=900)
            rounds.append(json.loads(answer))
        finally:
            server.kill()
            server.wait()
    return rounds


async def drive(port: int, seconds: float, items: int, only: str) -> dict[str, float]:
    found: dict[str, float] = {}
    if "array" in only:
        found |= await arrays(port, seconds)
    if "mixed" in only:
        found |= await mixed(port, seconds)
    if "stream" in only:
        found |= await streams(port, items)
    return found


async def serve_main() -> None:
    print(await serve(), flush=True)
    await asyncio.Event().wait()


async def drive_main(port: str, seconds: str, items: str, only: str) -> None:
    print(json.dumps(await drive(int(port), float(seconds), int(items), only)), flush=True)
    os._exit(0)


def more_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    more_files()
    match sys.argv[1:]:
        case ["serve"]:
            return in_uvloop(serve_main())
        case ["drive", *facts]:
            return in_uvloop(drive_main(*facts))
        case ["hold", carrier, port, connections]:
            return in_uvloop(hold(carrier, int(port), int(connections)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--only", default="array,mixed,stream,idle,compression", help="some of these, with commas")
    arguments = parser.parse_args()
    asked = set(arguments.only.split(","))
    rounds = measured(arguments) if asked & {"array", "mixed", "stream"} else []
    found = {name: statistics.median(one[name] for one in rounds) for name in (rounds[0] if rounds else {})}
    if "idle" in arguments.only:
        found |= in_uvloop(idle("tcp", arguments.connections))
        found |= in_uvloop(idle("grpc", max(100, arguments.connections // 10)))
        for child in rpc.KEPT:
            if hasattr(child, "kill"):
                child.kill()
    if "compression" in arguments.only:
        found |= asyncio.run(compression())
    for carrier in ("grpc", "tcp", "uds"):
        base, ours = found.get("array grpc.aio, calls/s"), found.get(f"array steelyard {carrier}, calls/s")
        if base and ours:
            found[f"array steelyard {carrier}, x grpc.aio"] = ours / base
        alone, beside = (found.get(f"small calls {carrier}, {name}: p99 us") for name in ("alone", "beside"))
        if alone and beside:
            found[f"small calls {carrier}, p99 beside / alone"] = beside / alone
    machine = rpc.machine_class()
    for name, value in found.items():
        print(f"{name:<60} {value:>14,.2f}")
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "found": found, "rounds": rounds}, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
