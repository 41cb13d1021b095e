"""A service's life, hook by hook; the waits are shortened, the order is not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from steelyard.errors import ConfigError, Unavailable
from steelyard.provider import life as life_module
from steelyard.provider.life import Announcement, Health, Hooks, Life
from steelyard_registry import Node, NodeState, Registration


class OutOfMemoryError(RuntimeError):
    pass


@pytest.fixture(autouse=True)
def short_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_module, "SHORTEST_STAY_S", 0.02)
    monkeypatch.setattr(life_module, "RETRY_AFTER_S", 0.01)


class Told(list[NodeState]):
    def __call__(self, state: NodeState) -> None:
        self.append(state)

    @property
    def words(self) -> str:
        return " ".join(self)


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not fact():
            await asyncio.sleep(0.002)


def living(told: Told, **hooks: Any) -> Life:
    return Life("t.Service", Hooks(**hooks), told)


async def test_without_hooks_it_is_ready_from_the_start_and_nothing_is_told() -> None:
    told = Told()
    life = living(told)
    assert (life.state, life.first_state, life.is_open) == (NodeState.READY, NodeState.READY, True)
    await life.begin()
    assert told.words == ""
    await life.close()


async def test_it_loads_then_warms_then_is_ready() -> None:
    told, seen = Told(), []

    def load() -> None:
        seen.append(("load", life.state, threading.current_thread() is threading.main_thread()))

    async def warm_up() -> None:
        seen.append(("warm", life.state, life.is_open))

    life = living(told, load=load, warm_up=warm_up)
    assert (life.state, life.first_state, life.is_open) == (NodeState.STARTING, NodeState.LOADING, False)
    error = life.refusal()
    assert isinstance(error, Unavailable)
    assert (error.may_have_run, error.message) == (False, "t.Service is starting here")
    await life.begin()
    assert seen == [("load", NodeState.LOADING, False), ("warm", NodeState.WARMING, False)]
    assert (told.words, life.is_open) == ("loading warming ready", True)
    await life.close()


async def test_a_load_or_warm_up_that_raises_is_told_to_whoever_exports() -> None:
    async def broken() -> None:
        raise OSError("no such model")

    for hooks in ({"load": broken}, {"warm_up": broken}):
        life = living(Told(), **hooks)
        with pytest.raises(OSError, match="no such model"):
            await life.begin()
        assert not life.is_open
        await life.close()


def stops() -> Any:
    return next(iter(()))


def exits() -> Any:
    raise SystemExit(3)


async def exits_on_the_loop() -> Any:
    exits()


async def is_cancelled() -> Any:
    raise asyncio.CancelledError


UNUSUAL = [stops, exits, exits_on_the_loop, is_cancelled]


@pytest.mark.parametrize("hook", UNUSUAL)
async def test_a_hook_may_raise_what_a_future_does_not_carry_or_a_loop_ends_for(hook: Callable[[], Any]) -> None:
    for hooks in ({"load": hook}, {"warm_up": hook}):
        life = living(Told(), **hooks)
        async with asyncio.timeout(2):
            with pytest.raises(RuntimeError, match=r"it raised (StopIteration|SystemExit|CancelledError)"):
                await life.begin()
        await life.close()


@pytest.mark.parametrize("hook", UNUSUAL)
async def test_such_a_check_is_failing_and_is_asked_again(hook: Callable[[], Any]) -> None:
    answers = [hook]

    async def check() -> Any:
        answer = answers.pop()() if answers else True
        return await answer if asyncio.iscoroutine(answer) else answer

    def blocking() -> Any:
        return answers.pop()() if answers else True

    life = living(Told(), health=Health(check if asyncio.iscoroutinefunction(hook) else blocking, every_s=0.01))
    await life.begin()
    assert life.state is NodeState.FAILED
    assert "its health check raised RuntimeError: it raised" in life.reason
    await until(lambda: life.state is NodeState.READY)
    await life.close()


async def test_who_waits_for_a_warm_up_that_never_ends_hears_of_the_close() -> None:
    gate = threading.Event()

    async def for_ever() -> None:
        await asyncio.Event().wait()

    for warm_up in (gate.wait, for_ever):
        told = Told()
        life = living(told, warm_up=warm_up)
        beginning = asyncio.create_task(life.begin())
        await until(lambda told=told: told.words == "warming")  # type: ignore[misc]
        async with asyncio.timeout(2):
            await life.close()
            with pytest.raises(ConfigError, match=r"t\.Service was closed while it was warming"):
                await beginning
        assert told.words == "warming", "a service that has left must not be announced as ready"
    gate.set()


async def test_one_who_gives_up_waiting_ends_the_start() -> None:
    ended = []

    async def for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    life = living(Told(), load=for_ever)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(life.begin(), 0.02)
    assert ended == [True]
    await life.close()


async def test_a_check_that_hangs_does_not_outlive_its_service() -> None:
    gate = threading.Event()
    life = living(Told(), health=Health(gate.wait, every_s=10, timeout_s=0.02))
    await life.begin()
    await life.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gate.set()


async def test_out_of_memory_passes_by_itself() -> None:
    told = Told()
    life = living(told)
    await life.begin()
    life.note(ValueError("a caller's mistake"))
    assert life.is_open
    life.note(OutOfMemoryError())
    assert not life.is_open
    assert life.refusal().message == "t.Service is failed here: the device is out of memory (OutOfMemoryError)"
    await until(lambda: life.is_open)
    assert told.words == "failed ready"
    await life.close()


async def test_the_stay_doubles_while_it_fails_again_and_again() -> None:
    life = living(Told())
    await life.begin()
    stays = []
    for _ in range(3):
        began = asyncio.get_running_loop().time()
        life.note(OutOfMemoryError())
        await until(lambda: life.is_open)
        stays.append(asyncio.get_running_loop().time() - began)
    assert stays[1] > 0.04
    assert stays[2] > 0.08
    await life.close()


async def test_a_fatal_error_stays_when_nothing_can_tell_that_it_is_over() -> None:
    life = living(Told())
    await life.begin()
    life.note(RuntimeError("CUDA error: an illegal memory access was encountered"))
    await asyncio.sleep(0.15)
    assert life.state is NodeState.FAILED
    await life.close()


async def test_a_warm_up_that_passes_brings_it_back() -> None:
    is_broken, runs = [True], []

    async def warm_up() -> None:
        runs.append(life.state)
        if is_broken[0] and len(runs) > 1:
            raise RuntimeError("still no device")

    life = living(Told(), warm_up=warm_up)
    await life.begin()
    life.note(RuntimeError("CUDA error: device lost"))
    await until(lambda: len(runs) > 1)
    assert life.state is NodeState.FAILED
    await until(lambda: "the warm-up raised RuntimeError: still no device" in life.refusal().message)
    is_broken[0] = False
    await until(lambda: life.is_open)
    await life.close()


async def test_a_declared_check_fails_it_and_brings_it_back() -> None:
    answers: list[Any] = [True]

    def check() -> Any:
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    told = Told()
    life = living(told, health=Health(check, every_s=0.01))
    await life.begin()
    assert life.is_open
    for bad, words in (
        (False, "its health check says False"),
        (ConnectionError("no driver"), "its health check raised ConnectionError: no driver"),
    ):
        answers[0] = bad
        await until(lambda: not life.is_open)
        assert words in life.refusal().message
        answers[0] = None  # nothing to complain of
        await until(lambda: life.is_open)
    assert told.words == "warming ready failed ready failed ready".removeprefix("warming ")
    await life.close()


async def test_a_check_that_fails_from_the_start_makes_it_failed_and_not_the_export() -> None:
    life = living(Told(), health=Health(lambda: False, every_s=60))
    await life.begin()
    assert life.state is NodeState.FAILED
    await life.close()


async def test_a_check_that_hangs_is_failing_and_is_not_asked_again_until_it_answers() -> None:
    gate, asked = threading.Event(), []

    def check() -> bool:
        asked.append(1)
        return gate.wait(5)

    life = living(Told(), health=Health(check, every_s=0.01, timeout_s=0.03))
    await life.begin()
    assert "has not answered within 0.03 s" in life.refusal().message
    await asyncio.sleep(0.1)
    assert len(asked) == 1
    gate.set()
    await until(lambda: life.is_open)
    await life.close()


async def test_a_draining_service_finishes_what_comes_and_a_failed_one_does_not() -> None:
    life = living(Told())
    await life.begin()
    life.drain()
    assert (life.state, life.is_open) == (NodeState.DRAINING, True)
    failed = living(Told())
    await failed.begin()
    failed.note(OutOfMemoryError())
    failed.drain()
    assert not failed.is_open
    await life.close()
    await failed.close()


@pytest.mark.parametrize("settings", [{"check": 1}, {"check": print, "every_s": 0}, {"check": print, "timeout_s": -1}])
def test_a_check_is_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Health"):
        Health(**settings)


class SlowRegistration(Registration):
    """Takes 10 ms for an update, and fails as often as told."""

    def __init__(self, failures: int = 0) -> None:
        self._node = Node(interface="t.Service", host="h", port=1, state=NodeState.LOADING)
        self.failures = failures
        self.updates: list[NodeState] = []

    @property
    def node(self) -> Node:
        return self._node

    async def update(self, node: Node) -> None:
        await asyncio.sleep(0.01)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("away")
        self._node = node
        self.updates.append(node.state)

    async def withdraw(self) -> None:
        pass


async def test_of_many_changes_the_registry_hears_the_newest() -> None:
    registration = SlowRegistration()
    announcement = Announcement(registration)
    for _ in range(50):
        for state in (NodeState.FAILED, NodeState.READY):
            announcement.tell(state)
    await announcement.told()
    assert registration.updates == [NodeState.READY]
    announcement.tell(NodeState.READY)
    await announcement.told()
    assert len(registration.updates) == 1


async def test_a_registry_that_is_away_hears_of_it_later() -> None:
    registration = SlowRegistration(failures=3)
    announcement = Announcement(registration)
    announcement.tell(NodeState.READY)
    await announcement.told()
    assert registration.updates == [NodeState.READY]
    await announcement.close()
