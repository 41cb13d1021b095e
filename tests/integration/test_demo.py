"""The demonstration as users run it: a process, its exit code, its files, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steelyard import Provider, method, service
from steelyard_registry import ServiceKey

MODULE = "steelyard.cli.demo.node"


def start(temporary: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from steelyard.cli import main; main()", "demo", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
        cwd=temporary,
    )


@contextlib.contextmanager
def running(temporary: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A demonstration whose traffic flows."""
    process = start(temporary, "--seconds", "20", "--no-plot", *options)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("traffic:"):
                break
        else:
            pytest.fail(f"it ended with {process.wait()} before there was traffic")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def nodes_of(temporary: Path) -> list[int]:
    """The node processes of runs whose temporary folder is *temporary*."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_node = entry.name.isdigit() and MODULE.encode() in (entry / "cmdline").read_bytes()
            if is_node and f"TMPDIR={temporary}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def left_in(temporary: Path) -> list[str]:
    """Names of what lies there; the user's own runtime folder, which all programs share, may stay when it is empty."""
    own = temporary / f"steelyard-{os.getuid()}"
    return sorted(path.name for path in temporary.iterdir() if path != own or any(own.iterdir()))


def groups_of(pid: int) -> list[Path]:
    return [*Path("/sys/fs/cgroup").glob(f"**/steelyard-demo-{pid}-*")]


def eventually(holds: Callable[[], bool], within_s: float = 15.0) -> bool:
    give_up_at = time.monotonic() + within_s
    while time.monotonic() < give_up_at:
        if holds():
            return True
        time.sleep(0.1)
    return holds()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.Popen[str], str, Path]:
    folder = tmp_path_factory.mktemp("demo")
    process = start(folder, "--seconds", "12", "--json", "out.json", "--plot", "out.png")
    output, _ = process.communicate(timeout=110)
    return process, output, folder


def test_it_plays_to_the_end(played: tuple[subprocess.Popen[str], str, Path]) -> None:
    process, output, folder = played
    assert process.returncode == 0, output
    for phase in ("plain hashing", "balancing", "fault", "healed"):
        assert f"phase: {phase}" in output
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")


def test_its_numbers_hold_together(played: tuple[subprocess.Popen[str], str, Path]) -> None:
    _, output, folder = played
    told = json.loads((folder / "out.json").read_bytes())
    assert told["calls"] > 500, output
    assert len(told["nodes"]) == 8
    assert sum(node["share"] for node in told["nodes"]) == pytest.approx(1.0, abs=0.01)
    assert [node["hardware"]["kind"] for node in told["nodes"]].count("gpu") == 2
    assert told["failed_attempts"] > 0
    assert told["accuracy"] > 0.9
    assert len(told["series"]) == 12
    assert told["settings"]["cpu_shares_by"]
    # What is told at the end can be read off the series and the table.
    assert told["settings"]["load_std_over_s"] == 2.0  # plain hashing lasts no longer in a run of twelve seconds
    spreads = [second["load_std"] for second in told["series"]]
    assert told["load_std_before"] == pytest.approx(spreads[1], rel=0.01)
    assert told["load_std_after"] == pytest.approx(spreads[-1], rel=0.01)
    shares = {node["name"]: node["share"] for node in told["nodes"]}
    assert told["sick_node_share_after_recovery"] == shares["mid-1"]
    assert told["sick_node_fair_share"] == shares["mid-2"]
    # What the balancer is there for, with room for a machine that does other things meanwhile; the bars are for
    # thirty quiet seconds.
    assert told["load_std_after"] < told["load_std_before"], output
    assert told["sick_node_share_during_fault"] < 0.1, output
    assert told["consumer_success_during_fault"] > 0.95, output


def test_it_leaves_nothing_behind(played: tuple[subprocess.Popen[str], str, Path]) -> None:
    process, _, folder = played
    assert left_in(folder) == ["out.json", "out.png"]
    assert nodes_of(folder) == []
    assert groups_of(process.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path) as process:
        assert len(nodes_of(tmp_path)) == 8
        process.send_signal(number)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "interrupted" in output
    assert "Traceback" not in output
    assert nodes_of(tmp_path) == []
    assert left_in(tmp_path) == []
    assert groups_of(process.pid) == []


@pytest.mark.slow
def test_after_a_crash_the_nodes_end_and_the_next_run_sweeps(tmp_path: Path) -> None:
    with running(tmp_path) as crashed:
        crashed.kill()
        crashed.wait()
        assert eventually(lambda: nodes_of(tmp_path) == [])
    assert left_in(tmp_path) != []
    with running(tmp_path) as following:
        assert groups_of(crashed.pid) == []
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=30)
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seconds", "1"), "--seconds: 8 to 3600"),
        (("--policy", "fairy_dust"), "fairy_dust"),
        (("--plot", "out.gif"), ".png or .html"),
        (("--registry", "carrier-pigeon://home"), "unknown scheme 'carrier-pigeon'"),
        (("--registry", "memory://"), "several processes can register in"),
    ],
)
def test_what_cannot_be_played_is_said(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    process = start(tmp_path, "--no-plot" if "--plot" not in options else "--no-fault", *options)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2, output
    assert message in output
    assert "Traceback" not in output
    assert left_in(tmp_path) == []


def test_a_missing_folder_is_noticed_before_the_play(tmp_path: Path) -> None:
    process = start(tmp_path, "--json", "nowhere/out.json")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "there is no folder nowhere" in output


@pytest.mark.slow
async def test_a_run_in_a_shared_registry_sees_its_own_nodes_alone(tmp_path: Path) -> None:
    """A stranger's node serves the very same service, and is listed with the eight of the run."""

    @service("steelyard.demo.Digits", version="1.0.0")
    class Stranger:
        @method
        def classify(self, user_id: int, pixels: Any) -> int:
            raise AssertionError("a stranger's node was called")

    registry = f"embedded://{tmp_path}/shared.db"
    options = ("--seconds", "8", "--no-fault", "--no-plot", "--json", "out.json", "--registry", registry)
    most = 0
    async with Provider(registry, host="127.0.0.1", tags={"run": "another"}) as provider:
        await provider.export(Stranger())
        listed = await provider.registry.subscribe(ServiceKey(interface="steelyard.demo.Digits", version="1.0.0"))
        playing = asyncio.create_task(asyncio.to_thread(start(tmp_path, *options).communicate, timeout=90))
        while not playing.done():
            most = max(most, len(listed.snapshot.nodes))
            await asyncio.sleep(0.05)
        output, _ = await playing
    assert most == 9, output
    told = json.loads((tmp_path / "out.json").read_bytes())
    assert told["sick_node"] is None
    assert told["consumer_success_during_fault"] is None
    assert len(told["nodes"]) == 8
    assert told["errors"] == {}
