"""Is the registry fast enough for a large cluster? Against a real ZooKeeper that this starts, on this machine.

    ./dev bench registry [--only cold change memory services watchers expiry children select] [--json FILE] [--quick]

cold      10,000 provider nodes, one service: how long the first subscription takes
change    one node of these changes: how long until picks know (p50, p99), and how much of it is the policy's
memory    what one consumer keeps for each of these nodes
services  1,000 services of 10 nodes: how long until all are subscribed to
watchers  100 consumers watch 5,000 nodes while a tenth of them restarts: does every consumer end with the same, true
          list
expiry    a provider's session ends: how long after the reconnect until everything is registered again
children  1,000,000 children that are no nodes, and among them one that is: the first subscription, what it keeps, and
          then one change
select    the choice of one service key's nodes out of 10,000 entries: how long it holds the loop
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from kazoo.client import KazooClient
from support.zookeeper import ZooKeeperServer

from steelyard.balance import make_policy
from steelyard.cluster import ChannelPool, Directory
from steelyard.wire import ChannelState
from steelyard_registry import Hardware, Node, ServiceKey, open_registry, provider_url, select

KEY = ServiceKey(interface="bench.Ctr", version="1.0.0")
Result = dict[str, Any]


def node(number: int, interface: str = "bench.Ctr", **facts: Any) -> Node:
    """A node as providers publish them: about 500 bytes as a name."""
    return Node(
        interface=interface,
        version="1.0.0",
        host=f"10.{number // 62500 % 250}.{number // 250 % 250}.{number % 250 + 1}",
        port=20880,
        application="bench-ads",
        methods=("predict", "explain", "warm_up"),
        started_at_ms=1_700_000_000_000 + number,
        zone=f"zone-{number % 3}",
        hardware=Hardware(kind="gpu" if number % 4 == 0 else "cpu", model=f"model {number % 7}", cores=8, quota=4),
        tags={"pool": "ads"},
        **facts,
    )


class Place:
    """A ZooKeeper with the nodes of a measurement in it, created by an operator's session."""

    def __init__(self, server: ZooKeeperServer, root: str) -> None:
        self.server, self.root = server, root
        self.url = server.url(root, cache="off", own_session=True)

    async def fill(self, client: Any, nodes: Sequence[Node]) -> None:
        for interface in {each.interface for each in nodes}:
            await asyncio.to_thread(client.ensure_path, f"{self.folder(interface)}")
        await asyncio.to_thread(self._create, client, nodes)

    def folder(self, interface: str) -> str:
        return f"/{self.root}/{quote(interface, safe='')}/providers"

    def path(self, each: Node) -> str:
        return f"{self.folder(each.interface)}/{quote(provider_url(each), safe='')}"

    def _create(self, client: Any, nodes: Sequence[Node]) -> None:
        for start in range(0, len(nodes), 500):
            pending = [client.create_async(self.path(each), ephemeral=True) for each in nodes[start : start + 500]]
            for each in pending:
                each.get(60)


class Silent(ChannelPool):
    """Ten thousand connections are not what is measured: these stay idle."""

    def acquire(self, *_: Any) -> Any:
        return _IDLE

    def release(self, *_: Any) -> None:
        pass

    def advise(self, *_: Any) -> None:
        pass


class _Idle:
    state = ChannelState.IDLE


_IDLE: Any = _Idle()


async def cold(place: Place, client: Any, count: int) -> Result:
    await place.fill(client, [node(number) for number in range(count)])
    took_s, longest_s = [], []
    for _ in range(5):
        async with open_registry(place.url) as registry:
            async with LoopLag() as lag:
                began_s = time.perf_counter()
                view = await registry.subscribe(KEY)
                took_s.append(time.perf_counter() - began_s)
            longest_s.append(lag.longest_s)
            assert len(view.snapshot.nodes) == count, len(view.snapshot.nodes)
    return {
        "nodes": count,
        "subscribe_s": statistics.median(took_s),
        "slowest_s": max(took_s),
        "loop_held_s": statistics.median(longest_s),
    }


