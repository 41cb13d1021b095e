"""What a run does before there are processes, and how it ends when it is told to."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Callable
from typing import Any, Self

import pytest

from steelyard.cli.demo import run
from steelyard.cli.demo.plan import DemoOptions
from steelyard.cli.demo.run import DemoFailed, run_demo


class Nobody:
    """A screen that nobody looks at."""

    def step(self, text: str) -> None: ...
    def training(self, done: float) -> None: ...
    def look(self, glimpse: object) -> None: ...


class SlowFleet:
    """Its processes are up when the training is far from done."""

    started = 0

    def __init__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Self:
        type(self).started += 1
        return self

    async def __aexit__(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    SlowFleet.started = 0
    monkeypatch.setattr(run, "Fleet", SlowFleet)


@pytest.mark.parametrize(
    ("missing", "is_drawn", "named"),
    [
        ({"sklearn"}, True, ["scikit-learn"]),
        ({"sklearn"}, False, ["scikit-learn"]),
        ({"matplotlib"}, True, ["matplotlib", "--no-plot"]),
        ({"sklearn", "matplotlib"}, True, ["scikit-learn", "matplotlib"]),
    ],
)
async def test_what_is_not_installed_is_said_before_any_process_starts(
    missing: set[str], is_drawn: bool, named: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in missing else found(name))
    with pytest.raises(DemoFailed) as caught:
        await run_demo(DemoOptions(plot=tmp_path / "x.png" if is_drawn else None), Nobody())
    for word in (*named, "pip install 'steelyard[examples]'", "pip install '.[examples]'"):
        assert word in str(caught.value)
    assert SlowFleet.started == 0


def test_an_interrupt_does_not_wait_for_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    told = 0

    def train(on_progress: Callable[[float], None], seed: int) -> None:
        nonlocal told
        for _ in range(12_000):  # two minutes
            on_progress(0.5)
            told += 1
            time.sleep(0.01)

    monkeypatch.setattr(run, "train", train)

    async def interrupted() -> None:
        running = asyncio.create_task(run_demo(DemoOptions(), Nobody()))
        while not told:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    began_s = time.monotonic()
    asyncio.run(interrupted())  # which waits for its threads
    assert time.monotonic() - began_s < 60
    assert told < 6000
