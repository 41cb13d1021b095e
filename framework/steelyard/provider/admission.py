"""Which methods have a concurrency limit, and where each begins.

Methods that run in the handler pool or in batches have one by default: there it is known how many calls run together
and how long each ran, so the law (``guard.ConcurrencyLimit``) has only the queue to find and cannot err. Coroutines
have none by default: how many of them can run together has to be guessed from their latencies, and a method that waits
for a slow database today and a fast one tomorrow would be cut for it. Whoever knows better asks for it with ``limit``.

Streams have a plain bound on how many of a method are open at once. There is no law to be found: how long a stream
takes is its reader's pace and no sign of load. What each costs at most is known instead: a window of items that are not
read yet (``WireLimits.stream_window_bytes``).
"""

from __future__ import annotations

from steelyard.guard import ConcurrencyLimit, ConcurrencySettings
from steelyard.service import BoundMethod

Limit = ConcurrencySettings | bool | None
"""None: as described above. False: no limits. Settings: for every method, coroutines too, but for streams."""

# Streams of one method. With full windows of 256 KiB they are 1 GiB; one connection may have as many calls.
MOST_STREAMS = 4096


def limit_for(
    method: BoundMethod, limit: Limit, threads: int, streams: int | None = MOST_STREAMS
) -> ConcurrencyLimit | None:
    """The law of one method, or None. *streams*: how many of it may be open at once, where it is one."""
    if method.is_stream:
        if streams is None:
            return None
        return ConcurrencyLimit(ConcurrencySettings(start=streams, least=streams, most=streams))
    if limit is False:
        return None
    if isinstance(limit, ConcurrencySettings):
        return ConcurrencyLimit(limit)
    if method.batch is not None:
        # A device is kept busy by a batch that runs and a full one that waits; twice that is where it begins to shed.
        run = method.batch.max_size * method.batch.at_once
        return ConcurrencyLimit(_settings(run, waiting=float(run)))
    if method.is_async and limit is None:
        return None
    if method.is_async:
        return ConcurrencyLimit()
    return ConcurrencyLimit(_settings(threads, waiting=ConcurrencySettings().alpha))


def _settings(run: int, waiting: float) -> ConcurrencySettings:
    """For a known number of calls that *run* together and about as many *waiting* as keep them fed."""
    waiting = max(waiting, ConcurrencySettings().alpha)
    # A burst at the start is let in; the first call that ends tells what is too much.
    start = max(100, 4 * (run + int(waiting)))
    most = max(1000, 4 * start)
    return ConcurrencySettings(start=start, least=run, most=most, alpha=waiting, beta=2 * waiting, servers=run)
