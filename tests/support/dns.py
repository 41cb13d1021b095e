"""A real name server (dnsmasq) for the tests. Where there is none, the test fails: `apt-get install dnsmasq-base`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path


class NameServer:
    """``say`` replaces the whole zone: lines of dnsmasq's configuration."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    def say(self, *lines: str, ttl_s: int = 1) -> None:
        self.stop()
        program = shutil.which("dnsmasq", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        assert program is not None, "these tests ask a real name server: apt-get install dnsmasq-base"
        config = self._folder / "dnsmasq.conf"
        config.write_text("\n".join([*_BASE, f"port={self.port}", f"local-ttl={ttl_s}", *lines]) + "\n")
        self._process = subprocess.Popen(
            [program, "--keep-in-foreground", f"--conf-file={config}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self._folder / "dnsmasq.log").open("ab"),
        )
        self._wait()

    def addresses(self, *hosts: str, name: str = "ctr.test") -> None:
        self.say(*(f"host-record={name},{host}" for host in hosts))

    def services(self, records: Sequence[tuple[str, int, int, int]], hosts: dict[str, str]) -> None:
        """SRV records (target, port, priority, weight) of _tri._tcp.ctr.test."""
        self.say(
            *(f"srv-host=_tri._tcp.ctr.test,{target},{port},{prio},{weight}" for target, port, prio, weight in records),
            *(f"host-record={name},{host}" for name, host in hosts.items()),
        )

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> NameServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait(self) -> None:
        """Until it answers anything at all."""
        query = bytes.fromhex(_QUERY)
        until = time.monotonic() + 10
        while time.monotonic() < until:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
                asking.settimeout(0.2)
                try:
                    asking.sendto(query, ("127.0.0.1", self.port))
                    asking.recv(512)
                    return
                except OSError:
                    time.sleep(0.02)
        raise RuntimeError(f"dnsmasq did not start:\n{(self._folder / 'dnsmasq.log').read_text()}")


_QUERY = "000101000001000000000000016104746573740000010001"
_BASE = (
    "listen-address=127.0.0.1",
    "bind-interfaces",
    "no-resolv",
    "no-hosts",
    "no-poll",
    "local=/test/",
    "user=",
    "pid-file=",
)
