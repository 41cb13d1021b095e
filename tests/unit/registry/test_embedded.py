"""The file with leases: killed, frozen and half-writing processes, files that vanish, files that are something else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from steelyard_registry import (
    Node,
    Registry,
    RegistryError,
    RegistryUnreachable,
    ServiceKey,
    Subscription,
    open_registry,
)
from steelyard_registry.embedded.location import database_path
from steelyard_registry.embedded.store import Store, explained
from steelyard_registry.locator import Locator

LIVENESS_S = 30.0
CTR = ServiceKey(interface="ads.Ctr")
NODE = Node(interface="ads.Ctr", host="10.0.0.1", port=1, started_at_ms=1)

HOLDER = """
import asyncio, sys
from steelyard_registry import Node, open_registry

async def main():
    async with open_registry(sys.argv[1]) as registry:
        entry = await registry.register(Node(interface="ads.Ctr", host="10.0.0.1", port=1, started_at_ms=1))
        print("there", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""

WRITER = """
import sys, uuid
from pathlib import Path
from steelyard_registry.embedded.store import Store

store = Store(Path(sys.argv[1]), lease_s=0.2)
store.open()
print("there", flush=True)
while True:
    name = uuid.uuid4().hex
    store.put(name, "ads.Ctr", "tri://10.0.0.2:1/ads.Ctr?pad=" + name * 50)
    store.remove([name])
"""


@contextlib.asynccontextmanager
async def process(program: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert child.stdout is not None
        assert (await child.stdout.readline()).strip() == b"there"
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


async def until(view: Subscription, wanted: Callable[[tuple[Node, ...]], bool]) -> None:
    async with asyncio.timeout(LIVENESS_S):
        while not wanted(view.snapshot.nodes):
            await view.changed(view.snapshot.version)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


@pytest.fixture
async def registry(path: Path) -> AsyncIterator[Registry]:
    async with open_registry(f"embedded://{path}?lease_s=0.6&poll_s=0.02") as registry:
        yield registry


async def test_a_killed_process_is_gone_when_its_lease_ends(registry: Registry, path: Path) -> None:
    view = await registry.subscribe(CTR)
    async with process(HOLDER, f"embedded://{path}?lease_s=1") as child:
        await until(view, bool)
        child.kill()
        await child.wait()
        killed_at = time.monotonic()
        await until(view, lambda nodes: not nodes)
        assert time.monotonic() - killed_at > 0.5  # not before: a lease is a promise


async def test_a_process_frozen_longer_than_its_lease_comes_back(registry: Registry, path: Path) -> None:
    view = await registry.subscribe(CTR)
    async with process(HOLDER, f"embedded://{path}?lease_s=0.6") as child:
        await until(view, bool)
        child.send_signal(signal.SIGSTOP)
        await until(view, lambda nodes: not nodes)
        child.send_signal(signal.SIGCONT)
        await until(view, bool)


async def test_a_process_killed_in_the_middle_of_writes_leaves_a_sound_file(registry: Registry, path: Path) -> None:
    entry = await registry.register(NODE)
    view = await registry.subscribe(CTR)
    weights: list[int] = []

    def has_last_weight(nodes: tuple[Node, ...]) -> bool:
        return any((node.host, node.weight) == (NODE.host, weights[-1]) for node in nodes)

    for number in range(5):
        async with process(WRITER, str(path)) as child:
            await asyncio.sleep(0.03 + 0.01 * number)
            child.kill()
            await child.wait()
        await entry.update(replace(NODE, weight=number))
        weights.append(number)
        await until(view, has_last_weight)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    await until(view, lambda nodes: [node.host for node in nodes] == [NODE.host])


async def test_rows_removed_by_hand_are_restored(registry: Registry, path: Path) -> None:
    await registry.register(NODE)
    with contextlib.closing(sqlite3.connect(path)) as operator, operator:
        operator.execute("DELETE FROM nodes")
        operator.execute("UPDATE lists SET version = version + 1")
    view = await registry.subscribe(CTR)
    await until(view, bool)


async def test_a_removed_file_is_made_anew_and_everybody_meets_there(registry: Registry, path: Path) -> None:
    await registry.register(NODE)
    view = await registry.subscribe(CTR)
    for name in os.listdir(path.parent):
        (path.parent / name).unlink()
    async with open_registry(f"embedded://{path}?lease_s=0.6&poll_s=0.02") as other:
        theirs = await other.subscribe(CTR)
        await until(theirs, lambda nodes: nodes == (NODE,))
        await other.register(replace(NODE, port=2))
        await until(view, lambda nodes: len(nodes) == 2)


async def test_a_file_that_cannot_be_read_makes_the_list_stale_until_it_can(
    registry: Registry, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await registry.register(NODE)
    view = await registry.subscribe(CTR)
    aside = path.parent.with_name("aside")
    with caplog.at_level(logging.WARNING):
        path.parent.rename(aside)
        async with asyncio.timeout(LIVENESS_S):
            while not view.snapshot.is_stale:
                await view.changed(view.snapshot.version)
        assert view.snapshot.nodes == (NODE,)
        aside.rename(path.parent)
        async with asyncio.timeout(LIVENESS_S):
            while view.snapshot.is_stale:
                await view.changed(view.snapshot.version)
        await until(view, lambda nodes: nodes == (NODE,))
    told = [record.message for record in caplog.records if "poll fails" in record.message]
    assert len(told) == 1


async def test_a_broken_entry_is_skipped_and_counted(registry: Registry, path: Path) -> None:
    await registry.register(NODE)
    store = Store(path, lease_s=60)
    store.open()
    store.put("foreign-1", "ads.Ctr", "dubbo://10.0.0.3:1/ads.Ctr")
    store.put("foreign-2", "ads.Ctr", "not a url")
    store.close()
    view = await registry.subscribe(CTR)
    assert view.snapshot.nodes == (NODE,)
    assert view.snapshot.skipped == 2


async def test_a_blocked_loop_does_not_lose_its_lease(path: Path, registry: Registry) -> None:
    await registry.register(NODE)
    async with process(HOLDER.replace("10.0.0.1", "10.0.0.9"), f"embedded://{path}?lease_s=0.6"):
        time.sleep(1.5)  # more than two leases, in which the other process judges us
        store = Store(path, lease_s=1)
        store.open()
        nodes, _ = store.nodes("ads.Ctr")
        store.close()
        assert NODE in nodes


def test_leases_of_before_a_reboot_are_dead_whatever_they_say(path: Path) -> None:
    store = Store(path, lease_s=3)
    store.open()
    store.put("a", "ads.Ctr", "tri://10.0.0.1:1/ads.Ctr")
    for beat_at_s in (time.monotonic() + 1e6, time.monotonic() - 1e6):  # also without having written before
        with contextlib.closing(sqlite3.connect(path)) as before, before:
            before.execute("UPDATE nodes SET beat_at_s = ?", (beat_at_s,))
        store.beat({}, may_reap=False)
        assert len(store.nodes("ads.Ctr")[0]) == 1
        store.beat({}, may_reap=True)
        assert store.nodes("ads.Ctr") == ([], 0)
        store.put("a", "ads.Ctr", "tri://10.0.0.1:1/ads.Ctr")
    store.close()


def test_heartbeats_do_not_look_like_changes(path: Path) -> None:
    own, other = Store(path, lease_s=3), Store(path, lease_s=3)
    own.open()
    other.open()
    own.put("a", "ads.Ctr", "tri://10.0.0.1:1/ads.Ctr")
    assert other.has_changed()
    assert not other.has_changed()
    own.beat({"a": ("ads.Ctr", "tri://10.0.0.1:1/ads.Ctr")}, may_reap=True)
    assert not other.has_changed()
    own.remove(["a"])
    assert other.has_changed()
    own.close()
    other.close()


async def test_a_file_that_is_no_database_is_named(path: Path) -> None:
    path.write_text("hello, I am a diary\n" * 200)
    with pytest.raises(RegistryError, match=r"registry\.db is not a registry file"):
        await open_registry(f"embedded://{path}").open()
    assert path.read_text().startswith("hello")


async def test_a_database_of_something_else_is_left_alone(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE diary (day TEXT)")
    with pytest.raises(RegistryError, match="database of something else"):
        await open_registry(f"embedded://{path}").open()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)


async def test_a_newer_format_is_not_guessed_at(path: Path) -> None:
    async with open_registry(f"embedded://{path}"):
        pass
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(RegistryError, match="has registry format 2, this release reads 1"):
        await open_registry(f"embedded://{path}").open()


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"the folder of .* does not exist"):
        await open_registry(f"embedded://{tmp_path}/missing/registry.db").open()


async def test_a_locked_file_is_waited_for_and_then_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steelyard_registry.embedded.store._BUSY_S", 0.05)
    async with open_registry(f"embedded://{path}"):
        pass
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as hog:
        hog.execute("BEGIN IMMEDIATE")
        with pytest.raises(RegistryUnreachable, match="stayed locked by another process"):
            await open_registry(f"embedded://{path}").open(wait_s=0.2)
        waiting = open_registry(f"embedded://{path}")
        opening = asyncio.create_task(waiting.open(wait_s=None))
        await asyncio.sleep(0.2)
        assert not opening.done()
        hog.execute("ROLLBACK")
        await opening
        await waiting.close()


@contextlib.contextmanager
def ordinary_user() -> Iterator[None]:
    """Root may write anywhere, so root becomes nobody for a moment."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("is_there", [False, True])
def test_a_read_only_folder_is_named(is_there: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "registry.db"
        if is_there:
            store = Store(path, lease_s=1)
            store.open()
            store.close()
            path.chmod(0o444)
        Path(name).chmod(0o555)
        with ordinary_user():
            store = Store(path, lease_s=1)
            with pytest.raises(sqlite3.Error) as caught:
                store.open()
        Path(name).chmod(0o755)
        assert f"{path} and its folder must be writable for this user" in str(explained(path, caught.value))


def test_the_default_folder_must_be_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    bare = Locator.parse("embedded://")
    missing = {"XDG_RUNTIME_DIR": str(tmp_path / "nowhere")}
    own = tmp_path / f"steelyard-{os.getuid()}"
    assert database_path(bare, missing) == own / "registry.db"
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    with pytest.raises(RegistryError, match="is not a folder of this user alone"):
        database_path(bare, {})
    own.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    own.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RegistryError, match="is not a folder of this user alone"):
        database_path(bare, {})
    own.unlink()
    own.write_text("")
    with pytest.raises(RegistryError, match="cannot be used"):
        database_path(bare, {})


async def test_a_registry_whose_loop_ended_leaves_the_file(path: Path, registry: Registry) -> None:
    leaked = open_registry(f"embedded://{path}?lease_s=0.6")

    async def leak() -> None:
        await leaked.open()
        await leaked.register(NODE)

    await asyncio.to_thread(asyncio.run, leak())
    view = await registry.subscribe(CTR)
    await until(view, lambda nodes: not nodes)
