"""The command line as its users run it: real processes, an embedded registry, signals and pipes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent
WITHIN_S = 30.0  # for what takes a second or two; only a hang takes longer
Run = Callable[..., subprocess.CompletedProcess[str]]


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("STEELYARD_", "OTEL_"))}
    return {**kept, "COLUMNS": "100", "TERM": "dumb"}


@pytest.fixture
def registry(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/registry"


def run(*arguments: str, registry: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """One command line, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "steelyard", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        cwd=TESTS,
        env={**environment(), "STEELYARD_REGISTRY": registry},
        check=False,
    )


@pytest.fixture
def steelyard(registry: str) -> Run:
    """Runs command lines with the registry of this test."""
    return functools.partial(run, registry=registry)


class Served:
    """A ``steelyard serve`` process; ``start`` is the document that it printed."""

    def __init__(self, process: subprocess.Popen[str], start: dict[str, Any]) -> None:
        self.process = process
        self.start = start

    @property
    def address(self) -> str:
        return str(self.start["address"])

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Sends a signal; the exit code, and what the process had to say."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, said


@contextlib.contextmanager
def serving(registry: str) -> Iterator[Callable[..., Served]]:
    """Starts providers; those that still run at the end are killed."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> Served:
            process = subprocess.Popen(
                [sys.executable, "-m", "steelyard", "serve", *arguments, "--json", "--registry", registry],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=TESTS,
                env=environment(),
            )
            stack.callback(_end, process)
            return Served(process, json.loads(_line(process)))

        yield start


@pytest.fixture
def serve(registry: str) -> Iterator[Callable[..., Served]]:
    """Starts providers in the registry of this test."""
    with serving(registry) as start:
        yield start


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(WITHIN_S), "the provider has said nothing"
    line = process.stdout.readline()
    if not line:
        raise AssertionError(f"the provider ended: {process.communicate()[1]}")
    return line


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate()


def document(done: subprocess.CompletedProcess[str]) -> Any:
    """What a command printed, which must be one JSON document."""
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def until(fact: Callable[[], Any]) -> None:
    give_up_at = time.monotonic() + WITHIN_S
    while not fact():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def registered(steelyard: Run) -> list[str]:
    services = document(steelyard("nodes", "--json"))["services"]
    return [node["address"] for service in services for node in service["nodes"]]


# ---- serve -----------------------------------------------------------------------------------------------------------


def test_serve_registers_and_says_so(serve: Callable[..., Served], steelyard: Run) -> None:
    served = serve(
        "support.served:Sums", "support.served:make_other",
        "--tag", "pool=ads", "--tag", "rack=7", "--zone", "b", "--weight", "50", "--application", "sums",
        "--hw", "kind=gpu", "--hw", "accelerators=H100",
    )  # fmt: skip
    assert served.start["pid"] == served.process.pid
    assert [each["service"] for each in served.start["services"]] == ["test.Sums:1.0.0", "test.Other"]
    tags = served.start["services"][0]["tags"]
    own = {key: value for key, value in tags.items() if not key.startswith("hw.") and key not in ("lane", "wire")}
    assert own == {"pool": "ads", "rack": "7"}
    assert {"hw.arch", "hw.host", "hw.container"} <= set(tags)
    other, sums = document(steelyard("nodes", "--json"))["services"]
    assert (other["service"], sums["service"]) == ("test.Other", "test.Sums:1.0.0")
    (node,) = sums["nodes"]
    assert node["address"] == served.address
    assert (node["zone"], node["weight"], node["application"]) == ("b", 50, "sums")
    assert {key: value for key, value in node["tags"].items() if key in own} == own
    assert (node["hardware"]["kind"], node["hardware"]["accelerators"]) == ("gpu", ["H100"])
    assert node["hardware"]["memory_bytes"] > 0
    assert node["load"]["status"] == "reported"
    code, said = served.stop()
    assert code == 0
    for service in ("test.Sums:1.0.0", "test.Other"):
        (line,) = [line for line in said.splitlines() if service in line]
        assert f"{service} is ready at {served.address} and registered at embedded://" in line


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_withdraws(serve: Callable[..., Served], steelyard: Run, number: int) -> None:
    served = serve("support.served:Sums")
    # Long enough to be seen by another command that has yet to start, on a busy machine too.
    with calling(served, "test.Sums.slow", "--json", "[6]") as caller:
        until(lambda: _in_flight(steelyard) == 1)
        code, said = served.stop(number)
        out, err = caller.communicate(timeout=WITHIN_S)
    assert code == 0, said
    assert (out, caller.returncode) == ('"done"\n', 0), err
    assert registered(steelyard) == []


def calling(served: Served, *arguments: str) -> subprocess.Popen[str]:
    """``steelyard call`` under way."""
    return subprocess.Popen(
        [sys.executable, "-m", "steelyard", "call", *arguments, "--registry", served.start["registry"]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def _in_flight(steelyard: Run) -> int | None:
    (service,) = document(steelyard("nodes", "--json"))["services"]
    in_flight: int | None = service["nodes"][0]["load"]["in_flight"]
    return in_flight


def test_draining_ends_after_its_time(serve: Callable[..., Served], steelyard: Run) -> None:
    served = serve("support.served:Sums", "--drain", "0.2")
    with calling(served, "test.Sums.slow", "--json", "[60]", "--timeout", "60") as caller:
        until(lambda: _in_flight(steelyard) == 1)
        assert served.stop()[0] == 0
        out, _ = caller.communicate(timeout=WITHIN_S)
    assert caller.returncode == 1
    assert json.loads(out)["status"] in ("UNAVAILABLE", "CANCELLED")


def test_two_providers_on_one_port(serve: Callable[..., Served], steelyard: Run) -> None:
    served = serve("support.served:Sums")
    port = served.address.rpartition(":")[2]
    second = steelyard("serve", "support.served:Sums", "--port", port)
    assert second.returncode == 1
    assert f"steelyard serve: cannot listen on 127.0.0.1:{port}: another process" in second.stderr
    assert "Traceback" not in second.stderr
    assert second.stdout == ""
    assert registered(steelyard) == [served.address]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["no.such.module:X"], 2, "there is no module 'no', neither in the current directory nor"),
        (["support.served:Summs"], 2, "support.served has no 'Summs'; did you mean Sums?"),
        (["os:environ"], 2, "is no service: neither it nor a class it inherits from is decorated with @service"),
        (["support.served:Sums", "support.served:Sums"], 2, "test.Sums:1.0.0 is exported already"),
        (["support.served:Sums", "--registry", "nonsense"], 2, "registry URL 'nonsense' has no scheme"),
        (["support.served:Sums", "--hw", "kind=tpu"], 2, "hardware kind must be 'cpu' or 'gpu', not 'tpu'"),
        (["support.served:Sums", "--drain", "-1"], 2, "drain_s: 0 or more seconds, not -1.0"),
    ],
)
def test_what_serve_refuses(steelyard: Run, arguments: list[str], code: int, message: str) -> None:
    done = steelyard("serve", *arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("steelyard serve: ")]
    assert len(errors) == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_debug_shows_the_traceback(steelyard: Run) -> None:
    done = steelyard("serve", "support.served:Summs", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("steelyard serve: support.served has no 'Summs'")


@pytest.mark.parametrize("command", [["serve", "support.served:Sums"], ["nodes"], ["call", "a.B.c"]])
def test_an_unreachable_zookeeper_is_waited_for_as_long_as_asked(steelyard: Run, command: list[str]) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # not listening: connections are refused
        url = f"zookeeper://127.0.0.1:{closed.getsockname()[1]}/x"
        started_s = time.monotonic()
        done = steelyard(*command, "--registry-wait", "1", registry=url)
        took_s = time.monotonic() - started_s
    assert done.returncode == 1
    said = document(done)["message"] if command[0] == "call" else done.stderr.split(f"steelyard {command[0]}: ")[1]
    assert said.startswith("no ZooKeeper answered at 127.0.0.1")
    assert said.strip().endswith("or use --registry-wait forever to wait for it")
    assert "Traceback" not in done.stderr
    assert 1 <= took_s < WITHIN_S


def test_waiting_for_ever_ends_cleanly_when_asked_to(registry: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        process = subprocess.Popen(
            [
                sys.executable, "-m", "steelyard", "serve", "support.served:Sums", "--registry-wait", "forever",
                "--registry", f"zookeeper://127.0.0.1:{closed.getsockname()[1]}/x", "--log-level", "debug",
            ],
            stderr=subprocess.PIPE,
            text=True,
            cwd=TESTS,
            env=environment(),
        )  # fmt: skip
        try:
            assert process.stderr is not None
            for line in process.stderr:  # the first word of the client says that the wait has begun
                if "kazoo" in line or "zookeeper" in line.lower():
                    break
            process.terminate()
            _, said = process.communicate(timeout=WITHIN_S)
        finally:
            _end(process)
    assert process.returncode == 0, said


# ---- call ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One provider for all tests that only call it."""
    with serving(f"embedded://{tmp_path_factory.mktemp('sums')}/registry") as start:
        yield start("support.served:Sums", "--tag", "pool=ads")


