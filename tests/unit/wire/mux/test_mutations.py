"""A million mutated messages through the core of each side (``--slow``; a few thousand otherwise): nothing but
ProtocolError comes out, memory stays, and nothing hangs."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import time
import tracemalloc

import pytest
from unit.wire.mutations import Packets, Serving, as_consumer, attack, conversations

CORPUS = 60


def story_of(direction: str, seed: int) -> tuple[list[Packets], list[Packets]]:
    """(what the victim is used to hear, both directions)."""
    up, down = conversations(CORPUS, random.Random(seed))
    return (up if direction == "provider" else down), [*up, *down]


def storm(direction: str, messages: int, seed: int) -> int:
    async def run() -> int:  # a byte stream's end belongs to a loop
        return _storm(direction, messages, seed)

    return asyncio.run(run())


def _storm(direction: str, messages: int, seed: int) -> int:
    heard, both = story_of(direction, seed)
    dice = random.Random(seed + 1)
    sent = longest = 0
    slowest_s = 0.0
    while sent < messages:
        at = dice.randrange(len(heard))
        began_s = time.process_time()
        if direction == "provider":
            sent += attack(Serving, heard[at], both, dice)
        else:
            calls = dice.randrange(1 << 30)
            sent += attack(lambda calls=calls: as_consumer(random.Random(calls)), heard[at], both, dice)
        slowest_s = max(slowest_s, time.process_time() - began_s)
        longest += 1
    assert slowest_s < 10.0, "a dozen messages are no reason to compute for seconds"
    return sent


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("side", ["provider", "consumer"])
def test_a_few_thousand_and_nothing_is_kept_of_them(side: str) -> None:
    storm(side, 300, 1)
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        storm(side, 1500, 2)
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2 << 20
    assert peak - before < 64 << 20


def a_million(side: str) -> None:
    """Prints how many there were, and by how many bytes the process has grown."""
    per_part = 50_000
    storm(side, per_part, 10)
    gc.collect()
    before = rss_bytes()
    sent = 0
    for part in range(20):
        sent += storm(side, per_part, 11 + part)
        gc.collect()
    print(sent, rss_bytes() - before)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("side", ["provider", "consumer"])
def test_a_million(side: str) -> None:
    """In a process of its own: sides that are over are rings of references, and the more objects other tests have left
    in a process, the later Python looks for such among the old ones. Until then 10,000 messages take 10 MiB."""
    script = f"from unit.wire.mux.test_mutations import a_million; a_million({side!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    sent, grew_bytes = map(int, done.stdout.split())
    assert sent >= 1_000_000
    assert grew_bytes < 64 << 20
