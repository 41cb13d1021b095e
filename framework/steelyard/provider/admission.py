"""Which methods have a concurrency limit, and where each begins.

Methods that run in the handler pool or in batches have one by default: there it is known how many calls run together
and how long each ran, so the law (``guard.ConcurrencyLimit``) has only the queue to find and cannot err. Coroutines
have none by default: how many of them can run together has to be guessed from their latencies, and a method that waits
for a slow database today and a fast one tomorrow would be cut for it. Whoever knows better asks for it with ``limit``.
"""

from __future__ import annotations

from steelyard.guard import ConcurrencyLimit, ConcurrencySettings
from steelyard.service import BoundMethod

Limit = ConcurrencySettings | bool | None
"""None: as described above. False: no limits. Settings: for every method, coroutines too; streams never."""


def limit_for(method: BoundMethod, limit: Limit, threads: int) -> ConcurrencyLimit | None:
    """The law of one method, or None."""
    if limit is False or method.is_stream:
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
