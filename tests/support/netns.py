"""Network namespaces: machines of a cluster on one machine, whose links can be cut one by one.

    with Cables() as cables:                      # skips where there is no right to make them
        server = cables.machine("zookeeper")      # its own address on a shared bridge
        server.cut_from(cables.here)              # packets vanish: no reset, no refusal
        server.heal()

"Here" is the test's own namespace, with an address on the bridge. A cut is a DROP in both directions inside the
machine's namespace, so that nothing outside of it is touched; everything is removed at the end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid

import pytest


class Machine:
    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    @property
    def prefix(self) -> list[str]:
        """What a command needs in front of it to run there."""
        return ["ip", "netns", "exec", self.name]

    def cut_from(self, other: Machine) -> None:
        for chain, side in (("INPUT", "-s"), ("OUTPUT", "-d")):
            _run(*self.prefix, "iptables", "-w", "-A", chain, side, other.address, "-j", "DROP")

    def heal(self) -> None:
        _run(*self.prefix, "iptables", "-w", "-F")


class Cables:
    """See the module. Needs root, ``ip`` and ``iptables``."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("network namespaces need root")
        missing = [tool for tool in ("ip", "iptables") if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"network partitions are made with {' and '.join(missing)}, which this machine lacks")
        self._tag = uuid.uuid4().hex[:5]
        self._net = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self._bridge = f"sy{self._tag}"
        self._machines: list[Machine] = []
        self.here = Machine("", f"{self._net}.1")

    def machine(self, name: str) -> Machine:
        number = len(self._machines) + 2
        machine = Machine(f"sy-{self._tag}-{name}", f"{self._net}.{number}")
        inner, outer = f"sy{self._tag}i{number}", f"sy{self._tag}o{number}"
        self._machines.append(machine)
        _run("ip", "netns", "add", machine.name)
        _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
        _run("ip", "link", "set", inner, "netns", machine.name)
        _run("ip", "link", "set", outer, "master", self._bridge, "up")
        _run(*machine.prefix, "ip", "addr", "add", f"{machine.address}/24", "dev", inner)
        _run(*machine.prefix, "ip", "link", "set", inner, "up")
        _run(*machine.prefix, "ip", "link", "set", "lo", "up")
        return machine

    def __enter__(self) -> Cables:
        try:
            _run("ip", "link", "add", self._bridge, "type", "bridge")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this kernel makes no bridge: {error.stderr.decode().strip()}")
        _run("ip", "addr", "add", f"{self.here.address}/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for number, machine in enumerate(self._machines, 2):
            # By name as well: a namespace lives on for a while in the connections that were cut.
            subprocess.run(["ip", "link", "del", f"sy{self._tag}o{number}"], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "del", machine.name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], check=False, capture_output=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
