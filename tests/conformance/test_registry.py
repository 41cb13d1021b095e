"""What base.py promises, asked of every backend that keeps what is registered: memory, embedded, a real ZooKeeper.

(The static list keeps nothing; what it promises is in tests/unit/registry/test_static.py, except for the last tests
here, which hold for all.)
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.zookeeper import zookeeper_root

from steelyard_registry import (
    Hardware,
    MalformedUrl,
    Node,
    NodeState,
    Registry,
    RegistryClosed,
    RegistryError,
    ServiceKey,
    Snapshot,
    Subscription,
    open_registry,
)

LIVENESS_S = 30.0
CTR = ServiceKey(interface="ads.Ctr", version="1.0.0")
NODE = Node(
    interface="ads.Ctr",
    version="1.0.0",
    host="10.0.0.1",
    port=20880,
    application="ads",
    methods=("predict", "explain"),
    started_at_ms=1700000000000,
    zone="a",
    hardware=Hardware(kind="gpu", model="T4, 16 GB", cores=8, quota=2.5, memory_bytes=2**34, accelerators=("T4", "T4")),
    tags={"pool": "ads"},
)

KINDS = ["memory", "embedded", pytest.param("zookeeper", marks=pytest.mark.zookeeper)]
Opener = Callable[[], Registry]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "memory":
        yield f"memory://{uuid.uuid4().hex}"
    elif request.param == "embedded":
        yield f"embedded://{tmp_path}/registry.db?poll_s=0.02"
    else:
        with zookeeper_root(empty_grace_s=0.2) as place:
            yield place


@pytest.fixture
async def provider(url: str) -> AsyncIterator[Registry]:
    async with open_registry(url) as registry:
        yield registry


@pytest.fixture
async def consumer(url: str) -> AsyncIterator[Registry]:
    """A registry of its own on the same place: what it sees went through the place."""
    async with open_registry(url) as registry:
        yield registry


async def until(view: Subscription, wanted: Callable[[Snapshot], object]) -> Snapshot:
    """The first snapshot that is as *wanted*; versions must only grow on the way."""
    async with asyncio.timeout(LIVENESS_S):
        snapshot = view.snapshot
        while not wanted(snapshot):
            newer = await view.changed(snapshot.version)
            assert newer.version > snapshot.version
            snapshot = newer
        return snapshot


def is_empty(snapshot: Snapshot) -> bool:
    return not snapshot.nodes and not snapshot.is_stale


async def test_a_node_is_seen_by_an_existing_and_by_a_new_subscription(provider: Registry, consumer: Registry) -> None:
    before = await consumer.subscribe(CTR)
    assert is_empty(before.snapshot)
    entry = await provider.register(NODE)
    assert entry.node == NODE
    assert (await until(before, lambda found: found.nodes)).nodes == (NODE,)
    after = await consumer.subscribe(CTR)
    assert after.snapshot.nodes == (NODE,)
    assert not after.snapshot.is_stale
    assert after.snapshot.skipped == 0


async def test_the_own_registry_sees_its_own_nodes(provider: Registry) -> None:
    view = await provider.subscribe(CTR)
    await provider.register(NODE)
    assert (await until(view, lambda found: found.nodes)).nodes == (NODE,)


async def test_an_update_is_seen_and_never_as_two_nodes_or_none(provider: Registry, consumer: Registry) -> None:
    entry = await provider.register(NODE)
    view = await consumer.subscribe(CTR)
    seen = [view.snapshot]

    async def watch() -> None:
        while seen[-1].nodes[0].weight != 0:
            seen.append(await view.changed(seen[-1].version))

    watching = asyncio.create_task(watch())
    for weight in (50, 20, 0):
        changed = replace(NODE, weight=weight, state=NodeState.WARMING, tags={"pool": "ads", "step": str(weight)})
        await entry.update(changed)
        assert entry.node == changed
    async with asyncio.timeout(LIVENESS_S):
        await watching
    assert {len(snapshot.nodes) for snapshot in seen} == {1}
    assert seen[-1].nodes == (replace(NODE, weight=0, state=NodeState.WARMING, tags={"pool": "ads", "step": "0"}),)


async def test_an_update_keeps_the_identity(provider: Registry) -> None:
    entry = await provider.register(NODE)
    for other in (replace(NODE, port=1), replace(NODE, version="2"), replace(NODE, interface="ads.Other")):
        with pytest.raises(ValueError, match="keeps the identity"):
            await entry.update(other)
    assert entry.node == NODE


async def test_a_withdrawn_node_is_gone(provider: Registry, consumer: Registry) -> None:
    first = await provider.register(NODE)
    second = await provider.register(replace(NODE, port=20881))
    view = await consumer.subscribe(CTR)
    assert [node.port for node in view.snapshot.nodes] == [20880, 20881]
    await first.withdraw()
    await until(view, lambda found: [node.port for node in found.nodes] == [20881])
    await second.withdraw()
    await until(view, is_empty)
    await first.withdraw()
    with pytest.raises(RegistryClosed, match="is withdrawn"):
        await first.update(NODE)
    assert is_empty(view.snapshot)


async def test_a_node_can_come_back_after_it_was_withdrawn(provider: Registry, consumer: Registry) -> None:
    view = await consumer.subscribe(CTR)
    for _ in range(3):
        entry = await provider.register(NODE)
        await until(view, lambda found: found.nodes and not found.is_stale)
        await entry.withdraw()
    await until(view, is_empty)


async def test_closing_withdraws(url: str, consumer: Registry) -> None:
    view = await consumer.subscribe(CTR)
    async with open_registry(url) as provider:
        entry = await provider.register(NODE)
        await until(view, lambda found: found.nodes)
    await until(view, is_empty)
    await entry.withdraw()


async def test_two_services_do_not_mix(provider: Registry, consumer: Registry) -> None:
    other = replace(NODE, interface="ads.Other")
    await provider.register(NODE)
    await provider.register(other)
    assert (await consumer.subscribe(CTR)).snapshot.nodes == (NODE,)
    view = await consumer.subscribe(ServiceKey(interface="ads.Other", version="1.0.0"))
    assert view.snapshot.nodes == (other,)
    assert (await consumer.subscribe(ServiceKey(interface="ads.Ot", version="*"))).snapshot.nodes == ()


async def test_version_and_group_match_and_a_star_takes_any(provider: Registry, consumer: Registry) -> None:
    nodes = [
        replace(NODE, version=version, group=group) for version in ("", "1.0.0", "2.0.0") for group in ("", "blue")
    ]
    for node in nodes:
        await provider.register(node)

    async def found(version: str, group: str) -> set[str]:
        key = ServiceKey(interface="ads.Ctr", version=version, group=group)
        return {node.service_key for node in (await consumer.subscribe(key)).snapshot.nodes}

    assert await found("", "") == {"ads.Ctr"}
    assert await found("1.0.0", "blue") == {"blue/ads.Ctr:1.0.0"}
    assert await found("*", "") == {"ads.Ctr", "ads.Ctr:1.0.0", "ads.Ctr:2.0.0"}
    assert await found("2.0.0", "*") == {"ads.Ctr:2.0.0", "blue/ads.Ctr:2.0.0"}
    assert len(await found("*", "*")) == 6
    assert await found("3.0.0", "*") == set()


async def test_of_two_records_of_one_node_the_newest_is_shown(provider: Registry, consumer: Registry, url: str) -> None:
    """A fast restart on the same port: the new process is there before the old one's entry has gone."""
    view = await consumer.subscribe(CTR)
    async with open_registry(url) as old:
        await old.register(NODE)
        restarted = replace(NODE, started_at_ms=NODE.started_at_ms + 60_000)
        await provider.register(restarted)
        await until(view, lambda found: found.nodes == (restarted,))
    await asyncio.sleep(0.1)
    assert view.snapshot.nodes == (restarted,)


