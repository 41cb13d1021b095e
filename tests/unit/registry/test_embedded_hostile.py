"""Rows that are no text, locks that are held for long, files that are exchanged, disks of others, and a crowd."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from steelyard_registry import Node, Registry, RegistryError, ServiceKey, Snapshot, Subscription, open_registry
from steelyard_registry.embedded import filesystem, repair_file
from steelyard_registry.embedded.filesystem import filesystem_of
from steelyard_registry.embedded.store import Store
from steelyard_registry.url import provider_url

LIVENESS_S = 60.0
LEASE_S = 0.9
CTR = ServiceKey(interface="ads.Ctr")
NODE = Node(interface="ads.Ctr", host="10.0.0.1", port=1, started_at_ms=1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


@pytest.fixture
async def registry(path: Path) -> AsyncIterator[Registry]:
    async with open_registry(f"embedded://{path}?lease_s={LEASE_S}&poll_s=0.02") as registry:
        yield registry


def written(path: Path, statement: str, values: tuple[object, ...] = ()) -> None:
    with contextlib.closing(sqlite3.connect(path)) as operator, operator:
        operator.execute(statement, values)
        operator.execute("UPDATE lists SET version = version + 1")


ROWS: dict[str, tuple[object, object]] = {
    "bytes": (b"ads.Ctr", b"tri://10.0.0.9:1/ads.Ctr"),
    "bytes as a URL": ("ads.Ctr", b"tri://10.0.0.9:1/ads.Ctr"),
    "no UTF-8": ("ads.Ctr", b"tri://10.0.0.9:1/ads.Ctr?a=\xff"),
    "a number": ("ads.Ctr", 7),
    "a NUL": ("ads.Ctr", "tri://10.0.0.9:1\x00/ads.Ctr"),
    "a megabyte": ("ads.Ctr", "tri://10.0.0.9:1/ads.Ctr?a=" + "x" * 1_000_000),
}


@pytest.mark.parametrize("kind", ROWS)
async def test_a_row_that_is_no_text_stops_nobody(registry: Registry, path: Path, kind: str) -> None:
    await registry.register(NODE)
    interface, url = ROWS[kind]
    as_text = "CAST(? AS TEXT)" if kind == "no UTF-8" else "?"
    written(path, f"INSERT INTO nodes VALUES ('bad', ?, {as_text}, 1e9, 1e9)", (interface, url))
    written(
        path, "UPDATE nodes SET beat_at_s = (SELECT min(beat_at_s) FROM nodes WHERE entry != 'bad') WHERE entry = 'bad'"
    )
    async with open_registry(f"embedded://{path}?lease_s={LEASE_S}") as other:
        view = await other.subscribe(CTR)
        assert view.snapshot.nodes == (NODE,)
        assert view.snapshot.skipped == (kind != "bytes")
        assert "ads.Ctr" in await other.services()
        await other.register(replace(NODE, port=2))
        await until(view, lambda found: len(found.nodes) == 2)
    done = await asyncio.to_thread(repair_file, path)
    assert (done.is_sound, done.unreadable) == (True, 1)


async def test_a_document_that_is_no_text_is_none(registry: Registry, path: Path) -> None:
    await registry.publish_rule("a.tag-router", "force: true")
    rule = await registry.rule("a.tag-router")
    written(path, "UPDATE documents SET text = x'ff00'")
    async with asyncio.timeout(LIVENESS_S):
        while rule.document.text is not None:
            await rule.changed(rule.document.version)


async def until(view: Subscription, wanted: object) -> Snapshot:
    async with asyncio.timeout(LIVENESS_S):
        while not wanted(view.snapshot):  # type: ignore[operator]
            await view.changed(view.snapshot.version)
    return view.snapshot


async def test_a_lock_that_is_held_for_longer_than_a_lease_buries_nobody(
    registry: Registry, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await registry.register(NODE)
    url = f"embedded://{path}?lease_s={LEASE_S}&poll_s=0.02"
    async with open_registry(url) as second, open_registry(url) as watcher:
        await second.register(replace(NODE, port=2))
        view = await watcher.subscribe(CTR)
        await until(view, lambda found: len(found.nodes) == 2)
        counts: list[int] = []

        async def watch() -> None:
            while True:
                counts.append(len((await view.changed(view.snapshot.version)).nodes))

        watching = asyncio.ensure_future(watch())
        for _ in range(3):
            with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as hog:
                hog.execute("BEGIN IMMEDIATE")
                await asyncio.sleep(2 * LEASE_S)
                hog.execute("ROLLBACK")
            await asyncio.sleep(1.2 * LEASE_S)
        watching.cancel()
        assert not counts or min(counts) == 2
    assert "lease ended" not in caplog.text
    assert "restored" not in caplog.text


async def test_nodes_of_a_file_that_was_exchanged_are_lost_and_not_gone(registry: Registry, path: Path) -> None:
    view = await registry.subscribe(CTR)
    url = f"embedded://{path}?lease_s=30"  # whose holder looks at the file again in ten seconds
    async with open_registry(url) as slow:
        await slow.register(NODE)
        await until(view, lambda found: found.nodes)
        for name in path.parent.iterdir():
            name.unlink()
        found = await until(view, lambda found: not found.nodes)
        assert found.lost == (NODE,)
        await until(view, lambda found: not found.lost)  # for two leases, no longer
        assert view.snapshot.nodes == ()


async def test_what_comes_into_the_new_file_is_not_lost(registry: Registry, path: Path) -> None:
    await registry.register(NODE)
    view = await registry.subscribe(CTR)
    for _ in range(2):
        for name in path.parent.iterdir():
            name.unlink()
        await asyncio.sleep(LEASE_S)
        found = await until(view, lambda found: found.nodes)
        assert (found.nodes, found.lost) == ((NODE,), ())


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "smb3", "ceph"])
async def test_a_network_file_system_is_named(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mounts = tmp_path / "mountinfo"
    device = path.parent.stat().st_dev
    own = f"{os.major(device)}:{os.minor(device)}"
    mounts.write_text(
        "22 27 0:21 / /proc rw - proc proc rw\n"
        f"30 27 {own} / /else\\040where rw,relatime shared:1 master:2 - {kind} server:/export rw\n"
    )
    monkeypatch.setattr(filesystem, "MOUNTS", mounts)
    with pytest.raises(RegistryError, match=rf"is on a network file system \({re.escape(kind)}\).*zookeeper://"):
        await open_registry(f"embedded://{path}").open()
    assert not path.exists()


def test_what_the_kernel_says_of_this_machine() -> None:
    assert filesystem_of(Path("/proc")) in ("proc", "")
    assert filesystem_of(Path("/nowhere/at/all")) == ""


@pytest.mark.parametrize("what", ["nodes", "document"])
async def test_a_change_behind_a_subscribers_first_look_is_not_lost(path: Path, what: str) -> None:
    """The look that a subscription begins with, and the next one, reach the loop together. The older must not be shown
    over the newer: until the next change nobody would put that right."""
    newcomer, loop = replace(NODE, host="10.9.9.9"), asyncio.get_running_loop()
    async with open_registry(f"embedded://{path}?lease_s=3") as registry:
        store = registry._worker.store  # type: ignore[attr-defined]
        look = getattr(store, what)

        def look_and_change(at: str) -> Any:
            found = look(at)
            delattr(store, what)
            loop.call_soon_threadsafe(time.sleep, 0.3)  # until both looks wait for it
            other = Store(path, 3.0)
            other.open()
            other.put("newcomer", newcomer.interface, provider_url(newcomer))
            other.put_document("steelyard/one", "newer")
            other.close()
            return found

        setattr(store, what, look_and_change)
        async with asyncio.timeout(2):
            if what == "nodes":
                view = await registry.subscribe(CTR)
                while view.snapshot.nodes != (newcomer,):
                    await view.changed(view.snapshot.version)
            else:
                rule = await registry.rule("one", "steelyard")
                while rule.document.text != "newer":
                    await asyncio.sleep(0.05)


CROWD = """
import asyncio, os, sys, time
import sqlite3, steelyard_registry.embedded  # once for all
from steelyard_registry import Node, ServiceKey, open_registry

