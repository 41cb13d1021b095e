"""One provider process of the demonstration: ``python -m steelyard.cli.demo.node``, started by ``Fleet``.

It talks with its parent in lines: first it says that everything is loaded, then it is told who it is (only then is
its CPU quota in force, so that eight starts do not take a minute), says that it serves, and from then on reports what
it has used and done, several times a second. Those reports are the demonstration's own yardstick, beside and
independent of the load reports that the balancer goes by. Its parent may tell it to be ``sick`` or ``well``; when the
pipe closes, for whatever reason, the node ends: nobody has to find and kill it.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from steelyard.provider import Provider
from steelyard.testing import DutyCycle, EmulatedDevice

from .contract import Digits
from .model import Classifier

REPORT_EVERY_S = 0.2


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent tells a node. ``quota`` is in cores; ``keeps_quota`` says that the node has to keep it by
    itself (a duty cycle); ``copies`` is how many the model averages over."""

    name: str
    run: str
    registry: str
    model: str
    copies: int
    failing_share: float
    seed: int
    quota: float | None = None
    keeps_quota: bool = False
    device_s: float | None = None


class Pulse(msgspec.Struct, frozen=True, kw_only=True, tag="pulse"):
    """What a node has used and done since it started. ``at_s``: seconds of the machine's monotonic clock; ``cpu_s``:
    CPU time; ``device_s``: its device's busy time; ``calls`` counts handlers that ran, ``failed`` those that raised."""

    at_s: float
    cpu_s: float
    device_s: float
    calls: int
    failed: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """``address`` is "" as long as it is loaded and no more. ``hardware`` is what the node has registered."""

    address: str = ""
    hardware: Mapping[str, Any] = {}


class NodeWork:
    """What both kinds of node share: the model, the counts, and the sickness."""

    def __init__(self, setup: Setup, copies: int) -> None:
        self._model = Classifier.load(Path(setup.model)).with_copies(copies)
        self._dice = random.Random(setup.seed)
        self._failing_share = setup.failing_share
        self.is_sick = False
        self.calls = 0
        self.failed = 0

    def answer(self, pixels: np.ndarray) -> int:
        """The digit; a sick node raises instead, and quickly: failing fast must not look like being idle."""
        self.calls += 1
        if self.is_sick and self._dice.random() < self._failing_share:
            self.failed += 1
            raise RuntimeError("this node is sick (by order of the demonstration)")
        return self._model.classify(pixels)


class CpuNode(NodeWork):
    """Computes on its share of a CPU. A plain blocking method: it runs in the provider's handler thread."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup, setup.copies)
        self.duty = DutyCycle(setup.quota) if setup.keeps_quota and setup.quota else None

    def classify(self, user_id: int, pixels: np.ndarray) -> int:
        try:
            return self.answer(pixels)
        finally:
            if self.duty is not None:
                self.duty.rest()


class GpuNode(NodeWork):
    """Waits for its device instead. The answer is still the model's, without the averaging."""

    def __init__(self, setup: Setup, device_s: float) -> None:
        super().__init__(setup, copies=1)
        self.device = EmulatedDevice(device_s)

    async def classify(self, user_id: int, pixels: np.ndarray) -> int:
        digit = self.answer(pixels)
        await self.device.run()
        return digit


def say(message: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


async def serve() -> None:
    orders = await _lines_of_stdin()
    await _load_what_serving_needs()
    say(Ready())
    first = await orders.readline()
    if not first:
        return
    setup = msgspec.json.decode(first, type=Setup)
    node: CpuNode | GpuNode = CpuNode(setup) if setup.device_s is None else GpuNode(setup, setup.device_s)
    async with _provider(setup, node) as provider:
        registered = await provider.export(node, contract=Digits)
        say(Ready(address=registered.address, hardware=msgspec.to_builtins(registered.hardware)))
        reporting = asyncio.create_task(_report(node))
        try:
            await _obey(orders, node)
        finally:
            reporting.cancel()


def _provider(setup: Setup, node: CpuNode | GpuNode) -> Provider:
    hardware: dict[str, str] = {}
    sources: dict[str, Callable[[], float]] = {}
    if isinstance(node, GpuNode):
        hardware = {"kind": "gpu", "accelerators": "emulated"}
        sources["gpu"] = node.device.busy_share
    elif node.duty is not None:
        hardware["quota"] = str(setup.quota)
        sources["duty"] = node.duty.busy_share
    return Provider(
        setup.registry,
        host="127.0.0.1",
        application="steelyard-demo",
        tags={"name": setup.name, "run": setup.run},
        hardware=hardware,
        threads=1,
        utilization=sources,
        drain_s=1.0,
    )


async def _obey(orders: asyncio.StreamReader, node: NodeWork) -> None:
    """Until the pipe closes."""
    while line := await orders.readline():
        node.is_sick = line.strip() == b"sick"


async def _report(node: CpuNode | GpuNode) -> None:
    while True:
        device_s = node.device.busy_s if isinstance(node, GpuNode) else 0.0
        say(
            Pulse(
                at_s=time.monotonic(),
                cpu_s=time.process_time(),
                device_s=device_s,
                calls=node.calls,
                failed=node.failed,
            )
        )
        await asyncio.sleep(REPORT_EVERY_S)


async def _lines_of_stdin() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def _load_what_serving_needs() -> None:
    """What is loaded by need is loaded now, while the CPU quota is not in force: it would take most of a second."""
    Classifier((), ()).with_copies(1)
    async with Provider("memory://", host="127.0.0.1", drain_s=0.0):
        pass


if __name__ == "__main__":
    asyncio.run(serve())
    sys.stdout.flush()
    os._exit(0)  # everything is closed; the interpreter's own end would take longer than that
