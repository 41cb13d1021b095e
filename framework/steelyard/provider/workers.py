"""Several provider processes on one host, and the parent that keeps them.

One Python process uses one core, so a host with many wants many providers: each with a port of its own and an entry of
its own in the registry, all of the same hardware. A balancer then steers each by itself, and one that is stuck or dies
takes its part of the calls and no more. (One shared port, with SO_REUSEPORT, would let the kernel deal connections out
once, when they are made; a busy worker keeps those that it got.)

The parent serves nothing. It starts its workers as new programs and not as forks (gRPC's threads do not survive a
fork), starts those again that end, and passes a stop on. It must not die alone: workers hold the reading end of a pipe
that only it can write to, and drain when that closes, in whatever way the parent ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)

WORKER = "STEELYARD_WORKER"
"""The worker's number, from 0 on, in its environment."""
PARENT = "STEELYARD_PARENT_PIPE"
"""The file descriptor that closes with the parent."""

MOST_WORKERS = 1024
# A worker that ends at once is started 0.5 s later, then 1 s, up to half a minute, each half to one and a half times as
# long, so that workers that fall together do not come together. One that has lived a minute starts from anew.
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
GOOD_LIFE_S = 60.0
# Beyond drain_s: for the registry to hear of it, and the interpreter to end.
GRACE_S = 5.0
_LONGEST_LINE = 1 << 20


def worker_number() -> int | None:
    """Which worker this process is; None: it is none."""
    number = os.environ.get(WORKER, "")
    return int(number) if number.isdigit() else None


def parent_pipe() -> int | None:
    """The descriptor that becomes readable when the parent has ended; None where this process is no worker."""
    text = os.environ.get(PARENT, "")
    if not text.isdigit():
        return None
    try:  # the variable is inherited by whatever a worker starts, and the descriptor is not
        return int(text) if stat.S_ISFIFO(os.fstat(int(text)).st_mode) else None
    except OSError:
        return None


@dataclass
class _Worker:
    number: int
    process: asyncio.subprocess.Process | None = None


class WorkersFailed(Exception):
    """A worker ended before it ever was ready, and so would the next one."""


class Workers:
    """``await Workers(command, 4).run()``: *count* processes of *command*, until SIGTERM or SIGINT.

    A worker says that it is ready by a line on its standard output, which ``on_ready`` gets; it finds its number in
    $STEELYARD_WORKER, drains at SIGTERM, and ends when its parent has (``Provider.serve`` sees to both). A worker that
    ends before the first of its kind was ready is a mistake that will not pass: all are stopped, and ``run`` raises
    WorkersFailed. ``dice`` gives the jitter of restarts, in [0, 1).
    """

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        *,
        drain_s: float = 10.0,
        environment: Mapping[str, str] | None = None,
        on_ready: Callable[[Mapping[int, str]], None] = lambda lines: None,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._command = list(command)
        self._workers = [_Worker(number) for number in range(count)]
        self._drain_s = drain_s
        self._environment = dict(os.environ if environment is None else environment)
        self._on_ready = on_ready
        self._dice = dice
        self._lines: dict[int, str] = {}
        self._stopping = asyncio.Event()
        self._signals = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the workers that run now, by number."""
        return tuple(each.process.pid for each in self._workers if each.process is not None)

    def stop(self) -> None:
        """Lets ``run`` drain the workers and return; at the second time they are killed. From signal handlers too."""
        self._signals += 1
        self._stopping.set()
        if self._signals > 1:
            self._send(signal.SIGKILL)

    async def run(self) -> None:
        """Starts and keeps them. Raises WorkersFailed."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        reading, writing = os.pipe()
        given_up: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                keeping = [group.create_task(self._keep(worker, reading)) for worker in self._workers]
                group.create_task(self._end_when_asked(keeping))
        except* WorkersFailed as failed:
            # Not raised from here: early releases of Python 3.11 would put it into a group again.
            given_up = failed.exceptions[0]
        finally:
            os.close(writing)
            os.close(reading)
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        if given_up is not None:
            raise given_up

    async def _end_when_asked(self, keeping: Sequence[asyncio.Task[None]]) -> None:
        await self._stopping.wait()
        log.info("stopping %d workers", len(self.pids))
        self._send(signal.SIGTERM)
        _, late = await asyncio.wait(keeping, timeout=self._drain_s + GRACE_S)
        if late:
            log.warning("%d workers have not ended after %g s and are killed", len(late), self._drain_s + GRACE_S)
            self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.process.returncode is None:
                worker.process.send_signal(number)

    async def _keep(self, worker: _Worker, pipe: int) -> None:
        """One worker's place: filled again whenever it is empty, until all are stopped."""
        wait_s = FIRST_WAIT_S
        while not self._stopping.is_set():
            began_s = asyncio.get_running_loop().time()
            code = await self._live(worker, pipe)
            if self._stopping.is_set():
                return
            if worker.number not in self._lines:
                self._stopping.set()
                raise WorkersFailed(f"worker {worker.number} ended with {_words(code)} before it was ready")
            if asyncio.get_running_loop().time() - began_s >= GOOD_LIFE_S:
                wait_s = FIRST_WAIT_S
            delay_s = wait_s * (0.5 + self._dice())
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
            log.error("worker %d ended with %s; the next one starts in %.1f s", worker.number, _words(code), delay_s)
            try:
                async with asyncio.timeout(delay_s):
                    await self._stopping.wait()
            except TimeoutError:
                pass

    async def _live(self, worker: _Worker, pipe: int) -> int:
        """One process of a worker, from its start to its end; its exit code."""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(pipe,),
            env={**self._environment, WORKER: str(worker.number), PARENT: str(pipe)},
            start_new_session=True,  # a terminal's Ctrl-C is for the parent, which passes it on
            limit=_LONGEST_LINE,
        )
        worker.process = process
        if self._stopping.is_set():  # while it was being started
            process.send_signal(signal.SIGTERM)
        try:
            await self._hear(worker, process)
            return await process.wait()
        finally:
            worker.process = None
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _hear(self, worker: _Worker, process: asyncio.subprocess.Process) -> None:
        """Its first line says that it is ready; what it says after that goes where this process's output goes."""
        assert process.stdout is not None
        is_first = True
        try:
            while line := (await process.stdout.readline()).decode("utf-8", "replace"):
                if not is_first:
                    sys.stdout.write(line)
                    sys.stdout.flush()
                    continue
                is_first = False
                log.info("worker %d is ready (process %d)", worker.number, process.pid)
                was_whole = len(self._lines) == len(self._workers)
                self._lines[worker.number] = line
                if not was_whole and len(self._lines) == len(self._workers):
                    self._on_ready(dict(sorted(self._lines.items())))
        except ValueError:  # a line without an end: what it prints is not worth its life
            while await process.stdout.read(_LONGEST_LINE):
                pass


def _words(code: int) -> str:
    return f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
