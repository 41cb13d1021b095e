"""A fleet of provider processes that fall sick on command, an open load on them, and a ledger of what was executed.

Each process serves ``Ward``: a call takes ``work_s`` of one of ``beds`` places and waits in line for it, as on a
machine with so many workers, but without burning processor time, so that eight of them fit on two cores. Every
execution is written to the node's own ledger file with one unbuffered write *before* anything can go wrong, so that it
is counted also for a process that is killed in the middle.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from steelyard import Degraded, RpcError, method, service

TESTS = Path(__file__).parent.parent


@service("test.Ward")
class Ward(Protocol):
    @method(timeout_s=2.0, idempotent=True)
    async def read(self, number: int) -> str: ...

    @method(timeout_s=2.0)
    async def write(self, number: int) -> str: ...


class WardModel(Ward):
    """``fail``: chance to fail; ``fail_fast``: failures cost nothing; ``slow``: factor on the work; ``flap``: failing
    in every other second."""

    def __init__(self, name: str, ledger: str, beds: int, work_s: float) -> None:
        self.name = name
        self.ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.beds = asyncio.Semaphore(beds)
        self.work_s = work_s
        self.count = 0
        self.set()

    def set(self, *, fail: float = 0.0, fail_fast: bool = False, slow: float = 1.0, flap: bool = False) -> None:
        self.fail, self.fail_fast, self.slow, self.flap = fail, fail_fast, slow, flap

    async def read(self, number: int) -> str:
        return await self._serve("read", number)

    async def write(self, number: int) -> str:
        return await self._serve("write", number)

    async def _serve(self, kind: str, number: int) -> str:
        os.write(self.ledger, f"{kind} {number}\n".encode())
        self.count += 1
        # Counted and not drawn: half of the calls fail, in any order of load.
        is_failing = int(self.count * self.fail) != int((self.count - 1) * self.fail)
        is_failing = is_failing or (self.flap and int(time.monotonic()) % 2 == 1)
        if is_failing and self.fail_fast:
            raise RuntimeError(f"{self.name} is sick")
        async with self.beds:
            await asyncio.sleep(self.work_s * self.slow)
        if is_failing:
            raise RuntimeError(f"{self.name} is sick")
        return self.name


async def serve(registry: str, name: str, ledger: str, beds: int, work_s: float) -> None:
    """The process: one node, until its standard input closes."""
    from steelyard import Provider

    model = WardModel(name, ledger, beds, work_s)
    loop = asyncio.get_running_loop()
    async with Provider(registry, host="127.0.0.1", drain_s=1) as provider:
        await provider.export(model)
        print("ready", flush=True)
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            model.set(**json.loads(line))


class SickNode:
    """One process. Signals reach it alone."""

    def __init__(self, fleet: SickFleet, at: int) -> None:
        self.fleet = fleet
        self.name = f"node-{at}"
        self.ledger = fleet.folder / f"{self.name}.ledger"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        fleet = self.fleet
        arguments = (fleet.registry, self.name, str(self.ledger), str(fleet.beds), str(fleet.work_s))
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])},
        )

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == b"ready\n", f"{self.name} did not start: {line!r}, exit code {self.process.poll()}"

    def set(self, **sickness: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(sickness).encode() + b"\n")
        self.process.stdin.flush()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()

    def restart(self) -> None:
        self.end()
        self.process = self._start()
        self.wait_ready()

    def heal(self) -> None:
        if self.process.poll() is not None:
            self.restart()
        self.thaw()
        self.set()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass


class SickFleet:
    """*nodes* processes on one registry in *folder*. Started at once, waited for one after the other."""

    def __init__(self, folder: Path, nodes: int = 8, beds: int = 8, work_s: float = 0.01) -> None:
        self.folder, self.beds, self.work_s = folder, beds, work_s
        self.registry = f"embedded://{folder}/registry.db"
        self.nodes: list[SickNode] = []
        try:
            self.nodes.extend(SickNode(self, at) for at in range(nodes))
            for node in self.nodes:
                node.wait_ready()
        except BaseException:
            self.end()
            raise

    def heal(self) -> None:
        for node in self.nodes:
            node.heal()

    def end(self) -> None:
        for node in self.nodes:
            node.end()

    def executed(self, kind: str) -> Counter[int]:
        """How many times each number was executed, over all nodes."""
        lines = (line for node in self.nodes if node.ledger.exists() for line in node.ledger.read_text().splitlines())
        return Counter(int(number) for found, _, number in (line.partition(" ") for line in lines) if found == kind)


@dataclass
class Tally:
    """What became of the calls of one run, by priority: ``ok``, ``degraded`` (refused without being sent),
    ``failed``. ``stood_still_s``: the longest that the calling process got no processor time meanwhile."""

    ok: Counter[int] = field(default_factory=Counter)
    degraded: Counter[int] = field(default_factory=Counter)
    failed: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)
    stood_still_s: float = 0.0

    @property
    def calls(self) -> int:
        return self.ok.total() + self.degraded.total() + self.failed.total()

    @property
    def admitted(self) -> int:
        return self.ok.total() + self.failed.total()

    @property
    def success(self) -> float:
        """Of what was admitted."""
        return self.ok.total() / self.admitted if self.admitted else 1.0

    def degraded_part(self, priority: int) -> float:
        calls = self.ok[priority] + self.degraded[priority] + self.failed[priority]
        return self.degraded[priority] / calls if calls else 0.0

    def quantile_s(self, part: float) -> float:
        return sorted(self.latencies_s)[int(part * (len(self.latencies_s) - 1))] if self.latencies_s else 0.0


async def drive(
    call: Callable[[int, int], Awaitable[Any]],
    rate_per_s: float,
    seconds: float,
    *,
    first: int = 0,
    priorities: tuple[int, ...] = (1,),
    tally: Tally | None = None,
) -> Tally:
    """An open load: *call* (number, priority) is begun *rate_per_s* times a second, whatever became of the earlier
    ones. Priorities take turns. Returns when all calls have ended."""
    tally = tally or Tally()
    tasks: set[asyncio.Task[None]] = set()

    async def one(number: int, priority: int) -> None:
        begun_s = time.monotonic()
        try:
            await call(number, priority)
            tally.ok[priority] += 1
            tally.latencies_s.append(time.monotonic() - begun_s)
        except Degraded:
            tally.degraded[priority] += 1
        except RpcError as error:
            tally.failed[priority] += 1
            tally.errors[f"{type(error).__name__}: {error.message[:60]}"] += 1

    begun_s, sent = time.monotonic(), 0
    looked_s = begun_s
    while (elapsed_s := time.monotonic() - begun_s) < seconds:
        while sent < elapsed_s * rate_per_s:
            task = asyncio.create_task(one(first + sent, priorities[sent % len(priorities)]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            sent += 1
        await asyncio.sleep(0.002)
        now_s = time.monotonic()
        tally.stood_still_s = max(tally.stood_still_s, now_s - looked_s)
        looked_s = now_s
    if tasks:
        await asyncio.wait(tuple(tasks))
    return tally


_PROGRAM = """
import asyncio, logging, sys
from support.sickbay import serve
registry, name, ledger, beds, work_s = sys.argv[1:]
logging.disable(logging.ERROR)  # a traceback for each failure on command would be all one sees
asyncio.run(serve(registry, name, ledger, int(beds), float(work_s)))
"""