@pytest.fixture
def call(sums: Served) -> Run:
    """``steelyard call`` where ``sums`` is registered."""
    return functools.partial(run, "call", registry=sums.start["registry"])


def test_calls_by_list_by_name_and_from_standard_input(sums: Served, call: Run) -> None:
    assert document(call("test.Sums.total", "--json", "[7, [1, 2]]")) == 10.0
    by_name = '{"values": [[1, 2], [3, 4.5]], "user_id": 0, "scale": 2}'
    assert document(call("test.Sums:1.0.0.total", "--json", by_name)) == 21.0
    assert document(call("test.Sums.total", "--json", "-", stdin="[1, [1]]")) == 2.0
    assert document(call("test.Sums.count", "--json", "[3]")) == [0, 1, 2]
    assert document(call("test.Sums.process", "--where", "tag.pool == 'ads'")) == sums.process.pid


def test_text_output(call: Run) -> None:
    done = call("test.Sums.raw", "--output", "text")
    assert (done.stdout, done.stderr) == ("AP8=\n", "(bytes are shown as base64)\n")
    assert call("test.Sums.count", "--json", "[3]", "-o", "text").stdout == "0\n1\n2\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["test.Sums.nothing"], "UNIMPLEMENTED", "test.Sums:1.0.0 has no method 'nothing'; it has: broken, count, "),
        (["test.Sums.broken"], "UNKNOWN", "ValueError: boom"),
        (["test.Sums.total", "--json", "[7]"], "INVALID_ARGUMENT", "'values' is missing; it takes (user_id, values,"),
        (["test.Sums.total", "--json", '[7, ["a"]]'], "INVALID_ARGUMENT", "argument 'values': expected an array of"),
        (["test.Sums.slow", "--json", "[60]", "--timeout", "0.3"], "DEADLINE_EXCEEDED", ""),
    ],
)
def test_calls_that_fail(sums: Served, call: Run, arguments: list[str], status: str, message: str) -> None:
    done = call(*arguments)
    assert done.returncode == 1
    found = document(done)
    assert found["status"] == status
    assert message in found["message"]
    assert sums.address in found["node"]
    assert done.stderr == ""  # the document is all that a program needs
    as_text = call(*arguments, "--output", "text")
    line = as_text.stderr.strip()
    assert (as_text.stdout, as_text.returncode) == ("", 1)
    assert line.startswith(f"{status}: ")
    assert line.endswith(f"(node {found['node']})")
    assert "\n" not in line


