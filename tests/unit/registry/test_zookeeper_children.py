"""One change costs one event: recursive watches, what they cannot tell, and servers that have none."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import UnimplementedError
from kazoo.protocol.states import EventType
from support.zookeeper import shared_zookeeper, zookeeper_root

from steelyard_registry.locator import Locator
from steelyard_registry.zookeeper.children import Children
from steelyard_registry.zookeeper.place import Place
from steelyard_registry.zookeeper.session import Session

pytestmark = pytest.mark.zookeeper
LIVENESS_S = 30.0


@pytest.fixture
def operator() -> Iterator[KazooClient]:
    with shared_zookeeper().client() as client:
        yield client


@pytest.fixture
def folder(operator: KazooClient) -> Iterator[str]:
    with zookeeper_root() as url:
        path = "/" + url.rpartition("/")[2] + "/providers"
        operator.ensure_path(path)
        yield path


class Counting(Session):
    """Counts what it is asked, and may be an older server's."""

    def __init__(self, *, is_old: bool = False) -> None:
        super().__init__(Place.of(Locator.parse(shared_zookeeper().url())).door)
        self.asked: list[str] = []
        self.is_old = is_old

    async def call(self, verb: str, *arguments: Any, **options: Any) -> Any:
        self.asked.append(verb)
        if verb == "follow" and self.is_old:
            raise UnimplementedError
        return await super().call(verb, *arguments, **options)


class Kept:
    """The names, as whoever uses Children keeps them."""

    def __init__(self, session: Session, folder: str) -> None:
        self.names: set[str] = set()
        self.woken = asyncio.Event()
        self.children = Children(session, folder, self.woken.set)
        if session.is_old:  # type: ignore[attr-defined]
            session.follow(folder, lambda _: self.woken.set())

    async def catch_up(self) -> None:
        self.woken.clear()
        come, gone = await self.children.catch_up(self.names)
        self.names = (self.names - set(gone)) | set(come)

    async def until(self, names: set[str]) -> None:
        async with asyncio.timeout(LIVENESS_S):
            while self.names != names or not self.children.is_settled:
                try:
                    await asyncio.wait_for(self.woken.wait(), 0.1)
                except TimeoutError:
                    pass
                await self.catch_up()


async def opened(session: Counting) -> AsyncIterator[Counting]:
    session.start()
    try:
        await session.answered(LIVENESS_S)
        yield session
    finally:
        await session.stop()


@pytest.fixture
async def session() -> AsyncIterator[Counting]:
    async for each in opened(Counting()):
        yield each


async def test_one_change_does_not_read_the_list(session: Counting, folder: str, operator: KazooClient) -> None:
    names = {f"n{number}" for number in range(300)}
    for name in names:
        operator.create(f"{folder}/{name}")
    kept = Kept(session, folder)
    await kept.until(names)
    session.asked.clear()
    operator.create(f"{folder}/new")
    await kept.until(names | {"new"})
    operator.delete(f"{folder}/n7")
    await kept.until(names - {"n7"} | {"new"})
    assert "get_children" not in session.asked
    kept.children.close()


@pytest.mark.parametrize("is_old", [False, True])
async def test_the_names_are_right_after_any_changes(folder: str, operator: KazooClient, is_old: bool) -> None:
    """Also with many at once, the folder itself deleted and made again, and a name that comes back at once."""
    dice = random.Random(5)
    async for session in opened(Counting(is_old=is_old)):
        kept = Kept(session, folder)
        there: set[str] = set()
        for burst in (1, 3, 200, 2, 80, 1):
            for _ in range(burst):
                name = f"n{dice.randrange(150)}"
                if name in there:
                    operator.delete(f"{folder}/{name}")
                    if dice.random() < 0.3:
                        operator.create(f"{folder}/{name}")
                        continue
                    there.discard(name)
                else:
                    operator.create(f"{folder}/{name}")
                    there.add(name)
            await kept.until(there)
        operator.delete(folder, recursive=True)
        await kept.until(set())
        operator.create(f"{folder}/again", makepath=True)
        await kept.until({"again"})
        kept.children.close()


async def test_an_event_that_never_came_is_found_by_the_counters(
    session: Counting, folder: str, operator: KazooClient
) -> None:
    kept = Kept(session, folder)
    operator.create(f"{folder}/a")
    await kept.until({"a"})
    await asyncio.sleep(0.3)
    await kept.catch_up()
    hint, kept.children._hint = kept.children._hint, lambda *_: None  # type: ignore[method-assign]
    session.unfollow_children(folder, hint)
    operator.delete(f"{folder}/a")
    operator.create(f"{folder}/b")  # as many as before
    await asyncio.sleep(0.3)
    await kept.until({"b"})
    kept.children.close()


async def test_the_halves_of_an_update_are_shown_together(
    session: Counting, folder: str, operator: KazooClient
) -> None:
    """An entry that changes is one that goes and one that comes. Its events come from another thread than the answers,
    and the second may come when the first has been looked at."""
    kept = Kept(session, folder)
    operator.create(f"{folder}/n0")
    await kept.until({"n0"})
    hint, loop = kept.children._hint, asyncio.get_running_loop()
    session.follow_children(
        folder, lambda kind, name: loop.call_later(0.005 if kind == EventType.CREATED else 0.0, hint, kind, name)
    )
    session.unfollow_children(folder, hint)
    for number in range(20):
        update = operator.transaction()
        update.delete(f"{folder}/n{number}")
        update.create(f"{folder}/n{number + 1}")
        update.commit()
        async with asyncio.timeout(LIVENESS_S):
            while kept.names != {f"n{number + 1}"}:
                assert kept.names == {f"n{number}"}
                await kept.woken.wait()
                await kept.catch_up()
    assert session.asked.count("get_children") <= 1  # the first list
    kept.children.close()


async def test_a_reconnect_without_a_change_reads_nothing(
    session: Counting, folder: str, operator: KazooClient
) -> None:
    for number in range(20):
        operator.create(f"{folder}/n{number}")
    kept = Kept(session, folder)
    names = {f"n{number}" for number in range(20)}
    await kept.until(names)
    session.asked.clear()
    kept.children.went_away()
    await kept.catch_up()
    assert "get_children" not in session.asked
    kept.children.went_away()
    operator.delete(f"{folder}/n3")
    await kept.until(names - {"n3"})
    kept.children.close()


async def test_an_enormous_name_is_not_asked_for(session: Counting, folder: str, operator: KazooClient) -> None:
    """A question as long as ZooKeeper's limit would cost the connection."""
    kept = Kept(session, folder)
    await kept.until(set())
    name = "x" * 1_000_000
    operator.create(f"{folder}/{name}")
    await kept.until({name})
    assert session.is_connected
    kept.children.close()
