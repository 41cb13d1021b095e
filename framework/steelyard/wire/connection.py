"""Drives one side of the protocol over one carrier: a reader, a writer and a timer.

What is common to both sides. The writer takes what waits when it wakes, so batches form by themselves under load; the
timer is one for all deadlines and the heartbeat. The connection ends once, for the first reason that comes, and
``run`` has then ended its tasks.
"""

from __future__ import annotations

import asyncio
import logging
import time

from .carrier import Carrier, CarrierLost
from .frames import ProtocolError
from .mux.consumer import ConsumerSide
from .mux.provider import ProviderSide

log = logging.getLogger(__name__)

# How long the last frames (BYE) may take to leave before the carrier is closed over them.
LAST_WORDS_S = 1.0


class Connection:
    """``_handle`` and ``_expire`` are the two sides' own; ``_ended`` is called once, before anything is awaited."""

    def __init__(self, carrier: Carrier, side: ConsumerSide | ProviderSide) -> None:
        self._carrier = carrier
        self._any_side = side
        self._outbox = side.outbox
        self._loop = asyncio.get_running_loop()
        self._idle_writer: asyncio.Future[None] | None = None
        self._farewell: str | None = None
        self._is_finishing = False
        self._end: asyncio.Future[str] = self._loop.create_future()
        self._beat_at = time.monotonic() + side.limits.heartbeat_interval_s
        self._armed_at = self._beat_at
        self._timer = self._loop.call_later(side.limits.heartbeat_interval_s, self._on_timer)

    @property
    def has_ended(self) -> bool:
        return self._end.done()

    def stop(self, reason: str) -> None:
        """Asks ``run`` to end the connection. The first reason counts."""
        if not self._end.done():
            self._end.set_result(reason)

    async def run(self) -> str:
        """Serves the connection until it ends, and returns why it did. Cancelling it ends the connection."""
        reader = self._loop.create_task(self._read())
        writer = self._loop.create_task(self._write())
        reason = "cancelled"
        try:
            reason = await self._end
        finally:
            self.stop(reason)
            self._timer.cancel()
            self._ended(reason)
            # Calls that have just been told that they did not run must not leave after that.
            self._outbox.clear()
            if self._farewell is not None:
                self._any_side.bye(self._farewell)
            self._is_finishing = True
            reader.cancel()
            self._wake()
            try:
                await _end_tasks(reader, writer)
            finally:
                await self._carrier.close()
        return reason

    # For the two sides.

    def _handle(self, data: bytes, now_s: float) -> None:
        raise NotImplementedError

    def _expire(self, now_s: float) -> None:
        raise NotImplementedError

    def _ended(self, reason: str) -> None:
        raise NotImplementedError

    def _is_full(self) -> bool:
        """Whether this side must not read now."""
        return False

    async def _until_not_full(self) -> None:
        raise NotImplementedError

    def _after_writing(self) -> None:
        """A packet has left."""

    def _wake(self) -> None:
        """There may be something to write."""
        idle = self._idle_writer
        if idle is not None:
            self._idle_writer = None
            if not idle.done():
                idle.set_result(None)

    def _arm(self) -> None:
        """Sets the timer to the earliest deadline or heartbeat; to be called when one comes before ``_armed_at``."""
        next_at = self._any_side.deadlines.next_at()
        self._timer.cancel()
        self._armed_at = self._beat_at if next_at is None else min(next_at, self._beat_at)
        self._timer = self._loop.call_later(max(0.0, self._armed_at - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        now_s = time.monotonic()
        self._expire(now_s)
        if now_s >= self._beat_at - 0.001:
            beat_at = self._any_side.beat(now_s)
            if beat_at is None:
                interval_s = self._any_side.limits.heartbeat_interval_s
                self.stop(f"nothing was heard for three heartbeats of {interval_s:g} s")
                return
            self._beat_at = beat_at
        if self._outbox.is_waiting:
            self._wake()
        if not self._end.done():
            self._arm()

    async def _read(self) -> None:
        receive, handle, monotonic, outbox = self._carrier.receive, self._handle, time.monotonic, self._outbox
        try:
            while not self._end.done():
                if self._is_full():
                    await self._until_not_full()
                data = await receive()
                if data is None:
                    self.stop(self._any_side.parting or "the other side closed the connection")
                    return
                handle(data, monotonic())
                if outbox.is_waiting and self._idle_writer is not None:
                    self._wake()
        except CarrierLost as error:
            self.stop(self._any_side.parting or str(error))
        except ProtocolError as error:
            log.warning("closing a connection: %s", error)
            self._farewell = str(error)
            self.stop(str(error))
        except Exception as error:
            log.exception("closing a connection after an error of this side")
            self.stop(f"{type(error).__name__}: {error}")

    async def _write(self) -> None:
        send, outbox = self._carrier.send, self._outbox
        try:
            while True:
                data = outbox.take()
                if data is not None:
                    await send(data)
                    self._after_writing()
                elif self._is_finishing:
                    return
                else:
                    self._idle_writer = idle = self._loop.create_future()
                    await idle
        except CarrierLost as error:
            # Give the reader the chance to find the peer's own words for it.
            self._loop.call_later(0.05, self.stop, str(error))
        except Exception as error:
            log.exception("closing a connection after an error of this side")
            self.stop(f"{type(error).__name__}: {error}")


async def _end_tasks(reader: asyncio.Task[None], writer: asyncio.Task[None]) -> None:
    """Lets the writer finish for a moment, and waits for both tasks even when the waiting is itself cancelled."""
    try:
        await asyncio.wait((writer,), timeout=LAST_WORDS_S)
    finally:
        writer.cancel()
        await asyncio.gather(reader, writer, return_exceptions=True)
