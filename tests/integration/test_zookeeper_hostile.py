"""Children, servers and disks that mean harm. After each the same question: does the watch still see a change?"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from support.zookeeper import ZooKeeperServer, shared_zookeeper, zookeeper_root

from steelyard_registry import (
    Node,
    Registry,
    RegistryError,
    RegistryUnreachable,
    ServiceKey,
    Snapshot,
    Subscription,
    open_registry,
)

pytestmark = pytest.mark.zookeeper

LIVENESS_S = 60.0
CTR = ServiceKey(interface="ads.Ctr")
NODE = Node(interface="ads.Ctr", host="10.0.0.1", port=20880, started_at_ms=1700000000000)


@pytest.fixture
def url() -> Iterator[str]:
    with zookeeper_root(empty_grace_s=1, own_session=True) as url:
        yield url


@pytest.fixture
async def registry(url: str) -> AsyncIterator[Registry]:
    async with open_registry(url) as registry:
        yield registry


@pytest.fixture
def operator() -> Iterator[KazooClient]:
    with shared_zookeeper().client() as client:
        yield client


def root_of(url: str) -> str:
    return "/" + url.partition("://")[2].partition("/")[2].partition("?")[0]


async def until(view: Subscription, wanted: Callable[[Snapshot], object]) -> Snapshot:
    async with asyncio.timeout(LIVENESS_S):
        while not wanted(view.snapshot):
            await view.changed(view.snapshot.version)
    return view.snapshot


async def sees_changes(registry: Registry, view: Subscription, writer: Registry | None = None) -> None:
    """The watch, its thread and the client behind it are alive. *writer*: who registers, where it is not *registry*."""
    entry = await (writer or registry).register(replace(NODE, port=4711))
    await until(view, lambda found: any(node.port == 4711 for node in found.nodes))
    await entry.withdraw()
    await until(view, lambda found: not any(node.port == 4711 for node in found.nodes))
    client = registry._lease.session._client  # type: ignore[attr-defined]
    assert client.handler.socket_thread.is_alive()
    assert all(worker.is_alive() for worker in client.handler._workers)


TRI = "tri://10.0.0.2:1/ads.Ctr?"
CHILDREN = {
    "a megabyte": "x" * 1_000_000,
    "a megabyte that is a URL": quote(TRI + "a=" + "b" * 900_000, safe=""),
    "half an escape": "tri%3A%2F%2F10.0.0.2%3A1%2",
    "a bad escape": "tri%3A%2F%2F10.0.0.2%3A1%zz",
    "no UTF-8": "tri%3A%2F%2F10.0.0.2%3A1%2Fads.Ctr%3Fa%3D%FF%FE",
    "encoded twice": quote(quote(TRI, safe=""), safe=""),
    "another scheme": quote("dubbo://10.0.0.2:1/ads.Ctr?side=provider", safe=""),
    "no scheme": quote("10.0.0.2:1/ads.Ctr", safe=""),
    "no host": quote("tri://:1/ads.Ctr", safe=""),
    "no port": quote("tri://10.0.0.2/ads.Ctr", safe=""),
    "a port too many": quote("tri://10.0.0.2:99999/ads.Ctr", safe=""),
    "a host that is none": quote("tri://bad host:1/ads.Ctr", safe=""),
    "a broken IPv6 host": quote("tri://[fd00:::7]:1/ads.Ctr", safe=""),
    "a weight that is none": quote(TRI + "weight=-1", safe=""),
    "a start that is none": quote(TRI + "timestamp=yesterday", safe=""),
    "a state that is none": quote(TRI + "state=confused", safe=""),
    "infinitely many cores": quote(TRI + "hw.cores=inf", safe=""),
    "a thousand megabytes of digits": quote(TRI + "hw.memory=" + "9" * 5000, safe=""),
    "a host with a line break": quote("tri://10.0.0.2\n:1/ads.Ctr", safe=""),
    "the empty URL": quote("tri://", safe=""),
}


@pytest.mark.parametrize("kind", CHILDREN)
async def test_a_broken_child_is_skipped_and_counted(
    registry: Registry, operator: KazooClient, url: str, kind: str
) -> None:
    await registry.register(NODE)
    view = await registry.subscribe(CTR)
    operator.create(f"{root_of(url)}/ads.Ctr/providers/{CHILDREN[kind]}", ephemeral=True)
    await until(view, lambda found: found.skipped == 1)
    assert view.snapshot.nodes == (NODE,)
    await sees_changes(registry, view)


async def test_odd_children_that_are_nodes(registry: Registry, operator: KazooClient, url: str) -> None:
    """IPv6 with and without brackets, keys twice (the last wins), control characters in values, thousands of keys."""
    await registry.register(NODE)
    view = await registry.subscribe(CTR)
    many = "&".join(f"k{number}=v" for number in range(3000))
    odd = [
        "tri://[fd00::7]:1/ads.Ctr",
        "tri://fd00::8:1/ads.Ctr",
        TRI + "weight=1&weight=7&zone=a&zone=b",
        "tri://10.0.0.3:1/ads.Ctr?note=a%00b%0Ac&empty=&=nothing&alone",
        "tri://10.0.0.4:1/ads.Ctr?" + many,
    ]
    for each in odd:
        operator.create(f"{root_of(url)}/ads.Ctr/providers/{quote(each, safe='')}", ephemeral=True)
    await until(view, lambda found: len(found.nodes) == 6)
    nodes = {node.host: node for node in view.snapshot.nodes}
    assert view.snapshot.skipped == 0
    assert {"fd00::7", "fd00::8"} <= nodes.keys()
    assert (nodes["10.0.0.2"].weight, nodes["10.0.0.2"].zone) == (7, "b")
    assert dict(nodes["10.0.0.3"].tags) == {"note": "a\x00b\nc", "empty": "", "alone": "alone"}
    assert len(nodes["10.0.0.4"].tags) == 3000
    await sees_changes(registry, view)


async def test_two_entries_of_one_node_are_one_node(registry: Registry, operator: KazooClient, url: str) -> None:
    await registry.register(NODE)
    view = await registry.subscribe(CTR)
    for note in ("a", "b"):
        name = quote(f"tri://10.0.0.1:20880/ads.Ctr?note={note}&timestamp=1700000000001", safe="")
        operator.create(f"{root_of(url)}/ads.Ctr/providers/{name}", ephemeral=True)
    await until(view, lambda found: found.nodes[0].tags.get("note") == "b")
    assert len(view.snapshot.nodes) == 1
    await sees_changes(registry, view)


@pytest.mark.slow
async def test_very_many_children(registry: Registry, operator: KazooClient, url: str) -> None:
    """Fifty thousand that are none, among them one node; the loop goes on meanwhile."""
    await registry.register(NODE)
    view = await registry.subscribe(CTR)
    folder = f"{root_of(url)}/ads.Ctr/providers"

    def fill() -> None:
        for start in range(0, 50_000, 1000):
            pending = [operator.create_async(f"{folder}/junk-{start + at}", ephemeral=True) for at in range(1000)]
            for each in pending:
                each.get(30)

    logging.getLogger("steelyard_registry").setLevel(logging.ERROR)
    try:
        await asyncio.to_thread(fill)
        await until(view, lambda found: found.skipped == 50_000)
        assert view.snapshot.nodes == (NODE,)
        await sees_changes(registry, view)
    finally:
        logging.getLogger("steelyard_registry").setLevel(logging.NOTSET)


async def test_a_list_too_large_for_the_server_leaves_the_last_one(tmp_path: Path) -> None:
    """The server answers with an error, or cuts the connection: the list stays, stale at most, and comes back."""
    small = ["-Djute.maxbuffer=20000"]
    with ZooKeeperServer(tmp_path / "zookeeper", flags=small) as server:
        async with open_registry(server.url(own_session=True)) as registry:
            await registry.register(NODE)
            view = await registry.subscribe(CTR)
            with server.client() as operator:
                names = [f"junk-{number}-{'x' * 5000}" for number in range(6)]
                for name in names:
                    operator.create(f"/dubbo/ads.Ctr/providers/{name}")
                await asyncio.sleep(1)
                assert [node.identity for node in view.snapshot.nodes] == [NODE.identity]
                for name in names:
                    operator.delete(f"/dubbo/ads.Ctr/providers/{name}")
            await until(view, lambda found: not found.is_stale and not found.skipped)
            await sees_changes(registry, view)


async def test_access_denied_and_granted_again(
    url: str, operator: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that may not be read any more keeps what it was, and is read again when it may be. ZooKeeper does not tell
    of changes to those who may not read, so that it is the audit that finds out."""
    monkeypatch.setattr("steelyard_registry.zookeeper.showing.AUDIT_S", 1.0)
    folder = f"{root_of(url)}/ads.Ctr/providers"
    async with open_registry(url) as registry:
        await registry.register(NODE)
        view = await registry.subscribe(CTR)
        operator.add_auth("digest", "boss:secret")
        open_to_all = operator.get_acls(folder)[0]
        operator.set_acls(folder, [make_digest_acl("boss", "secret", all=True)])
        operator.create(f"{folder}/junk", ephemeral=True)
        await asyncio.sleep(1)
        assert view.snapshot.nodes == (NODE,)
        with pytest.raises(RegistryError, match="NoAuthError"):
            await registry.register(replace(NODE, port=9))
        operator.set_acls(folder, open_to_all)
        await until(view, lambda found: found.skipped == 1)
        await sees_changes(registry, view)