async def change(place: Place, client: Any, count: int, changes: int) -> Result:
    """From before the write to the moment at which picks know: the policy's plan, ring and tables are made. In turn one
    node changes its weight, goes and comes; calls with and without a key have been seen, so that both kinds of tables
    are kept."""
    nodes = {number: node(number) for number in range(count)}
    await place.fill(client, list(nodes.values()))
    policy = make_policy("dual")
    seen: asyncio.Queue[tuple[float, float, Sequence[Node]]] = asyncio.Queue()

    def on_nodes(found: Sequence[Node]) -> None:
        told_s = time.perf_counter()
        policy.set_nodes(found, time.monotonic())
        policy.pick(time.monotonic(), random.random, key=random.getrandbits(64))
        policy.pick(time.monotonic(), random.random)
        seen.put_nowait((told_s, time.perf_counter(), found))

    def write(old: Node | None, new: Node | None) -> float:
        transaction = client.transaction()
        if old is not None:
            transaction.delete(place.path(old))
        if new is not None:
            transaction.create(place.path(new), ephemeral=True)
        began_s = time.perf_counter()
        assert all(result is True or isinstance(result, str) for result in transaction.commit())
        return began_s

    took: dict[str, list[float]] = {"all": [], "until_told": [], "policy": []}
    async with open_registry(place.url) as registry:
        directory = Directory(registry, KEY, Silent(), on_nodes)
        task = asyncio.ensure_future(directory.run())
        await directory.first()
        cpu_s = 0.0
        for number in range(changes):
            at = random.randrange(count)
            old = nodes.get(at)
            new = node(at, weight=200 + number) if old is None or number % 3 == 0 else None
            nodes[at] = new
            host, wanted = node(at).host, [] if new is None else [new]
            while not seen.empty():
                seen.get_nowait()
            before_s = time.process_time()
            began_s = await asyncio.to_thread(write, old, new)
            while True:
                told_s, done_s, found = await asyncio.wait_for(seen.get(), 60)
                if [one for one in found if one.host == host] == wanted:
                    break
            cpu_s += time.process_time() - before_s
            took["all"].append(done_s - began_s)
            took["until_told"].append(told_s - began_s)
            took["policy"].append(done_s - told_s)
            await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    result: Result = {"nodes": count, "changes": changes, "cpu_ms": 1000 * cpu_s / changes}
    for stage, seconds in took.items():
        seconds.sort()
        result[f"{stage}_p50_ms"] = 1000 * statistics.median(seconds)
        result[f"{stage}_p99_ms"] = 1000 * seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))]
    return result


async def memory(place: Place, client: Any, count: int) -> Result:
    await place.fill(client, [node(number) for number in range(count)])
    registry = open_registry(place.url)
    await registry.open()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    view = await registry.subscribe(KEY)
    while len(view.snapshot.nodes) < count:  # tracing makes everything slow
        await view.changed(view.snapshot.version)
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(view.snapshot.nodes) == count
    await registry.close()
    return {"nodes": count, "bytes_per_node": kept / count}


async def services(place: Place, client: Any, count: int, each: int) -> Result:
    nodes = [node(number, f"bench.S{at}") for at in range(count) for number in range(each)]
    await place.fill(client, nodes)
    async with open_registry(place.url) as registry:
        began_s = time.perf_counter()
        keys = [ServiceKey(interface=f"bench.S{at}", version="*") for at in range(count)]
        views = await asyncio.gather(*(registry.subscribe(key) for key in keys))
        subscribed_s = time.perf_counter() - began_s
        assert all(len(view.snapshot.nodes) == each for view in views)
        began_s = time.perf_counter()
        assert len(await registry.services()) == count
        listed_s = time.perf_counter() - began_s
    return {"services": count, "nodes_each": each, "subscribe_all_s": subscribed_s, "list_s": listed_s}


