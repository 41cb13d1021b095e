"""Drives one side of the protocol over one carrier: reading, writing and a timer.

What is common to both sides. Whoever writes takes what waits at that moment, so batches form by themselves under load;
the timer is one for all deadlines and the heartbeat. The connection ends once, for the first reason that comes, and
``run`` has then ended its tasks.

A Carrier (gRPC, memory) is awaited, which takes a task for each direction. A Link (sockets) calls in from the loop and
is written to without waiting: no tasks, and one turn of the loop less in each direction.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from .carrier import Carrier, CarrierLost
from .frames import ProtocolError
from .mux.consumer import ConsumerSide
from .mux.outbox import PART_BYTES
from .mux.provider import ProviderSide
from .socket_carrier import Link

log = logging.getLogger(__name__)

# How long the last frames (BYE) may take to leave before the carrier is closed over them.
LAST_WORDS_S = 1.0


class Connection:
    """``_handle`` and ``_expire`` are the two sides' own; ``_ended`` is called once, before anything is awaited."""

    def __init__(self, carrier: Carrier | Link, side: ConsumerSide | ProviderSide) -> None:
        self._carrier = carrier
        self._link = carrier if isinstance(carrier, Link) else None
        self._any_side = side
        self._outbox = side.outbox
        self._outbox.is_paced = True
        self._loop = asyncio.get_running_loop()
        self._is_idle = self._link is not None  # nothing is being written: ``_wake`` has to say so
        self._idle_writer: asyncio.Future[None] | None = None
        self._farewell: str | None = None
        self._is_finishing = False
        self._is_reading_paused = False
        self._end: asyncio.Future[str] = self._loop.create_future()
        self.has_ended = False  # asked before each call, so it is no property
        self._beat_at = time.monotonic() + side.limits.heartbeat_interval_s
        self._armed_at = self._beat_at
        self._timer = self._loop.call_later(side.limits.heartbeat_interval_s, self._on_timer)

    def stop(self, reason: str) -> None:
        """Asks ``run`` to end the connection. The first reason counts."""
        self.has_ended = True
        if not self._end.done():
            self._end.set_result(reason)

    async def run(self) -> str:
        """Serves the connection until it ends, and returns why it did. Cancelling it ends the connection."""
        tasks: tuple[asyncio.Task[None], ...] = ()
        if self._link is None:
            tasks = (self._loop.create_task(self._read()), self._loop.create_task(self._write()))
        else:
            self._link.attach(self)
            self._wake()
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
            try:
                if tasks:
                    tasks[0].cancel()
                    self._wake()
                    await _end_tasks(*tasks)
                elif self._farewell is not None:
                    self._flush()
                await self._wind_up()
            finally:
                await self._carrier.close()
        return reason

    # For the two sides.

    def _handle(self, data: bytes | memoryview, now_s: float) -> None:
        raise NotImplementedError

    def _handle_placed(self, id_: int, now_s: float) -> None:
        raise NotImplementedError

    def _expire(self, now_s: float) -> None:
        raise NotImplementedError

    def _ended(self, reason: str) -> None:
        raise NotImplementedError

    async def _wind_up(self) -> None:
        """What a side has still to wait for when it has ended."""

    def _is_full(self) -> bool:
        """Whether this side must not read now."""
        return False

    async def _until_not_full(self) -> None:
        raise NotImplementedError

    def _after_writing(self) -> None:
        """A packet has left."""

    def _wake(self, *, is_lone: bool = False) -> None:
        """There may be something to write. A link is written to in this turn of the loop where nobody is there to share
        the packet (*is_lone*), and where a crowd has gathered enough for one; else at the end of the turn."""
        if not self._is_idle:
            if self._link is not None and self._outbox.is_burst:
                self._flush()
            return
        self._is_idle = False
        if self._idle_writer is not None:
            if not self._idle_writer.done():
                self._idle_writer.set_result(None)
        elif is_lone and self._link is not None:
            self._flush()
        else:
            self._loop.call_soon(self._flush)

    # A Link calls these.

    def packet(self, data: memoryview) -> None:
        if not self.has_ended:
            self._take_in(self._handle, data)

    def place(self, id_: int, size: int) -> memoryview | None:
        return None if self.has_ended else self._any_side.place(id_, size)

    def placed(self, id_: int) -> None:
        if not self.has_ended:
            self._take_in(self._handle_placed, id_)

    def _take_in(self, handle: Callable[[Any, float], None], what: Any) -> None:
        try:
            handle(what, time.monotonic())
        except ProtocolError as error:
            self._broken(error)
        except Exception as error:
            log.exception("closing a connection after an error of this side")
            self.stop(f"{type(error).__name__}: {error}")
        if self._is_idle and self._outbox.is_waiting:
            self._wake()
        if self._is_full() and self._link is not None:
            # No PONG is read now.
            self._is_reading_paused, self._outbox.is_paced = True, False
            self._link.pause()
            self._wake()

    def lost(self, error: Exception | None) -> None:
        if error is None:
            self.stop(self._any_side.parting or "the other side closed the connection")
        elif isinstance(error, ProtocolError):
            self._broken(error)
        else:
            self.stop(self._any_side.parting or str(error))

    def writable(self) -> None:
        self._flush()

    def _flush(self) -> None:
        """Gives the link what waits, in the turn of the loop in which it came up or in the next one."""
        link, outbox = self._link, self._outbox
        assert link is not None
        while not link.is_congested:
            if outbox.has_bodies:
                packets = outbox.take_apart(time.monotonic())
                if not packets:
                    self._is_idle = True
                    break
                link.write_packets(packets)
                self._after_writing()
                # Let the loop look at what has come before more of a large body leaves.
                self._loop.call_soon(self._flush)
                break
            pieces, count, size = outbox.take_pieces()
            if not count:
                self._is_idle = True
                break
            link.write(pieces, count, size)
            self._after_writing()
            if size > PART_BYTES:
                # As with large bodies.
                self._loop.call_soon(self._flush)
                break
        if self._is_reading_paused and not self._is_full():
            self._is_reading_paused, outbox.is_paced = False, True
            link.resume()

    def _broken(self, error: ProtocolError) -> None:
        log.warning("closing a connection: %s", error)
        self._farewell = str(error)
        self.stop(str(error))

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
        if not self.has_ended:
            self._arm()

    async def _read(self) -> None:
        assert not isinstance(self._carrier, Link)
        receive, handle, monotonic, outbox = self._carrier.receive, self._handle, time.monotonic, self._outbox
        try:
            while not self.has_ended:
                if self._is_full():
                    outbox.is_paced = False  # no PONG is read now
                    self._wake()
                    await self._until_not_full()
                    outbox.is_paced = True
                data = await receive()
                if data is None:
                    self.stop(self._any_side.parting or "the other side closed the connection")
                    return
                handle(data, monotonic())
                if outbox.is_waiting and self._is_idle:
                    self._wake()
        except CarrierLost as error:
            self.stop(self._any_side.parting or str(error))
        except ProtocolError as error:
            self._broken(error)
        except Exception as error:
            log.exception("closing a connection after an error of this side")
            self.stop(f"{type(error).__name__}: {error}")

    async def _write(self) -> None:
        assert not isinstance(self._carrier, Link)
        send, outbox = self._carrier.send, self._outbox
        try:
            while True:
                data = outbox.take(time.monotonic())
                if data is not None:
                    await send(data)
                    self._after_writing()
                elif self._is_finishing:
                    return
                else:
                    self._idle_writer = idle = self._loop.create_future()
                    self._is_idle = True
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
