"""``steelyard serve --workers``: real processes, killed one by one and all at once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.served import Sums

from steelyard import Consumer
from steelyard.provider import Workers, WorkersFailed
from steelyard_registry import ServiceKey, open_registry

TESTS = Path(__file__).parents[1]
WITHIN_S = 90.0  # several interpreters start at once, on a machine that may have other things to do


class Parent:
    """A parent and its workers."""

    def __init__(self, registry: str, *arguments: str) -> None:
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "steelyard", "serve", *arguments, "--json", "--registry", registry],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.pids: list[int] = []

    def document(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        document: dict[str, Any] = json.loads(line)
        self.pids = [each["pid"] for each in document["workers"]]
        return document

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def registry(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/registry.db"


@pytest.fixture
def serve(registry: str) -> Iterator[Callable[..., Parent]]:
    parents: list[Parent] = []

    def start(*arguments: str) -> Parent:
        parents.append(Parent(registry, *arguments))
        return parents[-1]

    yield start
    for parent in parents:
        parent.close()


@pytest.fixture
async def consumer(registry: str) -> AsyncIterator[Consumer]:
    async with Consumer(registry) as consumer:
        yield consumer


async def until(fact: Callable[[], Any]) -> None:
    give_up_at = time.monotonic() + WITHIN_S
    while not fact():
        assert time.monotonic() < give_up_at
        await asyncio.sleep(0.05)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie is what this container's first process has not buried yet, and no worker any more.
    return ") Z" not in Path(f"/proc/{pid}/stat").read_text()


async def test_each_is_a_node_and_one_that_is_killed_comes_again(
    serve: Callable[..., Parent], consumer: Consumer, registry: str
) -> None:
    parent = serve("support.served:Sums", "--workers", "2")
    document = await asyncio.to_thread(parent.document)
    assert document["pid"] == parent.process.pid
    assert len({each["address"] for each in document["workers"]}) == 2
    sums = consumer.refer(Sums)
    await consumer.ready(sums, nodes=2)
    async with open_registry(registry) as opened:
        subscription = await opened.subscribe(ServiceKey.parse(document["workers"][0]["services"][0]["service"]))
        nodes = (await subscription.changed(-1)).nodes
        await subscription.close()
    assert {node.tags["worker"] for node in nodes} == {"0", "1"}
    assert len({(node.hardware, node.tags["hw.host"]) for node in nodes}) == 1, "all are of one machine"
    # A worker that was seen a moment after the other one starts slowly, with a tenth of its share:
    # forty calls may miss it.
    answered: set[int] = set()
    give_up_at = time.monotonic() + WITHIN_S
    while len(answered) < 2:
        assert time.monotonic() < give_up_at
        answered.add(await sums.process())
    assert answered == set(parent.pids)
    os.kill(parent.pids[0], signal.SIGKILL)
    await until(lambda: not lives(parent.pids[0]))
    assert {await sums.process() for _ in range(20)} == {parent.pids[1]}
    seen: set[int] = set()
    give_up_at = time.monotonic() + WITHIN_S
    while len(seen - {parent.pids[0]}) < 2:
        assert time.monotonic() < give_up_at
        seen.add(await sums.process())
        await asyncio.sleep(0.05)
    parent.pids += seen


async def test_a_stop_loses_no_call(serve: Callable[..., Parent], consumer: Consumer) -> None:
    leaving, staying = serve("support.served:Sums", "--workers", "2"), serve("support.served:Sums", "--workers", "2")
    for parent in (leaving, staying):
        await asyncio.to_thread(parent.document)
    sums = consumer.refer(Sums)
    await consumer.ready(sums, nodes=4)
    is_over = False
    answered = 0

    async def call() -> None:
        nonlocal answered
        while not is_over:
            assert await sums.slow(0.02) == "done"
            answered += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(call())
        await asyncio.sleep(0.5)
        leaving.process.terminate()
        code = await asyncio.to_thread(leaving.process.wait, WITHIN_S)
        after = answered
        await asyncio.sleep(0.5)
        is_over = True
    assert code == 0
    assert answered > after > 0
    assert not any(map(lives, leaving.pids))


async def test_workers_end_with_their_parent(serve: Callable[..., Parent], consumer: Consumer) -> None:
    parent = serve("support.served:Sums", "--workers", "2")
    await asyncio.to_thread(parent.document)
    sums = consumer.refer(Sums)
    await consumer.ready(sums, nodes=2)
    parent.process.kill()
    await until(lambda: not any(map(lives, parent.pids)))
    await until(lambda: not consumer.statistics(sums).balance.nodes)


async def test_what_cannot_start_is_given_up(serve: Callable[..., Parent]) -> None:
    parent = serve("support.served:Sums", "--workers", "3", "--registry-wait", "0.1", "--host", "203.0.113.7")
    _, said = await asyncio.to_thread(parent.process.communicate, None, WITHIN_S)
    assert parent.process.returncode == 1
    assert "ended with exit code 1 before it was ready" in said


QUICK = "import sys, os, time; print('ready', flush=True); time.sleep(float(sys.argv[1]) if {} else 60); sys.exit(3)"


async def test_one_that_ends_again_and_again_waits_longer_each_time(caplog: pytest.LogCaptureFixture) -> None:
    waits: list[float] = []

    def dice() -> float:
        waits.append(asyncio.get_running_loop().time())
        if len(waits) == 3:
            workers.stop()
        return 0.0

    command = [sys.executable, "-c", QUICK.format("os.environ['STEELYARD_WORKER'] == '1'"), "0"]
    workers = Workers(command, 2, drain_s=0.1, dice=dice)
    async with asyncio.timeout(WITHIN_S):
        await workers.run()
    assert len(waits) == 3
    told = [record.getMessage() for record in caplog.records if "the next one starts in" in record.getMessage()]
    assert [line.rpartition(" in ")[2] for line in told] == ["0.2 s", "0.5 s", "1.0 s"]
    assert all("worker 1 ended with exit code 3" in line for line in told)
    assert workers.pids == ()


async def test_one_that_says_nothing_and_ends_is_a_mistake() -> None:
    with pytest.raises(WorkersFailed, match=r"ended with signal 9 \(SIGKILL\) before it was ready"):
        await Workers([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 2, drain_s=0.1).run()


async def test_one_that_does_not_drain_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard.provider.workers.GRACE_S", 0.3)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    workers = Workers([sys.executable, "-c", deaf], 2, drain_s=0.1, on_ready=lambda lines: workers.stop())
    async with asyncio.timeout(WITHIN_S):
        await workers.run()
    assert workers.pids == ()
