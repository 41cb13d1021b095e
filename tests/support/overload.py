"""An open load of two classes on one blocking method over a real wire, and what became of it."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from dataclasses import dataclass, field
from typing import Any

from steelyard import Provider, method, service
from steelyard.errors import DeadlineExceeded, Overloaded, RpcError
from steelyard.model import Invocation
from steelyard.wire import Channel

TICK_S = 0.005


@service("bench.Work")
class Work:
    """One call keeps one thread for ``service_s``: a device that takes one after another, one device a thread. It
    sleeps, so that what is measured is the queue in front and not this machine's cores."""

    def __init__(self, service_s: float) -> None:
        self._service_s = service_s
        self.ran = 0

    @method
    def work(self) -> int:
        time.sleep(self._service_s)
        self.ran += 1
        return self.ran


@dataclass
class Seen:
    """Calls of one stretch. ``latencies_s`` of those that were answered, by priority; ``hints`` of the refused."""

    offered: dict[int, int] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    latencies_s: dict[int, list[float]] = field(default_factory=dict)
    without_hint: int = 0
    seconds: float = 0.0

    @property
    def goodput(self) -> float:
        """Answered calls a second."""
        return sum(self.answered.values()) / self.seconds

    def quantile_s(self, part: float, priority: int | None = None) -> float:
        chosen = self.latencies_s if priority is None else {priority: self.latencies_s.get(priority, [])}
        found = sorted(latency for each in chosen.values() for latency in each)
        return found[min(len(found) - 1, int(len(found) * part))] if found else float("nan")

    def lost(self, priority: int) -> float:
        """The part of a class's calls that were not answered."""
        offered = self.offered.get(priority, 0)
        return 1 - self.answered.get(priority, 0) / offered if offered else 0.0


async def offer(
    channel: Channel, *, per_second: float, seconds: float, important: float = 0.0, deadline_s: float = 2.0
) -> Seen:
    """Sends calls by the clock, whatever becomes of them: the part *important* with priority 0, the rest with 2. Calls
    that a late tick should have sent are sent with the next one, and measured from when they should have been."""
    seen, open_calls = Seen(seconds=seconds), set()
    began_s = time.perf_counter()
    due = sent = 0.0
    important_due = important_sent = 0.0
    while (elapsed_s := time.perf_counter() - began_s) < seconds:
        due, important_due = elapsed_s * per_second, elapsed_s * per_second * important
        while sent < due:
            priority = 2
            if important_sent < important_due:
                priority, important_sent = 0, important_sent + 1
            sent += 1
            task = asyncio.ensure_future(_one(channel, priority, deadline_s, seen))
            open_calls.add(task)
            task.add_done_callback(open_calls.discard)
        await asyncio.sleep(TICK_S)
    await asyncio.gather(*open_calls)
    return seen


async def _one(channel: Channel, priority: int, deadline_s: float, seen: Seen) -> None:
    began_s = time.perf_counter()
    seen.offered[priority] = seen.offered.get(priority, 0) + 1
    call = Invocation("bench.Work", "work", body=b"\x90", deadline_at=time.monotonic() + deadline_s, priority=priority)
    try:
        await channel(call)
    except Overloaded as error:
        seen.refused[priority] = seen.refused.get(priority, 0) + 1
        seen.without_hint += error.retry_after_s is None
    except (DeadlineExceeded, RpcError) as error:
        seen.failed[type(error).__name__] = seen.failed.get(type(error).__name__, 0) + 1
    else:
        seen.answered[priority] = seen.answered.get(priority, 0) + 1
        seen.latencies_s.setdefault(priority, []).append(time.perf_counter() - began_s)


def rss_bytes(pid: int | str = "self") -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Result:
    """``capacity`` in calls a second. ``memory_grew``: by what part over the second half of the
    overload. ``ran``: handlers that were run, in all."""

    capacity: float
    unloaded: Seen
    overloaded: Seen
    after: list[Seen]
    memory_grew: float
    statistics: Any
    ran: int


async def play(
    registry: str, *, threads: int, service_s: float, factor: float, seconds: float, important: float, after_s: float
) -> Result:
    """Unloaded, then *factor* times the capacity for *seconds*, then 30 % of it second by second. All in this process:
    consumer, wire and provider share its memory, and the consumer keeps a few bytes for each call it counts."""
    capacity = threads / service_s
    async with Provider(registry, threads=threads, queue=1024, drain_s=2.0) as provider:
        work = Work(service_s)
        await provider.export(work)
        channel = Channel(provider.address)
        await channel.connect()
        try:
            await offer(channel, per_second=capacity * 0.3, seconds=0.5)
            unloaded = await offer(channel, per_second=capacity * 0.3, seconds=max(2.0, seconds / 5))
            warm_s = seconds / 2  # what is kept for good (pools, buffers) is there by then
            first = await offer(channel, per_second=capacity * factor, seconds=warm_s, important=important)
            gc.collect()
            before = rss_bytes()
            rest = await offer(channel, per_second=capacity * factor, seconds=seconds - warm_s, important=important)
            gc.collect()
            grown = rss_bytes() / before - 1.0
            statistics = provider.statistics()
            after = [await offer(channel, per_second=capacity * 0.3, seconds=1.0) for _ in range(int(after_s))]
        finally:
            await channel.close()
    return Result(capacity, unloaded, _merged(first, rest), after, grown, statistics, work.ran)


def _merged(one: Seen, other: Seen) -> Seen:
    merged = Seen(seconds=one.seconds + other.seconds, without_hint=one.without_hint + other.without_hint)
    for name in ("offered", "answered", "refused", "failed"):
        counts = getattr(merged, name)
        for part in (one, other):
            for key, count in getattr(part, name).items():
                counts[key] = counts.get(key, 0) + count
    for part in (one, other):
        for priority, latencies in part.latencies_s.items():
            merged.latencies_s.setdefault(priority, []).extend(latencies)
    return merged