async def test_strange_tags_and_names_come_through(provider: Registry, consumer: Registry) -> None:
    strange = replace(
        NODE,
        host="fd00::7",
        interface="de.größe.Öl",
        version="1.0+build 7",
        group="a/b&c=d",
        zone="北京 #1",
        methods=("a,b", "c%2Cd"),
        tags={
            "weight": "mine",
            "tag.weight": "mine too",
            "host": "x",
            "a=b&c": "d=e&f",
            "percent": "100 % %41",
            "line": "one\ntwo\x00three",
            "emoji": "🦔",
            "empty": "",
            "json": '{"a": [1, 2]}',
        },
    )
    await provider.register(strange)
    view = await consumer.subscribe(ServiceKey(interface="de.größe.Öl", version="*", group="*"))
    (found,) = view.snapshot.nodes
    assert found == strange
    assert await consumer.services() == ("de.größe.Öl",)


async def test_a_node_that_cannot_be_published_is_refused(provider: Registry, consumer: Registry) -> None:
    for broken in (replace(NODE, port=0), replace(NODE, host="a b"), replace(NODE, tags={"": "x"})):
        with pytest.raises(MalformedUrl):
            await provider.register(broken)
    entry = await provider.register(NODE)
    with pytest.raises(MalformedUrl):
        await entry.update(replace(NODE, weight=-1))
    assert entry.node == NODE
    assert (await consumer.subscribe(CTR)).snapshot.nodes == (NODE,)