def test_a_failed_call_as_text(call: Run) -> None:
    done = call("test.Sums.broken", "--output", "text")
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.startswith("UNKNOWN: ValueError: boom (node test.Sums:1.0.0@")


def test_nobody_to_call(steelyard: Run, registry: str) -> None:
    done = steelyard("call", "no.Such.method")
    assert done.returncode == 1
    assert document(done)["status"] == "UNAVAILABLE"
    assert f"no provider of no.Such is registered at {registry}" in document(done)["message"]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["method"], "'method' does not name a method"),
        (["a.B.c", "--json", "{"], "--json: this is not JSON"),
        (["a.B.c", "--where", "1 +"], "where: cannot read '1 +'"),
        (["a.B.c", "--timeout", "0"], "timeout_s: more than 0 seconds"),
    ],
)
def test_calls_asked_wrongly(steelyard: Run, arguments: list[str], message: str) -> None:
    done = steelyard("call", *arguments)
    assert done.returncode == 2
    assert message in document(done)["message"]
    assert document(done)["status"] is None
    assert done.stderr == ""


# ---- nodes -----------------------------------------------------------------------------------------------------------


def test_nodes_as_a_table_and_by_filter(serve: Callable[..., Served], steelyard: Run) -> None:
    here = serve("support.served:Sums", "--zone", "a")
    there = serve("support.served:Sums", "--zone", "b")
    text = steelyard("nodes").stdout
    assert "test.Sums:1.0.0  2 nodes" in text
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("127.0.0.1")}
    assert rows.keys() == {here.address, there.address}
    assert all("ready" in row and "cpu" in row for row in rows.values())
    only = document(steelyard("nodes", "test.Sums", "--where", "zone == 'b'", "--json"))
    assert [node["address"] for service in only["services"] for node in service["nodes"]] == [there.address]


def test_nodes_that_are_gone_and_nodes_that_never_were(steelyard: Run, registry: str) -> None:
    nothing = steelyard("nodes")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    assert f"nothing is registered at {registry}" in nothing.stderr
    assert document(steelyard("nodes", "--json"))["services"] == []
    named = steelyard("nodes", "no.Such", "--json")
    assert named.returncode == 1
    assert document(named)["services"] == []
    both = steelyard("nodes", "--json", "--watch")
    assert both.returncode == 2
    assert "--watch and --json" in document(both)["message"]
    assert document(both)["status"] is None


def test_an_unreachable_node_is_shown_as_such(steelyard: Run) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"static://127.0.0.1:{closed.getsockname()[1]}"
        (service,) = document(steelyard("nodes", "a.B", "--json", registry=url))["services"]
        (node,) = service["nodes"]
        assert node["load"]["status"] == "unreachable"
        assert "refused" in node["load"]["reason"]
        assert node["load"]["utilization"] is None
        assert "unreachable" in steelyard("nodes", "a.B", registry=url).stdout


def test_a_reader_who_leaves_early_costs_no_traceback(sums: Served) -> None:
    command = f"{sys.executable} -m steelyard nodes --json | true"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        env={**environment(), "STEELYARD_REGISTRY": sums.start["registry"]},
        check=False,
    )
    assert done.stderr == ""
