"""What does TLS cost? CPU time of a call with it and without, both ends in one process, and of a handshake.

    python benchmarks/bench_tls.py [--json out.json] [--rounds 5] [--calls 4000]

Each ratio is of measurements that took turns in one run; medians over rounds. CPU time and not the clock, because both
ends share a process here, and other processes the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import ssl
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trustme
import uvloop

from steelyard import Credentials
from steelyard.model import Invocation, Reply
from steelyard.security import Tls
from steelyard.wire import Channel, LaneConnector, Listener

MIB = 1024 * 1024
CALLERS = 64


async def echo(invocation: Invocation) -> Reply:
    return Reply(body=invocation.body)


def credentials() -> Credentials:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    made = authority.issue_cert("127.0.0.1", key_type=trustme.KeyType.ECDSA)
    chain = b"".join(each.bytes() for each in made.cert_chain_pems)
    key = made.private_key_pem.bytes()
    return Credentials(ca=authority.cert_pem.bytes(), certificate=chain, key=key, require_client_certificate=True)


@contextlib.asynccontextmanager
async def channel(carrier: str, given: Credentials | None) -> AsyncIterator[Any]:
    """A function that makes a Channel to one listener."""
    listener = Listener(echo, lanes=(carrier,) if carrier != "grpc" else (), credentials=given)
    await listener.start()
    listener.identity = listener.address
    tls = None if given is None else Tls(given)
    try:
        yield lambda: Channel(listener.address, connector=LaneConnector(carrier, listener.offer, tls))
    finally:
        await listener.close()


async def calls(one: Channel, body: bytes, count: int, callers: int) -> float:
    """CPU microseconds a call, both ends."""
    left = count

    async def caller() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one(Invocation("bench.Echo", "echo", body=body))

    await one(Invocation("bench.Echo", "echo", body=body))
    began_s = time.process_time()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return (time.process_time() - began_s) / count * 1e6


async def connects(make: Any, count: int) -> float:
    """CPU microseconds a connection, both ends."""
    began_s = time.process_time()
    for _ in range(count):
        async with make() as one:
            await one.connect()
    return (time.process_time() - began_s) / count * 1e6


async def measured(carrier: str, given: Credentials | None, count: int) -> dict[str, float]:
    async with channel(carrier, given) as make, make() as one:
        return {
            f"100 bytes, {CALLERS} callers, us": await calls(one, bytes(100), count, CALLERS),
            "100 bytes, 1 caller, us": await calls(one, bytes(100), count // 8, 1),
            "1 MiB, 4 callers, us": await calls(one, bytes(MIB), max(8, count // 100), 4),
            "a connection, us": await connects(make, 20),
        }


async def run(rounds: int, count: int) -> dict[str, dict[str, float]]:
    given = credentials()
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for carrier in ("tcp", "uds", "grpc"):
            for name, chosen in (("", None), (" + TLS", given)):
                for what, value in (await measured(carrier, chosen, count)).items():
                    found.setdefault(carrier + name, {}).setdefault(what, []).append(value)
    return {name: {what: statistics.median(each) for what, each in facts.items()} for name, facts in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=4000)
    arguments = parser.parse_args()
    found = uvloop.run(run(arguments.rounds, arguments.calls))
    print(f"{'CPU time, both ends':<34}{'without':>12}{'with TLS':>12}{'ratio':>9}")
    for carrier in ("tcp", "uds", "grpc"):
        for what, plain in found[carrier].items():
            secured = found[f"{carrier} + TLS"][what]
            print(f"{carrier + ', ' + what:<34}{plain:>12,.1f}{secured:>12,.1f}{secured / plain:>9.2f}")
    versions = {name: importlib.metadata.version(name) for name in ("grpcio", "uvloop")}
    print(f"{ssl.OPENSSL_VERSION}, {', '.join(f'{name} {version}' for name, version in versions.items())}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
