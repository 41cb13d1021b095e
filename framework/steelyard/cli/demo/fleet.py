"""The fleet: provider processes that are started together, watched, and ended for certain.

A node lives as long as the pipe from here (see ``node``), so even a crash of this process leaves none behind. Each
node is its own process group: Ctrl-C in a terminal reaches this process alone, which then ends them in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from steelyard.errors import SteelyardError
from steelyard.testing import Quotas

from .node import Pulse, Ready, Setup
from .plan import ONE_THREAD, SICK_NODE, SICK_SHARE_OF_FAILURES, NodePlan

START_WITHIN_S = 60.0
END_WITHIN_S = 3.0
_MESSAGE = msgspec.json.Decoder(Ready | Pulse)


class FleetError(SteelyardError):
    """A node could not be started, or ended by itself; the message holds the end of its log."""


class NodeProcess:
    """One node. ``pulses`` grows while it runs; ``address`` and ``hardware`` are known once it serves."""

    def __init__(self, plan: NodePlan, log: Path) -> None:
        self.plan = plan
        self.pulses: list[Pulse] = []
        self.address = ""
        self.hardware: Mapping[str, Any] = {}
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise FleetError(f"{self.plan.name} has not been started")
        return self._process.pid

    async def start(self) -> None:
        """Returns when its imports are done."""
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "steelyard.cli.demo.node",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **ONE_THREAD},
            )
        await self._next()

    async def serve(self, setup: Setup) -> None:
        """Tells it who it is; returns when it is registered."""
        await self.order(msgspec.json.encode(setup))
        message = await self._next()
        if not isinstance(message, Ready):
            raise FleetError(f"{self.plan.name} reports before it serves")
        self.address, self.hardware = message.address, message.hardware

    async def follow(self) -> None:
        """Collects its pulses until it ends. Raises FleetError when that was not by order."""
        while True:
            message = await self._next()
            if isinstance(message, Pulse):
                self.pulses.append(message)

    async def order(self, line: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            raise FleetError(f"{self.plan.name} has not been started")
        self._process.stdin.write(line + b"\n")
        try:
            await self._process.stdin.drain()
        except ConnectionError as error:
            raise FleetError(self._ended()) from error

    def dismiss(self) -> None:
        """Closes the pipe: the node drains and ends."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def gone(self, within_s: float) -> None:
        """Returns when it has ended; after *within_s* it is killed, with its process group."""
        if self._process is None:
            return
        try:
            async with asyncio.timeout(within_s):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    async def _next(self) -> Ready | Pulse:
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise FleetError(self._ended())
        return _MESSAGE.decode(line)

    def _ended(self) -> str:
        text = self._log.read_text(encoding="utf-8", errors="replace").strip()
        tail = "\n  ".join(text.splitlines()[-8:]) or "(it wrote nothing)"
        return f"node {self.plan.name} ended unasked; the end of its log:\n  {tail}"


class Fleet:
    """``async with Fleet(plans, folder, quotas) as fleet`` starts the processes and ends them; ``serve`` in between
    makes providers of them."""

    def __init__(self, plans: Sequence[NodePlan], folder: Path, quotas: Quotas | None) -> None:
        self.nodes = [NodeProcess(plan, folder / f"{plan.name}.log") for plan in plans]
        self._quotas = quotas
        self._watching: asyncio.Future[list[None]] | None = None

    @property
    def has_quotas(self) -> bool:
        """Whether the kernel keeps the CPU nodes to their share."""
        return self._quotas is not None

    @property
    def how(self) -> str:
        """How the CPU nodes are kept to their share."""
        return self._quotas.how if self._quotas else "duty cycle kept by each node itself"

    async def serve(self, *, run: str, registry: str, model: Path, copies: int, seed: int) -> None:
        """Applies the quotas and registers every node. Raises FleetError."""
        for node in self.nodes:
            if self._quotas is not None and node.plan.quota is not None:
                self._quotas.apply(node.plan.name, node.pid, node.plan.quota)
        setups = [
            Setup(
                name=node.plan.name,
                run=run,
                registry=registry,
                model=str(model),
                copies=copies,
                failing_share=SICK_SHARE_OF_FAILURES,
                seed=seed + at,
                quota=node.plan.quota,
                keeps_quota=self._quotas is None,
                device_s=node.plan.device_s,
            )
            for at, node in enumerate(self.nodes)
        ]
        await _all_within(START_WITHIN_S, *(node.serve(setup) for node, setup in zip(self.nodes, setups, strict=True)))
        self._watching = asyncio.gather(*(node.follow() for node in self.nodes))

    async def set_sick(self, is_sick: bool, name: str = SICK_NODE) -> None:
        node = next(node for node in self.nodes if node.plan.name == name)
        await node.order(b"sick" if is_sick else b"well")

    def check(self) -> None:
        """Raises FleetError when a node has ended by itself."""
        if self._watching is not None and self._watching.done():
            self._watching.result()

    async def __aenter__(self) -> Self:
        try:
            await _all_within(START_WITHIN_S, *(node.start() for node in self.nodes))
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._quotas is not None:
            self._quotas.lift()
        for node in self.nodes:
            node.dismiss()
        await asyncio.shield(asyncio.gather(*(node.gone(END_WITHIN_S) for node in self.nodes)))


async def _all_within(limit_s: float, *work: Any) -> None:
    """Runs *work* together; the first failure cancels the rest and is raised as it is."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*tasks)
    except TimeoutError:
        raise FleetError(f"the nodes were not up within {limit_s:g} s") from None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
