"""A real ZooKeeper and one session's troubles: expiry, deletion by hand, foreign entries, access lists, a killed
holder.

The lines of DUBBO.md's "what a registry must survive" that one server shows. (Servers that go away:
test_zookeeper_outage.py.)
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote, unquote

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError
from kazoo.security import make_digest_acl
from support.zookeeper import shared_zookeeper, zookeeper_root

from steelyard_registry import (
    Node,
    NodeState,
    Registry,
    RegistryError,
    ServiceKey,
    Snapshot,
    Subscription,
    open_registry,
    parse_provider_url,
    provider_url,
)

pytestmark = pytest.mark.zookeeper

LIVENESS_S = 30.0
SESSION_S = 2
RESTORED_S = 1.5
"""After a deletion an entry comes back a second later; after this it is there."""
CTR = ServiceKey(interface="ads.Ctr")
NODE = Node(interface="ads.Ctr", host="10.0.0.1", port=20880, started_at_ms=1700000000000)


@pytest.fixture
def url() -> Iterator[str]:
    with zookeeper_root(session_timeout_s=SESSION_S, empty_grace_s=2, own_session=True) as url:
        yield url


@pytest.fixture
async def registry(url: str) -> AsyncIterator[Registry]:
    async with open_registry(url) as registry:
        yield registry


@pytest.fixture
async def consumer(url: str) -> AsyncIterator[Registry]:
    async with open_registry(url) as registry:
        yield registry


@pytest.fixture
def operator() -> Iterator[KazooClient]:
    """Somebody with a shell on the server."""
    with shared_zookeeper().client() as client:
        yield client


def encode(url: str) -> str:
    return quote(url, safe="")


def node_name(node: Node) -> str:
    return encode(provider_url(node))


def root_of(url: str) -> str:
    return "/" + url.rpartition("/")[2].partition("?")[0]


async def until(view: Subscription, wanted: Callable[[Snapshot], object]) -> Snapshot:
    async with asyncio.timeout(LIVENESS_S):
        while not wanted(view.snapshot):
            await view.changed(view.snapshot.version)
    return view.snapshot


async def eventually(truth: Callable[[], object]) -> None:
    """Poll for what no subscription tells."""
    async with asyncio.timeout(LIVENESS_S):
        while not await asyncio.to_thread(truth):
            await asyncio.sleep(0.02)


def owners(operator: KazooClient, folder: str) -> dict[str, int]:
    try:
        names = operator.get_children(folder)
    except NoNodeError:
        return {}
    stats = {name: operator.exists(f"{folder}/{name}") for name in names}
    return {name: stat.ephemeralOwner for name, stat in stats.items() if stat is not None}


def session_of(registry: Any) -> tuple[int, bytes]:
    return tuple(registry._lease.session._client.client_id)  # type: ignore[return-value]


def expire(registry: Registry) -> None:
    """The cheapest expiry: somebody with the same session id comes and leaves."""
    impostor = KazooClient(hosts=shared_zookeeper().hosts, client_id=session_of(registry))
    impostor.start()
    impostor.stop()
    impostor.close()


def wipe(operator: KazooClient, path: str) -> None:
    """``deleteall``, repeated if a provider came back in the middle of it."""
    while True:
        try:
            operator.delete(path, recursive=True)
            return
        except NotEmptyError:
            pass


async def test_the_layout_is_dubbos(registry: Registry, consumer: Registry, operator: KazooClient, url: str) -> None:
    await registry.register(NODE)
    await consumer.subscribe(CTR)
    folder = f"{root_of(url)}/ads.Ctr"
    (name,) = operator.get_children(f"{folder}/providers")
    assert name == node_name(NODE)
    assert parse_provider_url(unquote(name)) == NODE
    data, stat = operator.get(f"{folder}/providers/{name}")
    assert (data, stat.ephemeralOwner) == (b"", session_of(registry)[0])
    assert operator.exists(folder).ephemeralOwner == 0
    await eventually(lambda: owners(operator, f"{folder}/consumers"))
    ((consumer_name, owner),) = owners(operator, f"{folder}/consumers").items()
    assert consumer_name.startswith("consumer%3A%2F%2F127.0.0.1%2Fads.Ctr%3Fcategory%3Dconsumers")
    assert owner == session_of(consumer)[0]


async def test_registries_of_one_process_share_one_client(operator: KazooClient) -> None:
    """Through the same door, whatever their roots; who comes with other credentials has a session of his own. Whoever
    closes takes out his own entries and nobody else's."""
    with zookeeper_root() as one, zookeeper_root() as other:
        folders = [f"{root_of(url)}/ads.Ctr/providers" for url in (one, other)]
        async with open_registry(one) as first:
            async with open_registry(other) as second, open_registry(one.replace("://", "://a:b@")) as third:
                assert session_of(first) == session_of(second) != session_of(third)
                await first.register(NODE)
                await second.register(NODE)
            assert [len(owners(operator, folder)) for folder in folders] == [1, 0]
            view = await first.subscribe(CTR)
            assert view.snapshot.nodes == (NODE,)
        assert not owners(operator, folders[0])


