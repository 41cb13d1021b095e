"""Several registries as one: merging, preference, zones, and members that are away."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from urllib.parse import quote

import pytest

from steelyard_registry import (
    MalformedUrl,
    Member,
    MultiRegistry,
    Node,
    Registry,
    RegistryClosed,
    RegistryUnreachable,
    ServiceKey,
    Snapshot,
    Subscription,
    open_registry,
)
from steelyard_registry.memory import MemoryRegistry

CTR = ServiceKey(interface="ads.Ctr")
NODE = Node(interface="ads.Ctr", host="10.0.0.1", port=1)
OTHER = replace(NODE, port=2)


class Places:
    """Two places, somebody who is at each, and URLs of them."""

    def __init__(self) -> None:
        self.urls = [f"memory://{uuid.uuid4().hex}" for _ in range(2)]
        self.first, self.second = (open_registry(url) for url in self.urls)

    def multi(self, **settings: object) -> MultiRegistry:
        members = [Member(open_registry(url), zone=zone) for url, zone in zip(self.urls, "ab", strict=True)]
        return MultiRegistry(members, **settings)  # type: ignore[arg-type]


@pytest.fixture
async def places() -> AsyncIterator[Places]:
    places = Places()
    async with places.first, places.second:
        yield places


async def until(view: Subscription, wanted: Callable[[Snapshot], object]) -> Snapshot:
    async with asyncio.timeout(20):
        while not wanted(view.snapshot):
            await view.changed(view.snapshot.version)
    return view.snapshot


def ports(snapshot: Snapshot) -> set[int]:
    return {node.port for node in snapshot.nodes}


async def test_lists_are_merged_and_the_first_is_believed(places: Places) -> None:
    await places.first.register(replace(NODE, weight=7))
    await places.second.register(NODE)
    await places.second.register(OTHER)
    async with places.multi() as registry:
        view = await registry.subscribe(CTR)
        assert {(node.port, node.weight) for node in view.snapshot.nodes} == {(1, 7), (2, 100)}
        await places.first.register(replace(NODE, port=3))
        await until(view, lambda found: ports(found) == {1, 2, 3})
        assert await registry.services() == ("ads.Ctr",)


async def test_a_node_is_registered_everywhere_or_where_it_is_wanted(places: Places) -> None:
    members = [Member(open_registry(url), is_registered=at == 0) for at, url in enumerate(places.urls)]
    views = [await each.subscribe(CTR) for each in (places.first, places.second)]
    async with MultiRegistry(members) as registry, places.multi() as everywhere:
        entry = await registry.register(NODE)
        await everywhere.register(OTHER)
        assert [ports(view.snapshot) for view in views] == [{1, 2}, {2}]
        await entry.update(replace(NODE, weight=3))
        assert {node.weight for node in views[0].snapshot.nodes} == {3, 100}
        await entry.withdraw()
        await entry.withdraw()
        with pytest.raises(RegistryClosed):
            await entry.update(NODE)
        assert ports(views[0].snapshot) == {2}
    await until(views[1], lambda found: not found.nodes)


async def test_preference_moves_only_when_nothing_is_left(places: Places) -> None:
    entry = await places.first.register(NODE)
    await places.second.register(OTHER)
    async with places.multi(mode="prefer") as registry:
        view = await registry.subscribe(CTR)
        assert ports(view.snapshot) == {1}
        await entry.withdraw()
        await until(view, lambda found: ports(found) == {2})
        await places.first.register(NODE)
        await until(view, lambda found: ports(found) == {1})


async def test_a_preferred_registry_that_is_away_keeps_its_turn(places: Places) -> None:
    """A short outage of one registry must not move all traffic elsewhere."""
    await places.first.register(NODE)
    await places.second.register(OTHER)
    multi = places.multi(mode="prefer")
    async with multi as registry:
        view = await registry.subscribe(CTR)
        preferred = multi.members[0].registry
        assert isinstance(preferred, MemoryRegistry)
        for feed in preferred._feeds:
            feed.mark_stale()
        stale = await until(view, lambda found: found.is_stale)
        assert ports(stale) == {1}


async def test_the_own_zone_first(places: Places) -> None:
    await places.first.register(NODE)
    entry = await places.second.register(OTHER)
    async with places.multi(mode="zone", zone="b") as registry:
        view = await registry.subscribe(CTR)
        assert ports(view.snapshot) == {2}
        await entry.withdraw()
        await until(view, lambda found: ports(found) == {1})


class Away(MemoryRegistry):
    """Does not answer until it is told to."""

    answers: asyncio.Event

    async def _start(self, wait_s: float | None) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self.answers.wait()
        except TimeoutError:
            raise RegistryUnreachable("away") from None
        await super()._start(wait_s)


def away(url: str) -> Away:
    from steelyard_registry.locator import Locator

    registry = Away(Locator.parse(url))
    registry.answers = asyncio.Event()
    return registry


async def test_a_member_that_is_away_joins_when_it_is_back(places: Places) -> None:
    late = away(places.urls[0])
    multi = MultiRegistry([Member(late), Member(open_registry(places.urls[1]))])
    await places.first.register(NODE)
    await places.second.register(OTHER)
    await multi.open(wait_s=0.05)
    view = await multi.subscribe(CTR)
    await multi.register(replace(NODE, port=9))
    await until(view, lambda found: ports(found) == {2, 9})
    own = await places.first.subscribe(CTR)
    assert ports(own.snapshot) == {1}
    late.answers.set()
    await until(view, lambda found: ports(found) == {1, 2, 9})
    await until(own, lambda found: ports(found) == {1, 9})
    await multi.close()


async def test_when_nobody_answers_opening_fails(places: Places) -> None:
    multi = MultiRegistry([Member(away(url)) for url in places.urls])
    with pytest.raises(RegistryUnreachable):
        await multi.open(wait_s=0.05)
    await multi.close()


async def test_from_a_url(places: Places) -> None:
    first, second = (quote(url, safe="") for url in places.urls)
    await places.second.register(OTHER)
    async with open_registry(f"multi://merge?1={first}&2={second}&2.register=false") as registry:
        view = await registry.subscribe(CTR)
        assert ports(view.snapshot) == {2}
        await registry.register(NODE)
        await until(view, lambda found: ports(found) == {1, 2})
        assert ports((await places.second.subscribe(CTR)).snapshot) == {2}
    assert isinstance(registry, Registry)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("multi://merge", "at least one registry"),
        ("multi://best?1=memory%3A%2F%2Fa", "merge, prefer, zone"),
        ("multi://zone?1=memory%3A%2F%2Fa", "needs the own zone"),
        ("multi://merge?1=memory%3A%2F%2Fa&1.weight=3", "no option '1.weight'"),
        ("multi://merge?1=multi%3A%2F%2Fmerge", "does not nest"),
        ("multi://merge?1=gopher%3A%2F%2Fa", "unknown scheme"),
        ("multi://merge/path?1=memory%3A%2F%2Fa", "has no path"),
    ],
)
def test_urls_that_cannot_be_understood(url: str, words: str) -> None:
    with pytest.raises(MalformedUrl, match=words):
        open_registry(url)
