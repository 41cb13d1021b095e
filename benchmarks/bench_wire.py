"""How does the wire behave at its edges? Arrays, small calls beside large ones, streams, idle connections, compression.

    python benchmarks/bench_wire.py [--json out.json] [--seconds 1] [--rounds 3] [--connections 10000] [--items 1000000]

Each row is medians over rounds, and each ratio is of measurements that took turns in one run: a provider and a consumer
process, on different cores where there are two. Bare grpc.aio has two processes of its own, and so has each carrier for
its streams, whose memory is counted.
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
CARRIERS = ("grpc", "tcp", "uds")
# Of one child process: a client of gRPC takes much more memory for a connection than a provider does.
HELD = 2500


async def serve() -> int:
    """Our provider with arrays and streams."""
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
            total = 0
            async for number in numbers:
                total += number
            return total

    Edge.__annotations__ = {}
    rpc.KEPT.append(service("bench.Edge")(Edge))
    for name, hints in _HINTS.items():
        getattr(Edge, name).__annotations__ = hints(np)
    port = rpc.free_port()
    Path(rpc.bench_registry(port).removeprefix("embedded://")).parent.mkdir(mode=0o700, exist_ok=True)
    provider = Provider(rpc.bench_registry(port), host=rpc.HOST, port=port)
    await provider.open()
    await provider.export(Edge())
    rpc.KEPT.append(provider)
    return port


async def serve_bare() -> int:
    """grpc.aio, with an array for its handler as well."""
    import grpc
    import numpy as np

    async def echo(body: bytes, _: Any) -> bytes:
        x = np.frombuffer(body)
        return x.tobytes()

    handler = grpc.method_handlers_generic_handler("bench.Echo", {"array": grpc.unary_unary_rpc_method_handler(echo)})
    options = (("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0))
    server = grpc.aio.server(handlers=(handler,), options=options)
    port = server.add_insecure_port(f"{rpc.HOST}:0")
    await server.start()
    rpc.KEPT.append(server)
    return int(port)


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


def some_array() -> Any:
    import numpy as np

    return np.random.default_rng(7).random(MIB // 8)


async def bare_arrays(port: int, seconds: float) -> dict[str, float]:
    """1 MiB arrays there and back, 4 at a time, over bare grpc.aio."""
    import grpc

    x = some_array()
    channel = grpc.aio.insecure_channel(f"{rpc.HOST}:{port}", options=(("grpc.max_receive_message_length", -1),))
    call = channel.unary_unary("/bench.Echo/array")
    return await array_calls("grpc.aio", lambda: call(x.tobytes()), seconds)


async def arrays(port: int, seconds: float) -> dict[str, float]:
    """The same over our carriers."""
    x = some_array()
    found: dict[str, float] = {}
    for carrier in CARRIERS:
        call = (await refer(port, carrier)).array
        found |= await array_calls(f"steelyard {carrier}", partial(call, x), seconds)
    return found


async def array_calls(name: str, call: Callable[[], Awaitable[Any]], seconds: float) -> dict[str, float]:
    for _ in range(2 * LARGE_CALLERS):
        await call()
    cpu_s = time.process_time()
    took = await loop_calls(call, LARGE_CALLERS, seconds)
    cpu_us = (time.process_time() - cpu_s) / len(took) * 1e6
    return {f"array {name}, calls/s": len(took) / seconds, f"array {name}, client CPU us": cpu_us}


async def mixed(port: int, seconds: float) -> dict[str, float]:
    """p99 of small calls, alone and beside 1 MiB calls on the same connection."""
    found = {}
    large, tiny = bytes(MIB), b"x" * 100
    for carrier in CARRIERS:
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


async def streams(port: int, items: int, carrier: str, provider: int) -> dict[str, float]:
    """Small items from the provider, then to it; *provider* is its process, whose memory is counted too."""

    async def numbers() -> AsyncIterator[int]:
        for number in range(items):
            yield number

    proxy = await refer(port, carrier)
    async for _ in proxy.count(1000):
        pass
    before = rpc.peak_mib(os.getpid()), rpc.peak_mib(provider)
    started_at = time.perf_counter()
    count = 0
    async for _ in proxy.count(items):
        count += 1
    assert count == items
    found = {f"server stream {carrier}, items/s": items / (time.perf_counter() - started_at)}
    started_at = time.perf_counter()
    assert await proxy.total(numbers()) == items * (items - 1) // 2
    found[f"client stream {carrier}, items/s"] = items / (time.perf_counter() - started_at)
    found[f"streams {carrier}, consumer's memory grew by MiB"] = rpc.peak_mib(os.getpid()) - before[0]
    found[f"streams {carrier}, provider's memory grew by MiB"] = rpc.peak_mib(provider) - before[1]
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


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def idle(carrier: str, connections: int) -> dict[str, float]:
    """What a provider holds for connections that only exist, and how fast they come: this process is the provider,
    children connect."""
    from steelyard.model import Invocation, Reply
    from steelyard.wire import Listener

    async def echo(invocation: Invocation) -> Reply:
        return Reply(body=invocation.body)

    port = rpc.free_port()
    listener = Listener(echo, port=port, lanes=("tcp",), lane_port=port + 1)
    await listener.start()
    children = [(await connect_some(listener, carrier, 100))[0]]
    before, took_s = rss_bytes(os.getpid()), 0.0
    for at in range(0, connections, HELD):
        child, child_s = await connect_some(listener, carrier, min(HELD, connections - at))
        children.append(child)
        took_s += child_s
    bytes_each = (rss_bytes(os.getpid()) - before) / connections
    for child in children:
        child.kill()
        child.wait()
    return {
        f"idle connections {carrier}: {connections}, provider's bytes each": bytes_each,
        f"idle connections {carrier}: connects/s": connections / took_s,
    }


async def connect_some(listener: Any, carrier: str, connections: int) -> tuple[Any, float]:
    """The child that holds them, once it does, and the seconds from the first to the last."""
    before = listener.connections
    child = rpc.spawn_script(__file__, "hold", carrier, str(listener.port), str(connections))
    begun_at = 0.0
    async with asyncio.timeout(300):
        while listener.connections < before + connections:
            if not begun_at and listener.connections > before:
                begun_at = time.perf_counter()
            await asyncio.sleep(0.005)
    return child, time.perf_counter() - begun_at


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


def pair(what: str, arguments: argparse.Namespace) -> dict[str, float]:
    """What one consumer process finds at one provider process."""
    server = rpc.spawn_script(__file__, "serve", what, core=0)
    try:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        facts = (port, str(arguments.seconds), str(arguments.items), str(server.pid))
        client = rpc.spawn_script(__file__, "drive", what, *facts, core=1)
        answer, _ = client.communicate(timeout=900)
        found: dict[str, float] = json.loads(answer)
        return found
    finally:
        server.kill()
        server.wait()


def measured(arguments: argparse.Namespace, asked: set[str]) -> list[dict[str, float]]:
    """The rounds of what has a provider process of its own."""
    pairs = []
    if "array" in asked:
        pairs += ["bare", "array"]
    if "mixed" in asked:
        pairs.append("mixed")
    if "stream" in asked:
        pairs += [f"stream-{carrier}" for carrier in CARRIERS]
    rounds = []
    for _ in range(arguments.rounds if pairs else 0):
        found: dict[str, float] = {}
        for what in pairs:
            found |= pair(what, arguments)
        rounds.append(found)
    return rounds


async def drive(what: str, port: int, seconds: float, items: int, provider: int) -> dict[str, float]:
    if what == "bare":
        return await bare_arrays(port, seconds)
    if what == "array":
        return await arrays(port, seconds)
    if what == "mixed":
        return await mixed(port, seconds)
    return await streams(port, items, what.removeprefix("stream-"), provider)


async def serve_main(what: str) -> None:
    print(await (serve_bare() if what == "bare" else serve()), flush=True)
    await asyncio.Event().wait()


async def drive_main(what: str, port: str, seconds: str, items: str, provider: str) -> None:
    print(json.dumps(await drive(what, int(port), float(seconds), int(items), int(provider))), flush=True)
    os._exit(0)


def more_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> None:
    more_files()
    match sys.argv[1:]:
        case ["serve", what]:
            return in_uvloop(serve_main(what))
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
    rounds = measured(arguments, asked)
    found = {name: statistics.median(one[name] for one in rounds) for name in (rounds[0] if rounds else {})}
    if "idle" in asked:
        found |= in_uvloop(idle("tcp", arguments.connections))
        found |= in_uvloop(idle("grpc", arguments.connections))
    if "compression" in asked:
        found |= asyncio.run(compression())
    for carrier in CARRIERS:
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
