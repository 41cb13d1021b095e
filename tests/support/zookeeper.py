"""A real ZooKeeper for the tests: one server that the tests of a session share, and private ones to break.

    server = shared_zookeeper()                # started at first use, ended with the test process
    with zookeeper_root(server) as url: ...    # zookeeper://127.0.0.1:PORT/test-..., wiped afterwards
    with ZooKeeperServer(folder) as own: own.kill(); own.start()     # same port, same data

Where Java or the jars are missing, this raises ZooKeeperMissing and the test fails: what was tested without a real
ZooKeeper is not tested.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kazoo.client import KazooClient

_JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java")
# For TLS. Without any one of these a server starts, and connections to it hang.
_NETTY = ("buffer", "codec", "common", "handler", "resolver", "transport", "transport-native-unix-common")
_NETTY_JARS = tuple(f"netty-{part}" for part in (*_NETTY, "transport-native-epoll"))
# Without them a read-only server refuses those who only read as well, with an answer that no client understands.
LOCAL_SESSIONS = "localSessionsEnabled=true\nlocalSessionsUpgradingEnabled=true\n"
_START_S = 30.0
_REPOSITORY = Path(__file__).resolve().parents[2]


class ZooKeeperMissing(RuntimeError):
    """There is no ZooKeeper to start. Never a reason to skip."""


class ZooKeeperServer:
    """A standalone server. The port is chosen once, so that ``start`` after ``stop`` or ``kill`` brings back the same
    server with the same data. Synchronous on purpose: a test calls it through asyncio.to_thread when its loop must go
    on meanwhile. *extra* are further lines of its configuration, *flags* of Java's; *prefix* runs it somewhere else (in
    a network namespace), where it listens on *host*."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        extra: str = "",
        flags: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.host = host
        self.port = free_port()
        self._extra = extra
        self._flags = flags
        self._prefix = prefix
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def is_leader(self) -> bool:
        return "Mode: leader" in self.command("srvr")

    @property
    def hosts(self) -> str:
        return f"{self.host}:{self.port}"

    def url(self, root: str = "dubbo", **options: object) -> str:
        query = "&".join(f"{key}={value}" for key, value in options.items())
        return f"zookeeper://{self.hosts}/{root}" + (f"?{query}" if query else "")

    def start(self, *, waits: bool = True) -> None:
        assert self._process is None, "already running"
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        config = self.folder / "zoo.cfg"
        config.write_text(
            f"tickTime=500\ndataDir={data}\nclientPort={self.port}\nclientPortAddress={self.host}\nmaxClientCnxns=0\n"
            "minSessionTimeout=1000\nmaxSessionTimeout=60000\nadmin.enableServer=false\n"
            f"4lw.commands.whitelist=ruok,srvr,mntr,cons\n{self._extra}"
        )
        with (self.folder / "server.log").open("ab") as log:
            command = [*self._prefix, *_command(config, self._flags)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        # Ends the server when this process ends in whatever way: its end closes the pipe. (A parent-death signal would
        # hang on the *thread* that started the server.)
        self._guard = subprocess.Popen(
            ["sh", "-c", f"cat >/dev/null; kill -9 {self._process.pid}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if waits:
            self.wait_until_serving()

    def stop(self) -> None:
        """Ask it to end (SIGTERM)."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Alive and deaf: connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def command(self, word: str) -> str:
        """A four letter word, for example ``srvr``; empty when nobody answers."""
        try:
            with socket.create_connection((self.host, self.port), timeout=1.0) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""

    @contextmanager
    def client(self, **options: object) -> Iterator[KazooClient]:
        """An operator's own connection, to look and to break things."""
        client = KazooClient(hosts=self.hosts, **options)
        client.start(timeout=_START_S)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def __enter__(self) -> ZooKeeperServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    def _end(self, with_signal: signal.Signals) -> None:
        process, self._process = self._process, None
        guard, self._guard = self._guard, None
        assert process is not None, "not running"
        if guard is not None and guard.stdin is not None:
            guard.kill()  # first: it must not outlive the process whose id it holds
            guard.wait()
            guard.stdin.close()
        process.send_signal(with_signal)
        process.send_signal(signal.SIGCONT)  # in case it is paused
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=10)

    def wait_until_serving(self) -> None:
        until = time.monotonic() + _START_S
        while "Mode:" not in self.command("srvr"):  # `ruok` is answered too early
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > until:
                tail = (self.folder / "server.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"ZooKeeper did not start (exit status {self._process.poll()}):\n{tail}")
            time.sleep(0.05)


@functools.cache
def shared_zookeeper() -> ZooKeeperServer:
    """The server of this test process. Tests use roots of their own on it (``zookeeper_root``) and do not stop it."""
    folder = Path(tempfile.mkdtemp(prefix="steelyard-zookeeper-"))
    server = ZooKeeperServer(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.__exit__)
    server.start()
    return server


@contextmanager
def zookeeper_root(server: ZooKeeperServer | None = None, **options: object) -> Iterator[str]:
    """A registry URL with a root that no other test has; *options* go into its query."""
    server = server or shared_zookeeper()
    root = f"test-{uuid.uuid4().hex[:12]}"
    yield server.url(root, **options)
    with server.client() as client:
        if client.exists(f"/{root}"):
            client.delete(f"/{root}", recursive=True)


def _command(config: Path, flags: Sequence[str] = ()) -> list[str]:
    java = shutil.which("java")
    if java is None:
        raise ZooKeeperMissing("these tests run a real ZooKeeper and there is no `java`; `./dev test` installs it")
    # The usual tuning for a server that lives for seconds; jute.maxbuffer: many ephemerals in one session must not
    # prevent a restart.
    tuning = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djute.maxbuffer=16777216"]
    quiet = ["-Dzookeeper.jmx.log4j.disable=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return [java, *tuning, *quiet, *flags, "-cp", _class_path(), main, str(config)]


def _class_path() -> str:
    named = os.environ.get("STEELYARD_ZOOKEEPER_JARS")
    folders = [Path(named)] if named else [Path("/usr/share/java"), *_unpacked()]
    for folder in folders:
        if (folder / "zookeeper.jar").exists():
            return ":".join(str(jar) for name in (*_JARS, *_NETTY_JARS) if (jar := folder / f"{name}.jar").exists())
    looked = ", ".join(map(str, folders))
    raise ZooKeeperMissing(f"these tests run a real ZooKeeper; no zookeeper.jar in {looked}; `./dev test` installs it")


def _unpacked() -> list[Path]:
    return sorted((_REPOSITORY / ".cache" / "zookeeper").glob("**/usr/share/java"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Ensemble:
    """Servers with a leader, on 127.0.0.1. *extra* and *flags* as for one server."""

    def __init__(self, folder: Path, size: int = 3, *, extra: str = "", flags: Sequence[str] = ()) -> None:
        peers = "".join(f"server.{number}=127.0.0.1:{free_port()}:{free_port()}\n" for number in range(1, size + 1))
        extra = f"initLimit=10\nsyncLimit=4\nstandaloneEnabled=false\n{peers}{extra}"
        self.servers = [
            ZooKeeperServer(folder / str(number), extra=extra, flags=flags) for number in range(1, size + 1)
        ]
        for number, server in enumerate(self.servers, 1):
            (server.folder / "data").mkdir(parents=True)
            (server.folder / "data" / "myid").write_text(str(number))

    @property
    def hosts(self) -> str:
        return ",".join(server.hosts for server in self.servers)

    def url(self, root: str = "dubbo", **options: object) -> str:
        query = "&".join(f"{key}={value}" for key, value in options.items())
        return f"zookeeper://{self.hosts}/{root}" + (f"?{query}" if query else "")

    @property
    def leader(self) -> ZooKeeperServer:
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            for server in self.servers:
                if server.is_leader:
                    return server
            time.sleep(0.05)
        raise RuntimeError("the ensemble has no leader")

    def __enter__(self) -> Ensemble:
        for server in self.servers:
            server.start(waits=False)
        for server in self.servers:
            server.wait_until_serving()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.__exit__()