async def test_session_expiry(
    registry: Registry, consumer: Registry, operator: KazooClient, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Within seconds a node owned by the new session exists, and it is still there after the old timeout."""
    entry = await registry.register(NODE)
    view = await consumer.subscribe(CTR)
    own_view = await registry.subscribe(CTR)
    folder = f"{root_of(url)}/ads.Ctr/providers"
    old = session_of(registry)[0]
    with caplog.at_level(logging.INFO):
        await asyncio.to_thread(expire, registry)
        await eventually(lambda: set(owners(operator, folder).values()) - {old})
    await asyncio.sleep(SESSION_S * 1.5)
    assert owners(operator, folder) == {node_name(NODE): session_of(registry)[0]}
    assert session_of(registry)[0] != old
    for seen in (view, own_view):
        await until(seen, lambda found: found.nodes == (NODE,) and not found.is_stale)
    assert any("the session is over" in record.message for record in caplog.records)
    # Nothing is left of the old session's watches: changes are still seen, and the consumer entry is back too.
    await entry.update(replace(NODE, weight=1))
    for seen in (view, own_view):
        await until(seen, lambda found: found.nodes == (replace(NODE, weight=1),))
    await eventually(lambda: len(owners(operator, f"{root_of(url)}/ads.Ctr/consumers")) == 2)


@pytest.mark.slow
async def test_expiry_again_and_again(registry: Registry, operator: KazooClient, url: str) -> None:
    await registry.register(NODE)
    folder = f"{root_of(url)}/ads.Ctr/providers"
    seen = {session_of(registry)[0]}
    for _ in range(3):
        await asyncio.to_thread(expire, registry)
        await eventually(lambda: set(owners(operator, folder).values()) - seen)  # noqa: B023
        seen |= set(owners(operator, folder).values())
    assert len(seen) == 4


async def test_an_entry_of_an_older_session_is_replaced(url: str, operator: KazooClient) -> None:
    """A fast restart with the same URL: ownership is checked, not existence."""
    folder = f"{root_of(url)}/ads.Ctr/providers"
    with shared_zookeeper().client(timeout=SESSION_S) as old:
        old.create(f"{folder}/{node_name(NODE)}", ephemeral=True, makepath=True)
        async with open_registry(url) as registry:
            await registry.register(NODE)
            assert owners(operator, folder) == {node_name(NODE): session_of(registry)[0]}
            await asyncio.to_thread(old.stop)
            await asyncio.sleep(0.2)
            assert owners(operator, folder) == {node_name(NODE): session_of(registry)[0]}


async def test_two_living_claims_to_one_name_do_not_fight(url: str, operator: KazooClient) -> None:
    folder = f"{root_of(url)}/ads.Ctr/providers"
    async with open_registry(url) as first, open_registry(url) as second:
        view = await first.subscribe(CTR)
        await first.register(NODE)
        entry = await second.register(NODE)
        await asyncio.sleep(RESTORED_S)  # the first has looked again
        before = operator.exists(f"{folder}/{node_name(NODE)}").czxid
        await asyncio.sleep(RESTORED_S)
        assert operator.exists(f"{folder}/{node_name(NODE)}").czxid == before
        await entry.withdraw()
        await eventually(lambda: set(owners(operator, folder).values()) == {session_of(first)[0]})
        await until(view, lambda found: found.nodes == (NODE,) and not found.is_stale)


async def test_an_own_node_deleted_by_hand_is_restored(
    registry: Registry, consumer: Registry, operator: KazooClient, url: str
) -> None:
    await registry.register(NODE)
    view = await consumer.subscribe(CTR)
    path = f"{root_of(url)}/ads.Ctr/providers/{node_name(NODE)}"
    for _ in range(2):
        created = operator.exists(path).czxid
        operator.delete(path)
        await eventually(lambda: (stat := operator.exists(path)) is not None and stat.czxid != created)  # noqa: B023
    await until(view, lambda found: found.nodes == (NODE,) and not found.is_stale)


async def test_the_whole_root_is_deleted(
    registry: Registry, consumer: Registry, operator: KazooClient, url: str
) -> None:
    """Providers come back, consumers recover by themselves, and nobody ever sees an empty list."""
    others = [replace(NODE, port=port) for port in range(1, 20)]
    for node in others:
        await registry.register(node)
    view = await consumer.subscribe(CTR)
    seen: list[Snapshot] = [view.snapshot]

    async def watch() -> None:
        while True:
            seen.append(await view.changed(seen[-1].version))

    watching = asyncio.create_task(watch())
    created = operator.exists(root_of(url)).czxid
    await asyncio.to_thread(wipe, operator, root_of(url))
    await eventually(lambda: (stat := operator.exists(root_of(url))) is not None and stat.czxid != created)
    await eventually(lambda: len(owners(operator, f"{root_of(url)}/ads.Ctr/providers")) == len(others))
    await until(view, lambda found: len(found.nodes) == len(others) and not found.is_stale)
    watching.cancel()
    assert all(snapshot.nodes for snapshot in seen)
    await eventually(lambda: owners(operator, f"{root_of(url)}/ads.Ctr/consumers"))


async def test_an_empty_list_keeps_the_last_one_for_a_while(
    registry: Registry, consumer: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """Marked stale, and then believed: no ghosts for ever."""
    entry = await registry.register(NODE)
    view = await consumer.subscribe(CTR)
    with caplog.at_level(logging.WARNING):
        await entry.withdraw()
        doubted = await until(view, lambda found: found.is_stale)
        assert doubted.nodes == (NODE,)
        believed = await until(view, lambda found: not found.is_stale)
        assert believed.nodes == ()
    messages = [record.message for record in caplog.records]
    assert any("the list of ads.Ctr is empty; its last 1 nodes stay for 2 s" in message for message in messages)
    assert any("no provider of ads.Ctr is left" in message for message in messages)


async def test_a_node_that_drained_before_it_went_is_not_kept(registry: Registry, consumer: Registry) -> None:
    entry = await registry.register(NODE)
    view = await consumer.subscribe(CTR)
    await entry.update(replace(NODE, state=NodeState.DRAINING))
    await until(view, lambda found: found.nodes[0].state is NodeState.DRAINING)
    version = view.snapshot.version
    await entry.withdraw()
    async with asyncio.timeout(LIVENESS_S):
        after = await view.changed(version)
    assert (after.nodes, after.is_stale) == ((), False)


async def test_foreign_and_broken_children_are_skipped_and_counted(
    registry: Registry, consumer: Registry, operator: KazooClient, url: str
) -> None:
    await registry.register(NODE)
    folder = f"{root_of(url)}/ads.Ctr/providers"
    broken = [
        encode("dubbo://10.0.0.2:20880/ads.Ctr?side=provider"),
        encode("tri://10.0.0.3/ads.Ctr"),
        encode("tri://10.0.0.4:1/ads.Ctr?weight=heavy"),
        "not-a-url",
        "%",
        "tri%3A%2F%2F%zz",
        "%FF%FE",
        "a" * 200_000,
    ]
    for name in broken:
        operator.create(f"{folder}/{name}", ephemeral=True)
    foreign = encode("tri://10.0.0.5:50051?service=ads.Ctr&pid=7")
    operator.create(f"{folder}/{foreign}", ephemeral=True)
    view = await consumer.subscribe(CTR)
    assert [node.host for node in view.snapshot.nodes] == ["10.0.0.1", "10.0.0.5"]
    assert view.snapshot.skipped == len(broken)
    # The watcher is alive after all of them.
    operator.delete(f"{folder}/{broken[0]}")
    operator.delete(f"{folder}/{foreign}")
    await until(view, lambda found: found.nodes == (NODE,) and found.skipped == len(broken) - 1)


async def test_a_consumer_may_come_before_any_provider(registry: Registry, consumer: Registry) -> None:
    view = await consumer.subscribe(CTR)
    assert (view.snapshot.nodes, view.snapshot.is_stale) == ((), False)
    await registry.register(NODE)
    await until(view, lambda found: found.nodes == (NODE,))


async def test_credentials_close_our_nodes_to_others(operator: KazooClient) -> None:
    with zookeeper_root() as bare:
        url = bare.replace("://", "://ads:s3cret@")
        root = root_of(url)
        async with open_registry(url) as registry:
            assert "s3cret" not in registry.url
            await registry.register(NODE)
            async with open_registry(bare) as anonymous:
                assert (await anonymous.subscribe(CTR)).snapshot.nodes == (NODE,)
                with pytest.raises(RegistryError, match="NoAuthError; check user, password and the access lists"):
                    await anonymous.register(replace(NODE, port=2))
                view = await anonymous.subscribe(CTR)
                await registry.register(replace(NODE, port=3))
                await until(view, lambda found: {node.port for node in found.nodes} == {3, 20880})
        operator.add_auth("digest", "ads:s3cret")
        operator.delete(root, recursive=True)


async def test_a_list_that_may_not_be_read_is_an_error_that_says_so(url: str, operator: KazooClient) -> None:
    folder = f"{root_of(url)}/ads.Ctr/providers"
    operator.add_auth("digest", "boss:secret")
    operator.ensure_path(folder.rpartition("/")[0])
    operator.create(folder, acl=[make_digest_acl("boss", "secret", all=True)])
    async with open_registry(url) as registry:
        with pytest.raises(RegistryError, match="NoAuthError; check user, password and the access lists"):
            await registry.subscribe(CTR)
        other = await registry.subscribe(ServiceKey(interface="ads.Other"))
        await registry.register(replace(NODE, interface="ads.Other"))
        await until(other, lambda found: found.nodes)
    operator.delete(root_of(url), recursive=True)


HOLDER = """
import asyncio, sys
from steelyard_registry import Node, open_registry

async def main():
    async with open_registry(sys.argv[1]) as registry:
        await registry.register(Node(interface="ads.Ctr", host="10.0.0.9", port=9, started_at_ms=1))
        print("there", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_killed_provider_goes_with_its_session(registry: Registry, url: str) -> None:
    await registry.register(NODE)
    view = await registry.subscribe(CTR)
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDER, url, stdout=asyncio.subprocess.PIPE)
    try:
        await until(view, lambda found: len(found.nodes) == 2)
    finally:
        child.kill()
        await child.wait()
    await until(view, lambda found: found.nodes == (NODE,))


def broken(*_: object) -> None:
    raise ValueError("an answer that cannot be read")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_client_whose_thread_dies_is_replaced(
    registry: Registry, consumer: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """kazoo's socket thread ends on an answer it cannot read. The registry notices, and everything is there again."""
    entry = await registry.register(NODE)
    view = await consumer.subscribe(CTR)
    own_view = await registry.subscribe(CTR)
    client = registry._lease.session._client  # type: ignore[attr-defined]
    client._connection._connect_attempt = broken
    client._connection._socket.shutdown(2)
    async with asyncio.timeout(LIVENESS_S):
        while registry._lease.session._client is client:  # type: ignore[attr-defined]
            await asyncio.sleep(0.05)
    await entry.update(replace(NODE, weight=7))
    for seen in (view, own_view):
        await until(seen, lambda found: found.nodes == (replace(NODE, weight=7),) and not found.is_stale)
    assert any("the client's thread has died" in record.message for record in caplog.records)
