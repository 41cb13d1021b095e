"""The directory between its two witnesses: what the registry lists, and which connections stand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.cluster import ChannelPool, Directory
from steelyard.model import Invocation, Reply
from steelyard.wire import Channel, ChannelState, Listener, WireLimits
from steelyard_registry import Feed, Node, Registry, ServiceKey, Snapshot

KEY = ServiceKey(interface="test.S")
QUICK = WireLimits(heartbeat_interval_s=0.5, connect_timeout_s=0.5, backoff_base_s=0.02, backoff_max_s=0.1)
FOR_EVER = WireLimits(backoff_base_s=60.0, backoff_max_s=60.0)


async def answer(invocation: Invocation) -> Reply:
    return Reply(body=invocation.body)


def at(listener: Listener, **facts: object) -> Node:
    host, _, port = listener.address.rpartition(":")
    return Node(interface="test.S", host=host, port=int(port), **facts)  # type: ignore[arg-type]


class Told(Registry):
    """A registry that says what the test says."""

    def __init__(self) -> None:
        self.feed = Feed(KEY)

    @property
    def url(self) -> str:
        return "told://"

    async def open(self, wait_s: float | None = 10.0, *, from_cache: bool = False) -> None: ...
    async def register(self, node: Node) -> None:  # type: ignore[override]
        raise NotImplementedError

    async def subscribe(self, service: ServiceKey) -> Feed:
        return self.feed

    async def services(self) -> tuple[str, ...]:
        return ()

    async def close(self) -> None: ...


class Watched:
    """A running directory."""

    def __init__(self, limits: WireLimits = QUICK) -> None:
        self.registry = Told()
        self.pool = ChannelPool(limits)
        self.seen: list[Sequence[Node]] = []
        self.directory = Directory(self.registry, KEY, self.pool, self.seen.append)
        self._task = asyncio.ensure_future(self.directory.run())

    async def until(self, truth: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not truth():
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.directory.close()
        await self.pool.close()


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    watched = Watched()
    yield watched
    await watched.close()


@pytest.fixture
async def listeners() -> AsyncIterator[list[Listener]]:
    listeners = [Listener(answer) for _ in range(2)]
    for listener in listeners:
        await listener.start()
    yield listeners
    for listener in listeners:
        await listener.close()


async def test_a_node_whose_connection_ends_takes_no_calls_until_it_is_back(
    watched: Watched, listeners: list[Listener]
) -> None:
    stays, goes = listeners
    watched.registry.feed.publish((at(stays), at(goes)))
    directory = watched.directory
    await watched.until(lambda: not directory.out and directory.takes_calls(goes.address))
    port = goes.port
    await goes.close()
    await watched.until(lambda: not directory.takes_calls(goes.address))
    assert set(directory.out) == {at(goes).identity}
    assert len(directory.nodes) == 2  # the registry still lists it, so what is known of it is kept
    async with Listener(answer, port=port):
        await watched.until(lambda: directory.takes_calls(goes.address))
        assert not directory.out


async def test_a_node_that_the_registry_lost_stays_while_its_connection_stands(
    watched: Watched, listeners: list[Listener]
) -> None:
    stays, lost = listeners
    directory, feed = watched.directory, watched.registry.feed
    feed.publish((at(stays), at(lost)))
    await watched.until(lambda: [*watched.pool.states().values()] == [ChannelState.READY] * 2)
    feed.publish((at(stays),), lost=(at(lost),))
    await watched.until(lambda: directory.snapshot.lost)
    assert {node.address for node in directory.nodes} == {stays.address, lost.address}
    assert directory.takes_calls(lost.address)
    await lost.close()
    await watched.until(lambda: len(directory.nodes) == 1)
    assert lost.address not in watched.pool.states()
    # Forgotten for good, also when something answers there again: only the registry can bring it back.
    async with Listener(answer, port=lost.port):
        feed.publish((at(stays), at(stays, version="2")), lost=(at(lost),))
        await watched.until(lambda: len(directory.nodes) == 2)
        assert all(node.address == stays.address for node in directory.nodes)
        feed.publish((at(stays), at(lost)))
        await watched.until(lambda: directory.takes_calls(lost.address))


async def test_a_lost_node_that_was_never_reached_is_not_kept(watched: Watched, listeners: list[Listener]) -> None:
    stays, gone = listeners
    await gone.close()
    directory, feed = watched.directory, watched.registry.feed
    feed.publish((at(stays), at(gone)))
    await watched.until(lambda: directory.takes_calls(stays.address))
    feed.publish((at(stays),), lost=(at(gone),))
    await watched.until(lambda: len(directory.nodes) == 1)


async def test_without_a_word_of_loss_a_node_that_is_gone_is_gone(watched: Watched, listeners: list[Listener]) -> None:
    directory, feed = watched.directory, watched.registry.feed
    feed.publish(tuple(at(listener) for listener in listeners))
    await watched.until(lambda: not directory.out and len(directory.nodes) == 2)
    feed.publish((at(listeners[0]),))
    await watched.until(lambda: len(directory.nodes) == 1)


async def test_a_provider_that_drains_and_stays_listed_is_asked_again(
    watched: Watched, listeners: list[Listener]
) -> None:
    stays, drains = listeners
    directory = watched.directory
    watched.registry.feed.publish((at(stays), at(drains)))
    await watched.until(lambda: not directory.out and directory.takes_calls(drains.address))
    await drains.drain(1.0)
    await watched.until(lambda: not directory.takes_calls(drains.address))
    await drains.close()
    async with Listener(answer, port=drains.port):
        await watched.until(lambda: directory.takes_calls(drains.address))


async def test_a_restarted_node_is_tried_without_waiting_for_the_back_off(listeners: list[Listener]) -> None:
    watched = Watched(FOR_EVER)
    try:
        stays, restarts = listeners
        await restarts.close()
        directory, feed = watched.directory, watched.registry.feed
        feed.publish((at(stays), at(restarts, started_at_ms=1)))
        await watched.until(lambda: "unreachable" in {state.value for state in watched.pool.states().values()})
        async with Listener(answer, port=restarts.port):
            feed.publish((at(stays), at(restarts, started_at_ms=2)))
            await watched.until(lambda: directory.takes_calls(restarts.address))
    finally:
        await watched.close()


class Counted(ChannelPool):
    """Counts what is asked of it, and connects nobody."""

    def __init__(self) -> None:
        super().__init__(FOR_EVER)
        self.asked: list[str] = []

    def acquire(self, address: str, on_state: object = None, *_: object, **__: object) -> Channel:
        self.asked.append(f"+{address}")
        return Channel(address)

    def release(self, address: str, *_: object) -> None:
        self.asked.append(f"-{address}")

    def advise(self, address: str, *_: object) -> None:
        self.asked.append(f"?{address}")


@settings(max_examples=60, deadline=None)
@given(
    lists=st.lists(
        st.dictionaries(
            st.tuples(st.integers(1, 5), st.sampled_from(["", "2"])), st.sampled_from([0, 50, 100]), max_size=6
        ),
        max_size=8,
    )
)
def test_only_what_differs_is_looked_at_and_the_outcome_is_that_of_a_whole_look(
    lists: list[dict[tuple[int, str], int]],
) -> None:
    """Ports, versions and weights come, go and change; ``where`` takes weights above 0."""
    told: list[Sequence[Node]] = []
    pool = Counted()
    directory = Directory(Told(), KEY, pool, told.append, lambda node: node.weight > 0, "weight > 0")
    held: set[str] = set()
    cache: dict[tuple[tuple[int, str], int], Node] = {}
    for version, wanted in enumerate(lists, 1):
        nodes = tuple(
            cache.setdefault(
                (what, weight), Node(interface="test.S", host="h", port=what[0], version=what[1], weight=weight)
            )
            for what, weight in sorted(wanted.items())
        )
        before = {node.identity: node for node in directory.snapshot.nodes}
        pool.asked.clear()
        directory._take(Snapshot(version=version, nodes=nodes))
        changed = [node for node in nodes if before.get(node.identity) is not node]
        assert sum(one[0] == "?" for one in pool.asked) == len(changed)
        for one in pool.asked:
            assert (one[0] == "+") != (one[1:] in held) or one[0] == "?"
            held = held | {one[1:]} if one[0] == "+" else held - {one[1:]} if one[0] == "-" else held
        assert tuple(told[-1]) == directory.nodes == tuple(node for node in nodes if node.weight > 0)
        assert held == {node.address for node in directory.nodes}
        assert all(
            (directory.channel(node.address) is not None) == (node.weight > 0) or node.address in held for node in nodes
        )


async def test_who_waits_for_a_first_answer_is_told_when_it_is_closed() -> None:
    pool = ChannelPool(QUICK)
    directory = Directory(Told(), KEY, pool, lambda _: None)
    waiting = asyncio.ensure_future(directory.first())
    await asyncio.sleep(0)
    assert "has not answered yet" in str(directory.absent())
    directory.close()
    await asyncio.wait_for(waiting, 20)
    assert "the consumer is closed" in str(directory.absent())
    await pool.close()