async def test_the_services_with_providers_are_listed(provider: Registry, consumer: Registry) -> None:
    assert await consumer.services() == ()
    await consumer.subscribe(CTR)
    entry = await provider.register(replace(NODE, interface="b.B"))
    await provider.register(replace(NODE, interface="a.A"))
    assert await consumer.services() == ("a.A", "b.B")
    await entry.withdraw()
    assert await consumer.services() == ("a.A",)


async def test_many_changes_may_coalesce_but_the_last_state_is_right(provider: Registry, consumer: Registry) -> None:
    view = await consumer.subscribe(CTR)
    entries = [await provider.register(replace(NODE, port=port)) for port in range(1000, 1040)]
    for number, entry in enumerate(entries):
        await entry.update(replace(entry.node, weight=number))
    await asyncio.gather(*(entry.withdraw() for entry in entries[::2]))
    wanted = {(1000 + number, number) for number in range(1, 40, 2)}
    await until(view, lambda found: {(node.port, node.weight) for node in found.nodes} == wanted)


async def test_cancelling_a_wait_is_safe(provider: Registry, consumer: Registry) -> None:
    view = await consumer.subscribe(CTR)
    start = view.snapshot.version
    waiting = [asyncio.create_task(view.changed(start)) for _ in range(4)]
    await asyncio.sleep(0.01)
    for task in waiting[:3]:
        task.cancel()
    await asyncio.sleep(0)
    await provider.register(NODE)
    async with asyncio.timeout(LIVENESS_S):
        assert (await waiting[3]).nodes == (NODE,)
    assert all(task.cancelled() for task in waiting[:3])
    assert (await view.changed(start)).version == view.snapshot.version


