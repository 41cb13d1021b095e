"""Ctrl-C, SIGTERM and a closed terminal all end the demonstration the same way: cancelled, cleaned up, and told."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def main_task_cancelled_by_signals(work: Coroutine[Any, Any, T]) -> T:
    """Awaits *work*; a signal cancels it, and when its clean-up is done this raises KeyboardInterrupt. Further signals
    while it cleans up change nothing: clean-up has bounds of its own."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    is_interrupted = False

    def interrupt() -> None:
        nonlocal is_interrupted
        if not is_interrupted:
            is_interrupted = True
            task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        return await task
    except asyncio.CancelledError:
        if is_interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
