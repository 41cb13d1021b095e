"""``steelyard serve``: a provider as a process.

It ends with exit code 0 whenever a stop was asked for, also while it still waits for its registry: a supervisor that
stops a process must not read that as a crash. A second signal while it drains ends it at once, in the usual way.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from steelyard.provider import Provider, Workers, WorkersFailed, worker_number
from steelyard.service import implemented_spec
from steelyard_registry import Node

from . import words
from .failure import Failure
from .output import write_document
from .target import look_up, make

log = logging.getLogger(__name__)

_STOP = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What ``serve`` was asked for. ``settings`` are Provider's keywords; ``workers``: processes."""

    targets: Sequence[str]
    settings: Mapping[str, Any]
    workers: int = 1


def run(serving: Serving, *, is_json: bool) -> None:
    """Serves until SIGTERM or SIGINT, and drains. *is_json*: prints ``start_document`` once all is registered. Raises
    Failure for workers that do not start."""
    number = worker_number()
    if number is None and serving.workers > 1:
        _keep(serving, is_json)
        return
    if number is not None:
        port = serving.settings["port"]
        tags = {**serving.settings["tags"], "worker": str(number)}
        serving = replace(serving, settings={**serving.settings, "port": port and port + number, "tags": tags})
        is_json = True
    # Imports come first and outside the loop: they may take long, and a signal then ends the process as usual.
    values = [(look_up(target), target) for target in serving.targets]
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(values, serving, is_json))


def _keep(serving: Serving, is_json: bool) -> None:
    """The parent of workers, which are this very command again."""
    for target in serving.targets:
        look_up(target)  # what cannot be found is refused once, in the parent's own words

    def ready(lines: Mapping[int, str]) -> None:
        if is_json:
            workers = [json.loads(line) for line in lines.values()]
            write_document({"pid": os.getpid(), "registry": workers[0]["registry"], "workers": workers})

    async def keep() -> None:
        command = [sys.executable, "-m", "steelyard", *sys.argv[1:]]
        await Workers(command, serving.workers, drain_s=serving.settings["drain_s"], on_ready=ready).run()

    try:
        asyncio.run(keep())
    except WorkersFailed as error:
        raise Failure(str(error)) from None


async def _serve(values: Sequence[tuple[Any, str]], serving: Serving, is_json: bool) -> None:
    implementations = [await make(value, target) for value, target in values]
    for each in implementations:
        implemented_spec(each)  # what is no service is refused at once, and not after a wait for the registry
    provider = Provider(**serving.settings)
    stop = _StopAtStart()
    try:
        async with provider:
            nodes = [await provider.export(each) for each in implementations]
            if is_json:
                write_document(start_document(provider, nodes))
            await provider.serve()  # its signal handlers take the place of ours, with no moment in between
            log.info("stopping: no new calls; %d in flight", provider.in_flight)
    except asyncio.CancelledError:
        if not stop.is_asked:
            raise
    finally:
        stop.close()


class _StopAtStart:
    """Signals before ``Provider.serve`` takes them over: they cancel the start wherever it stands."""

    def __init__(self) -> None:
        self.is_asked = False
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        for number in _STOP:
            self._loop.add_signal_handler(number, self._ask)

    def close(self) -> None:
        """Gives the signals back."""
        for number in _STOP:
            self._loop.remove_signal_handler(number)

    def _ask(self) -> None:
        self.is_asked = True
        if self._task is not None:
            self._task.cancel()


def start_document(provider: Provider, nodes: Sequence[Node]) -> dict[str, Any]:
    """What ``serve --json`` prints once, when everything is registered."""
    return {
        "pid": os.getpid(),
        "address": provider.address,
        "registry": provider.registry.url,
        "services": [
            {
                "service": node.service_key,
                "methods": list(node.methods),
                "weight": node.weight,
                "zone": node.zone,
                "tags": words.shown(node.tags),
            }
            for node in nodes
        ],
    }


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