async def watchers(place: Place, client: Any, consumers: int, count: int) -> Result:
    """Consumers with sessions of their own; a tenth of the nodes is taken out and comes back with a later start."""
    nodes = [node(number) for number in range(count)]
    await place.fill(client, nodes)
    restarted = [replace(each, started_at_ms=each.started_at_ms + 10**9) for each in nodes[: count // 10]]
    truth = {(each.identity, each.started_at_ms) for each in [*restarted, *nodes[count // 10 :]]}
    worst = 0
    async with AsyncExitStack() as stack:
        registries = [await stack.enter_async_context(open_registry(place.url)) for _ in range(consumers)]
        views = [await registry.subscribe(KEY) for registry in registries]
        began_s = time.perf_counter()

        def restart() -> None:
            for old, new in zip(nodes, restarted, strict=False):
                client.delete(place.path(old))
                client.create(place.path(new), ephemeral=True)

        restarting = asyncio.ensure_future(asyncio.to_thread(restart))

        def is_true(view: Any) -> bool:
            return {(each.identity, each.started_at_ms) for each in view.snapshot.nodes} == truth

        pending = set(views)
        async with asyncio.timeout(120):
            while pending or not restarting.done():
                worst = max(worst, await asyncio.to_thread(outstanding, place.server))
                await asyncio.sleep(0.1)
                if restarting.done():
                    pending = {view for view in pending if not is_true(view)}
        await restarting
        settled_s = time.perf_counter() - began_s
    return {
        "consumers": consumers,
        "nodes": count,
        "restarted": len(restarted),
        "settled_s": settled_s,
        "all_equal_and_true": not pending,
        "most_outstanding_requests": worst,
    }


async def expiry(place: Place, client: Any, times: int) -> Result:
    """The session ends under a provider of ten services: from the reconnect until all are there again and its own."""
    took_s = []
    async with open_registry(place.url) as registry:
        nodes = [node(number, f"bench.E{number}") for number in range(10)]
        for each in nodes:
            await registry.register(each)
        session = registry._lease.session  # type: ignore[attr-defined]
        for _ in range(times):
            identity = session._client.client_id
            connected: asyncio.Future[float] = asyncio.get_running_loop().create_future()

            def observe(old: int = identity[0], told: asyncio.Future[float] = connected) -> None:
                if session.is_connected and session.session_id != old and not told.done():
                    told.set_result(time.perf_counter())

            session.observers.add(observe)
            await asyncio.to_thread(end_session, place.server.hosts, identity)
            again_s = await asyncio.wait_for(connected, 60)
            session.observers.discard(observe)
            while not await asyncio.to_thread(
                are_owned, client, [place.path(each) for each in nodes], session.session_id
            ):
                await asyncio.sleep(0.005)
            took_s.append(time.perf_counter() - again_s)
    took_s.sort()
    return {
        "times": times,
        "services": len(nodes),
        "p50_ms": 1000 * statistics.median(took_s),
        "most_ms": 1000 * took_s[-1],
    }


async def children(place: Place, client: Any, count: int) -> Result:
    """Somebody's mistake, or worse. The list is read and each is counted; the client's threads live afterwards."""
    client.ensure_path(place.folder(KEY.interface))
    await asyncio.to_thread(fill_with_junk, client, place.folder(KEY.interface), count)
    async with open_registry(place.url) as registry, open_registry(place.url) as other:
        await other.register(node(1))
        before = resident_bytes()
        async with LoopLag() as lag:
            began_s = time.perf_counter()
            view = await registry.subscribe(KEY)
            while view.snapshot.skipped < count:  # what takes longer than five seconds comes later
                await view.changed(view.snapshot.version)
            took_s = time.perf_counter() - began_s
        assert len(view.snapshot.nodes) == 1
        kept = resident_bytes() - before
        began_s = time.perf_counter()
        await other.register(node(2))
        while len(view.snapshot.nodes) < 2:
            await view.changed(view.snapshot.version)
        change_s = time.perf_counter() - began_s
        handler = registry._lease.session._client.handler  # type: ignore[attr-defined]
        assert handler.socket_thread.is_alive()
        assert all(worker.is_alive() for worker in handler._workers)
    return {
        "children": count,
        "subscribe_s": took_s,
        "loop_held_s": lag.longest_s,
        "bytes_per_child": kept / count,
        "change_ms": 1000 * change_s,
    }


def fill_with_junk(client: Any, folder: str, count: int) -> None:
    pending = []
    for start in range(0, count, 1000):
        transaction = client.transaction()
        for number in range(start, min(start + 1000, count)):
            transaction.create(f"{folder}/junk-{number}")
        pending.append(transaction.commit_async())
        if len(pending) > 20:
            pending.pop(0).get(60)
    for each in pending:
        each.get(60)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def end_session(hosts: str, identity: tuple[int, bytes]) -> None:
    """Somebody with the same session comes and leaves."""
    impostor = KazooClient(hosts=hosts, client_id=identity)
    impostor.start()
    impostor.stop()
    impostor.close()


def are_owned(client: Any, paths: Sequence[str], owner: int) -> bool:
    stats = [client.exists_async(path) for path in paths]
    found = [stat.get(30) for stat in stats]
    return all(stat is not None and stat.ephemeralOwner == owner for stat in found)


def outstanding(server: ZooKeeperServer) -> int:
    for line in server.command("mntr").splitlines():
        if line.startswith("zk_outstanding_requests"):
            return int(line.split()[1])
    return 0


async def choose(count: int) -> Result:
    nodes = [node(number) for number in range(count)]
    took_s = []
    for _ in range(20):
        began_s = time.perf_counter()
        assert len(select(KEY, nodes)) == count
        took_s.append(time.perf_counter() - began_s)
    return {"nodes": count, "select_ms": 1000 * statistics.median(took_s)}


_LOOK_S = 0.01


class LoopLag:
    """The longest time that the loop was held by somebody else. Looks seldom: a loop that never sleeps leaves kazoo's
    threads no turn."""

    longest_s = 0.0

    async def __aenter__(self) -> LoopLag:
        self._task = asyncio.ensure_future(self._run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            began_s = time.perf_counter()
            await asyncio.sleep(_LOOK_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - began_s - _LOOK_S)


async def measure(only: Sequence[str], quick: bool) -> Result:
    scale = 10 if quick else 1
    plan: dict[str, Callable[[Place, Any], Coroutine[Any, Any, Result]]] = {
        "cold": lambda place, client: cold(place, client, 10_000 // scale),
        "change": lambda place, client: change(place, client, 10_000 // scale, 60 if quick else 120),
        "memory": lambda place, client: memory(place, client, 10_000 // scale),
        "services": lambda place, client: services(place, client, 1_000 // scale, 10),
        "watchers": lambda place, client: watchers(place, client, 100 // scale, 5_000 // scale),
        "expiry": lambda place, client: expiry(place, client, 5 if quick else 20),
        "children": lambda place, client: children(place, client, 1_000_000 // scale),
        "select": lambda _, __: choose(10_000 // scale),
    }
    results: Result = {"python": platform.python_version(), "is_quick": quick}
    with tempfile.TemporaryDirectory(prefix="steelyard-bench-") as folder:
        for name in only or plan:
            heap = ["-Xmx3g"] if name == "children" else []
            with ZooKeeperServer(Path(folder) / name, flags=heap) as server, server.client() as client:
                results[name] = await plan[name](Place(server, name), client)
                print(f"{name:9}", ", ".join(f"{key} {shown(value)}" for key, value in results[name].items()))
    return results


def shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything")
    asked = parser.parse_args()
    results = asyncio.run(measure(asked.only, asked.quick))
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