async def test_wrong_credentials_are_refused_with_words(url: str, operator: KazooClient) -> None:
    right, wrong = (url.replace("://", f"://ads:{password}@") for password in ("s3cret", "guess"))
    async with open_registry(right) as owner, open_registry(wrong) as stranger:
        await owner.register(NODE)
        with pytest.raises(RegistryError, match="check user, password and the access lists") as caught:
            await stranger.register(replace(NODE, port=2))
        assert "guess" not in str(caught.value)
        view = await stranger.subscribe(CTR)  # reading is open to all
        await owner.register(replace(NODE, port=3))
        await until(view, lambda found: {node.port for node in found.nodes} == {3, 20880})
        await sees_changes(stranger, view, owner)
    operator.add_auth("digest", "ads:s3cret")
    operator.delete(root_of(url), recursive=True)


async def test_a_root_that_is_not_there_is_made(operator: KazooClient) -> None:
    """The root may be deep (what others call a chroot), and nobody has to have made it."""
    with zookeeper_root() as base:
        deep = f"{base}/team/ads"
        async with open_registry(deep) as registry:
            view = await registry.subscribe(CTR)
            assert (view.snapshot.nodes, view.snapshot.is_stale) == ((), False)
            assert await registry.services() == ()
            await registry.register(NODE)
            await until(view, lambda found: found.nodes == (NODE,))
            await sees_changes(registry, view)
        assert operator.exists(f"{root_of(deep)}/ads.Ctr/providers")


