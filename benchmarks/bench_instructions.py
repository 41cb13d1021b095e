"""How many instructions does a call take? Counted by callgrind, so that what else the machine does changes nothing.

    python benchmarks/bench_instructions.py [--json F] [--calls 1920] [--callers 64] [--only 'raw;whole']
    python benchmarks/bench_instructions.py --parts        what the parts of a call take, each by itself

The echo of bench_rpc, with both ends on one loop of one process. It needs valgrind, runs itself under it, and takes a
minute or two. What happens inside the kernel is not counted. What is done once a second is, and a second has few calls
under valgrind: on a busy machine, where it has fewer still, a call is some thousands dearer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench_rpc
import rpc_parts
from callgrind import MISSING, Counter, under_valgrind
from rpc_common import Echo

BODY = b"x" * 100
WARM_UP_CALLS = 1280
PART_CALLS = 16_000


async def raw() -> Echo:
    return await bench_rpc.connect_raw(await bench_rpc.serve_raw())


async def wire(carrier: str) -> Echo:
    return await bench_rpc.connect_wire(await bench_rpc.serve_wire(), carrier)


async def whole(carrier: str, providers: int = 1) -> Echo:
    return await bench_rpc.connect_pipeline(await bench_rpc.serve_pipeline(providers), carrier, providers)


async def consumer() -> Echo:
    """The whole pipeline, whose wire answers by itself in the next turn of the loop."""
    echo = await whole("tcp")
    rpc_parts.stand_in_for_the_wire(BODY)
    return echo


CASES = {
    "raw uvloop + msgpack, both ends": raw,
    "bare wire, both ends, tcp": lambda: wire("tcp"),
    "whole pipeline, both ends, tcp": lambda: whole("tcp"),
    "consumer's pipeline, with a stand-in for the wire": consumer,
}


async def drive(echo: Echo, callers: int, calls: int) -> None:
    async def caller() -> None:
        for _ in range(calls // callers):
            await echo(BODY)

    await asyncio.gather(*(caller() for _ in range(callers)))


async def whole_call(name: str, callers: int, calls: int) -> dict[str, float]:
    echo = await CASES[name]()
    await drive(echo, callers, WARM_UP_CALLS)
    counter = Counter(Path.cwd())
    await drive(echo, callers, calls)
    taken = counter.taken()
    return {name: (taken - counter.taken()) / (calls // callers * callers)}


async def parts() -> dict[str, float]:
    found = await rpc_parts.parts(BODY)
    for _, do, share in found:
        _repeat(do, PART_CALLS // share)
    counter = Counter(Path.cwd())

    def taken(do: Callable[[], Any], times: int) -> int:
        """The least of three: other threads of this process are counted too."""
        counts = []
        for _ in range(3):
            counter.taken()
            _repeat(do, times)
            counts.append(counter.taken())
        return min(counts)

    nothing = taken(_nothing, PART_CALLS)
    return {what: (taken(do, PART_CALLS // share) - nothing) / PART_CALLS for what, do, share in found}


def _repeat(do: Callable[[], Any], times: int) -> None:
    for _ in range(times):
        do()


def _nothing() -> None:
    pass


def measure(what: list[str]) -> None:
    """In the process that is measured."""
    import uvloop

    async def run() -> None:
        found = await (whole_call(what[0], int(what[1]), int(what[2])) if what else parts())
        sys.stdout.write(json.dumps(found))
        sys.stdout.flush()
        os._exit(0)

    uvloop.run(run())


def main() -> None:
    if sys.argv[1:2] == ["measure"]:
        return measure(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--calls", type=int, default=1920)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--parts", action="store_true", help="the parts of a call instead")
    parser.add_argument("--only", help=f"some of these, separated by ';': {'; '.join(CASES)}")
    arguments = parser.parse_args()
    if shutil.which("callgrind_control") is None:
        sys.exit(MISSING)
    asked: list[tuple[str, ...]] = [()]
    if not arguments.parts:
        wanted = (arguments.only or "").split(";")
        names = [name for name in CASES if any(each in name for each in wanted)]
        asked = [(name, str(arguments.callers), str(arguments.calls)) for name in names]
    found: dict[str, float] = {}
    for each in asked:
        now = under_valgrind(__file__, *each)
        found |= now
        for name, count in now.items():
            print(f"{name:<60} {count / 1000:8.1f} thousand", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