url, count, hold_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])

async def member(number):
    async with open_registry(url) as registry:
        await registry.register(Node(interface="ads.Ctr", host="10.0.0.1", port=number + 1, started_at_ms=1))
        view = await registry.subscribe(ServiceKey(interface="ads.Ctr"))
        began = time.monotonic()
        async with asyncio.timeout(120):
            while len(view.snapshot.nodes) < count:
                await view.changed(view.snapshot.version)
        version, until = view.snapshot.version, time.monotonic() + hold_s
        least = count
        while time.monotonic() < until:  # everybody stays seen: nobody's beat waits for longer than a lease
            try:
                async with asyncio.timeout(max(0.01, until - time.monotonic())):
                    least = min(least, len((await view.changed(view.snapshot.version)).nodes))
            except TimeoutError:
                pass
        os.write(1, f"{least}\\n".encode())  # in one piece
        await asyncio.to_thread(sys.stdin.read)  # leave together

children = []
for number in range(count):
    child = os.fork()
    if not child:
        try:
            asyncio.run(member(number))
            os._exit(0)
        except BaseException as error:
            print("failed", repr(error), flush=True)
            os._exit(1)
    children.append(child)
os._exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_a_crowd_of_processes_is_served_fairly(path: Path, count: int) -> None:
    """Each registers, sees all, and goes on being seen by all for three leases."""
    lease_s = 3.0 if count < 50 else 6.0
    crowd = subprocess.Popen(
        [sys.executable, "-c", CROWD, f"embedded://{path}?lease_s={lease_s}", str(count), str(lease_s * 1.5)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert crowd.stdout is not None
    said = [crowd.stdout.readline().strip() for _ in range(count)]
    crowd.communicate(timeout=120)
    assert said == [str(count)] * count
    assert crowd.returncode == 0