async def test_several_hosts_of_which_most_are_gone() -> None:
    hosts = f"127.0.0.1:1,127.0.0.2:1,{shared_zookeeper().hosts},zk.invalid:2181"
    with zookeeper_root() as base:
        async with open_registry(f"zookeeper://{hosts}{root_of(base)}") as registry:
            await registry.register(NODE)
            assert (await registry.subscribe(CTR)).snapshot.nodes == (NODE,)


async def test_something_else_that_listens_is_no_zookeeper() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(rude, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        with pytest.raises(RegistryUnreachable, match="no ZooKeeper answered"):
            await open_registry(f"zookeeper://127.0.0.1:{port}").open(wait_s=2)
    finally:
        server.close()


async def test_a_read_only_observer_reads_and_writes_nothing(url: str, operator: KazooClient) -> None:
    async with open_registry(url) as registry, open_registry(f"{url}&read_only=true") as observer:
        await registry.register(NODE)
        view = await observer.subscribe(CTR)
        assert view.snapshot.nodes == (NODE,)
        with pytest.raises(RegistryError, match="read-only observer"):
            await observer.register(replace(NODE, port=2))
        await asyncio.sleep(0.3)
        assert not operator.exists(f"{root_of(url)}/ads.Ctr/consumers")
        await registry.register(replace(NODE, port=3))
        await until(view, lambda found: len(found.nodes) == 2)
        await sees_changes(observer, view, registry)


CLOCKS = """
import asyncio, sys, time
from dataclasses import replace
from steelyard_registry import Node, ServiceKey, open_registry

async def main():
    async with open_registry(sys.argv[1]) as registry:
        view = await registry.subscribe(ServiceKey(interface="ads.Ctr"))
        entry = await registry.register(Node(interface="ads.Ctr", host="10.0.0.9", port=9, started_at_ms=1))
        real = time.time
        for jump in (-10**8, 10**8, 0):
            time.time = lambda: real() + jump
            await entry.update(replace(entry.node, weight=abs(jump) + 1))
            async with asyncio.timeout(20):
                while not any(node.weight == abs(jump) + 1 for node in view.snapshot.nodes):
                    await view.changed(view.snapshot.version)
            assert not view.snapshot.is_stale
        print("fine")

asyncio.run(main())
"""


async def test_a_wall_clock_that_jumps_changes_nothing(url: str) -> None:
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", CLOCKS, url], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "fine\n", done.stderr


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    mounted = tmp_path / "tiny"
    mounted.mkdir(mode=0o700)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(mounted)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a full disk is made with a small tmpfs, which needs root: {done.stderr.decode().strip()}")
    try:
        yield mounted
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=False)