async def test_a_cancelled_register_leaves_nothing_behind(provider: Registry, consumer: Registry) -> None:
    view = await consumer.subscribe(CTR)
    for delay_s in (0.0, 0.001, 0.005):
        task = asyncio.create_task(provider.register(NODE))
        await asyncio.sleep(delay_s)
        task.cancel()
        (result,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(result, BaseException):
            await result.withdraw()
    await until(view, is_empty)
    await provider.register(NODE)
    await until(view, lambda found: found.nodes == (NODE,))


async def test_a_closed_subscription_says_so_and_others_go_on(provider: Registry, consumer: Registry) -> None:
    closed, kept = await consumer.subscribe(CTR), await consumer.subscribe(CTR)
    waiting = asyncio.create_task(closed.changed(closed.snapshot.version))
    await asyncio.sleep(0)
    await closed.close()
    await closed.close()
    with pytest.raises(RegistryClosed):
        await waiting
    with pytest.raises(RegistryClosed):
        await closed.changed(0)
    await provider.register(NODE)
    await until(kept, lambda found: found.nodes == (NODE,))
    assert closed.snapshot.nodes == ()


@pytest.fixture(params=[*KINDS, "static"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "static":
        yield "static://10.0.0.1:20880"
    elif request.param == "zookeeper":
        with zookeeper_root() as place:
            yield place
    else:
        yield f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"embedded://{tmp_path}/r.db"


async def test_the_first_snapshot_is_there_and_newer_than_zero(any_url: str) -> None:
    async with open_registry(any_url) as registry:
        view = await registry.subscribe(CTR)
        assert view.snapshot.version > 0
        assert await view.changed(0) == view.snapshot


async def test_use_before_open_and_after_close_is_an_error(any_url: str) -> None:
    registry = open_registry(any_url)
    for state in ("not open yet", "closed"):
        with pytest.raises(RegistryClosed, match=state):
            await registry.register(NODE)
        with pytest.raises(RegistryClosed, match=state):
            await registry.subscribe(CTR)
        with pytest.raises(RegistryClosed, match=state):
            await registry.services()
        if state == "not open yet":
            await registry.open()
            await registry.open()
            view = await registry.subscribe(CTR)
            waiting = asyncio.create_task(view.changed(view.snapshot.version))
            await asyncio.sleep(0)
            await registry.close()
            await registry.close()
            with pytest.raises(RegistryClosed):
                await waiting
    with pytest.raises(RegistryClosed):
        await registry.open()


async def test_a_registry_that_was_never_opened_can_be_closed(any_url: str) -> None:
    registry = open_registry(any_url)
    await registry.close()
    with pytest.raises(RegistryClosed):
        await registry.open()


async def test_closing_everything_in_any_order_is_fine(any_url: str) -> None:
    registry = open_registry(any_url)
    await registry.open()
    entry, view = await registry.register(NODE), await registry.subscribe(CTR)
    await asyncio.gather(registry.close(), registry.close(), view.close())
    with pytest.raises(RegistryClosed):
        await entry.update(NODE)
    await asyncio.gather(registry.close(), entry.withdraw(), view.close())


ROUTER = "ads.Ctr:1.0.0:.condition-router"
TEXT = "force: true\nconditions:\n  - method=predict => zone = größe\n"


async def test_a_rule_is_published_watched_and_taken_back(provider: Registry, consumer: Registry) -> None:
    assert consumer.keeps_rules
    view = await consumer.rule(ROUTER)
    assert (view.document.text, view.document.is_stale) == (None, False)
    seen = view.document.version
    for text in (TEXT, "", TEXT + "x", None):
        await provider.publish_rule(ROUTER, text)
        async with asyncio.timeout(LIVENESS_S):
            while view.document.text != text:
                newer = await view.changed(seen)
                assert newer.version > seen
                seen = newer.version
    assert (await provider.rule(ROUTER)).document.text is None
    await provider.publish_rule(ROUTER, None)  # taking back what is not there


async def test_rules_of_two_keys_and_groups_do_not_mix(provider: Registry, consumer: Registry) -> None:
    await provider.publish_rule(ROUTER, "a")
    await provider.publish_rule(ROUTER, "b", group="blue")
    await provider.publish_rule("ads.tag-router", "c")
    found = [await consumer.rule(ROUTER), await consumer.rule(ROUTER, group="blue"), await consumer.rule("other")]
    assert [view.document.text for view in found] == ["a", "b", None]
    await found[0].close()
    await found[0].close()
    with pytest.raises(RegistryClosed):
        await found[0].changed(0)
    await provider.publish_rule(ROUTER, "b2", group="blue")
    async with asyncio.timeout(LIVENESS_S):
        while found[1].document.text != "b2":
            await found[1].changed(found[1].document.version)


async def test_bad_rules_are_refused(provider: Registry) -> None:
    for key, group in (("", "dubbo"), ("a/b", "dubbo"), ("a\x00", "dubbo"), ("a", ".."), ("x" * 600, "dubbo")):
        with pytest.raises(MalformedUrl, match="rule"):
            await provider.rule(key, group)
        with pytest.raises(MalformedUrl, match="rule"):
            await provider.publish_rule(key, "x", group)
    with pytest.raises(RegistryError, match="at most"):
        await provider.publish_rule(ROUTER, "x" * (512 * 1024 + 1))


async def test_closing_the_registry_ends_its_rules(url: str) -> None:
    async with open_registry(url) as registry:
        view = await registry.rule(ROUTER)
        waiting = asyncio.create_task(view.changed(view.document.version))
        await asyncio.sleep(0)
    with pytest.raises(RegistryClosed):
        await waiting


async def test_where_no_rules_are_kept_that_is_said() -> None:
    async with open_registry("static://10.0.0.1:1") as registry:
        assert not registry.keeps_rules
        with pytest.raises(RegistryError, match="keeps no rules"):
            await registry.rule(ROUTER)
        with pytest.raises(RegistryError, match="keeps no rules"):
            await registry.publish_rule(ROUTER, "x")
        with pytest.raises(RegistryError, match="keeps no rules as URLs"):
            await registry.rule_urls("ads.Ctr", "routers")


async def test_several_registries_keep_rules_where_one_of_them_does() -> None:
    async with open_registry("multi://merge?1=static%3A%2F%2F10.0.0.1%3A1&2=memory%3A%2F%2Frules") as registry:
        assert registry.keeps_rules
        await registry.publish_rule(ROUTER, TEXT)
        assert (await registry.rule(ROUTER)).document.text == TEXT


async def test_updates_are_published_at_a_bounded_rate_and_the_newest_wins(
    provider: Registry, consumer: Registry
) -> None:
    entry = await provider.register(NODE)
    view = await consumer.subscribe(CTR)
    first = view.snapshot.version
    async with asyncio.timeout(LIVENESS_S):
        await asyncio.gather(*(entry.update(replace(NODE, weight=weight)) for weight in range(1, 41)))
    assert entry.node.weight == 40
    await until(view, lambda found: found.nodes[0].weight == 40)
    assert view.snapshot.version - first <= 12  # not one a change


async def test_a_node_that_drains_says_so_at_once(provider: Registry, consumer: Registry) -> None:
    entry = await provider.register(NODE)
    view = await consumer.subscribe(CTR)
    for weight in range(1, 11):
        await entry.update(replace(NODE, weight=weight))
    waiting = [asyncio.create_task(entry.update(replace(NODE, weight=weight))) for weight in range(11, 20)]
    await asyncio.sleep(0)
    draining = replace(NODE, weight=19, state=NodeState.DRAINING)
    await entry.update(draining)
    await until(view, lambda found: found.nodes == (draining,))
    await asyncio.gather(*waiting)
    assert entry.node == draining