def fill_up(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return ballast


async def test_a_full_disk_costs_the_cache_and_nothing_else(
    tiny: Path, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    ballast = fill_up(tiny)
    async with open_registry(f"{url}&cache={tiny}") as registry:
        await registry.register(NODE)
        view = await registry.subscribe(CTR)
        async with asyncio.timeout(20):
            while view.snapshot.nodes != (NODE,) or not ("lists are" in caplog.text and "kept" in caplog.text):
                await asyncio.sleep(0.05)
        await sees_changes(registry, view)
    assert "lists are not kept" in caplog.text or "no lists are kept" in caplog.text
    ballast.unlink()
    async with open_registry(f"{url}&cache={tiny}") as registry:
        await registry.register(NODE)
        await registry.subscribe(CTR)
        async with asyncio.timeout(20):
            while not list(tiny.rglob("*.list")):
                await asyncio.sleep(0.05)
    assert not list(tiny.rglob("*.part"))


async def test_a_full_disk_is_a_clear_error_of_the_embedded_registry_and_passes(
    tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"embedded://{tiny}/registry.db?lease_s=1"
    ballast = fill_up(tiny)
    with pytest.raises(RegistryError, match=r"registry\.db"):
        await open_registry(url).open(wait_s=0.2)
    ballast.unlink()
    for left in tiny.iterdir():
        left.unlink()
    async with open_registry(url) as registry:
        view = await registry.subscribe(CTR)
        entry = await registry.register(NODE)
        ballast = fill_up(tiny)

        async def many() -> None:
            for number in range(1, 200):
                await registry.register(replace(NODE, port=number, tags={"t": "x" * 20_000}))

        with pytest.raises(RegistryError, match="full"):
            await many()
        assert NODE.identity in {node.identity for node in view.snapshot.nodes}
        ballast.unlink()
        await entry.update(replace(NODE, weight=7))
        await until(view, lambda found: any(node.weight == 7 for node in found.nodes))
