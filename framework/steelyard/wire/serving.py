"""The provider's end of connections, at work: a task a call, and what all connections of one provider share."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import Any

import msgspec

from steelyard.codec import packed
from steelyard.errors import CallCancelled, DeadlineExceeded, RemoteError, RpcError
from steelyard.invoke import Invoker
from steelyard.model import Invocation, LoadReport, Reply

from .carrier import Carrier
from .connection import Connection
from .frames import encode_load
from .limits import WireLimits
from .mux import Called, Cancelled, Completed, Credited, Drained, Event, InFlight, ProviderSide, Received
from .mux.provider import load_frame
from .plain import encode_report
from .socket_carrier import Link
from .strangers import FAIR_SHARE, Strangers
from .streaming import ReceivedStream, StreamBuffer
from .tally import Tally

log = logging.getLogger(__name__)

# After a call was cancelled its handler may still clean up; a closing listener waits so long for that.
CLEAN_UP_S = 2.0
# It goes out with every plain reply; clients take header lists of 8 KiB.
_TRAILER_BYTES = 2048

# A handler's first step without a turn of the loop, where Python can do that properly.
_EAGER: dict[str, Any] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


class Acceptor:
    """A listener without its transport: runs what arrives on any carrier, and counts, drains and closes."""

    def __init__(self, invoker: Invoker, *, limits: WireLimits, identity: str = "") -> None:
        self.invoker = invoker
        self.limits = limits
        self.identity = identity
        self.tally = Tally()
        self.in_flight = InFlight(self.tally.latencies.estimate, self.tally.refused)
        self.is_draining = False
        self.connections: set[ProviderConnection] = set()
        self.refused = 0  # connections, for want of a place
        self._strangers: Strangers[ProviderConnection] = Strangers(
            limits.strangers, limits.connect_timeout_s * FAIR_SHARE
        )
        self._lingering: set[asyncio.Task[Any]] = set()
        self._calm: asyncio.Event | None = None
        self._empty = asyncio.Event()
        self._latest_load: tuple[LoadReport, float] | None = None
        self.load_trailer = b""  # the latest report as ORCA, for the replies to plain calls

    async def serve(self, carrier: Carrier | Link) -> str:
        """Serves one connection until it ends; returns why it did."""
        if len(self.connections) >= self.limits.connections:
            self.refused += 1
            await carrier.close()
            return f"{self.limits.connections} connections are served already"
        connection = ProviderConnection(carrier, self)
        self.connections.add(connection)
        leaves = self._strangers.add(connection, time.monotonic())
        if leaves is not None:
            self.refused += 1
            leaves.stop(f"{self.limits.strangers} connections have not said HELLO yet")
        self._empty.clear()
        if self._latest_load is not None:
            report, at_s = self._latest_load
            connection.load(load_frame(_encoded(report, older_by_s=time.monotonic() - at_s)))
        if self.is_draining:
            connection.drain()
        try:
            return await connection.run()
        finally:
            self._strangers.discard(connection)
            self.connections.discard(connection)
            if not self.connections:
                self._empty.set()
            self.check_calm()

    def introduced(self, connection: ProviderConnection) -> None:
        """Its HELLO has come."""
        self._strangers.discard(connection)

    def publish_load(self, report: LoadReport, load: float | None = None) -> None:
        """Pushes *report* to every consumer, now and when one connects. Raises ValueError for one above 16 KiB. *load*:
        the whole node's in one number, for those who want no more than that."""
        frame = load_frame(_encoded(report))
        orca = encode_report(report, load)
        self.load_trailer = orca if len(orca) <= _TRAILER_BYTES else b""
        self._latest_load = (report, time.monotonic())
        for connection in self.connections:
            connection.load(frame)

    async def drain(self, timeout_s: float) -> bool:
        """Takes no new calls and waits for the accepted ones; False when some still run after *timeout_s* seconds.

        A call that crosses the DRAIN on the wire is served: it is refused only after its consumer has said that it
        understood, and so in practice never. A consumer that says nothing (stopped, half-open) is waited for no
        longer than a heartbeat interval.
        """
        self.is_draining = True
        self._calm = asyncio.Event()
        for connection in self.connections:
            connection.drain()
        loop = asyncio.get_running_loop()
        patience = loop.call_later(min(self.limits.heartbeat_interval_s, timeout_s / 2), self._lose_patience)
        self.check_calm()
        try:
            async with asyncio.timeout(timeout_s):
                await self._calm.wait()
        except TimeoutError:
            return False
        finally:
            patience.cancel()
        return True

    async def close(self) -> None:
        """Ends every connection and cancels what runs; waits CLEAN_UP_S seconds for handlers to clean up."""
        for connection in list(self.connections):
            connection.stop("the provider has closed")
        if self.connections:
            await self._empty.wait()
        if self._lingering:
            _, stubborn = await asyncio.wait(self._lingering, timeout=CLEAN_UP_S)
            if stubborn:
                log.warning("%d handlers still run after they were cancelled", len(stubborn))

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Owns a cancelled call's task after its connection is gone."""
        self._lingering.add(task)
        task.add_done_callback(self._lingering.discard)

    def check_calm(self) -> None:
        if (
            self._calm is not None
            and self.in_flight.count == 0
            and all(connection.has_drained and not connection.is_sending for connection in self.connections)
        ):
            self._calm.set()

    def _lose_patience(self) -> None:
        for connection in self.connections:
            connection.has_drained = True
        self.check_calm()


class ProviderConnection(Connection):
    """``_tasks`` holds the tasks that have started: one that has not can simply find its call gone when it does."""

    def __init__(self, carrier: Carrier | Link, acceptor: Acceptor) -> None:
        self._side = side = ProviderSide(
            acceptor.limits,
            now_s=time.monotonic(),
            identity=acceptor.identity,
            in_flight=acceptor.in_flight,
            caller=getattr(carrier, "caller", None),
        )
        super().__init__(carrier, side)
        self._acceptor = acceptor
        self._invoker = acceptor.invoker
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._blocked: dict[int, asyncio.Future[None]] = {}
        self._paused: asyncio.Future[None] | None = None
        self._inbound: dict[int, StreamBuffer] = {}  # of calls whose callers stream
        self.has_drained = False
        self._hello: asyncio.TimerHandle | None = self._loop.call_later(acceptor.limits.connect_timeout_s, self._late)

    def load(self, frame: bytes) -> None:
        self._side.load(frame)
        self._wake()

    def drain(self) -> None:
        self._side.drain()
        self._wake()

    @property
    def is_sending(self) -> bool:
        """Large replies of calls that are over are on their way."""
        return self._outbox.has_bodies

    def _handle(self, data: bytes | memoryview, now_s: float) -> None:
        self._act(self._side.receive(data, now_s))
        if self._hello is not None and self._side.peer is not None:
            self._hello.cancel()
            self._hello = None
            self._acceptor.introduced(self)

    def _handle_placed(self, id_: int, now_s: float) -> None:
        self._act(self._side.placed(id_, now_s))

    def _act(self, events: list[Event]) -> None:
        serve = self._serve
        for event in events:
            if type(event) is Called:
                invocation = event.invocation
                if event.has_items:
                    invocation = self._with_stream(event.id, invocation)
                # Until it starts the loop holds it, and then ``_tasks`` does.
                asyncio.Task(serve(event.id, invocation), loop=self._loop, **_EAGER)
                if invocation.deadline_at < self._armed_at:
                    self._arm()
            elif isinstance(event, Cancelled):
                self._cancel(event.id)
            elif isinstance(event, Received):
                buffer = self._inbound.get(event.id)
                if buffer is not None:
                    buffer.put(event.body)
            elif isinstance(event, Completed):
                buffer = self._inbound.get(event.id)
                if buffer is not None:
                    buffer.end()
            elif isinstance(event, Credited):
                self._unblock(event.id)
            elif isinstance(event, Drained):
                self.has_drained = True
                self._acceptor.check_calm()

    def _late(self) -> None:
        self.stop(f"no HELLO within {self._acceptor.limits.connect_timeout_s:g} s")

    def _with_stream(self, call_id: int, invocation: Invocation) -> Invocation:
        self._inbound[call_id] = buffer = StreamBuffer()

        def consumed(body: bytes) -> None:
            self._side.consumed(call_id, body)
            if self._outbox.is_waiting:
                self._wake()

        return msgspec.structs.replace(invocation, stream=ReceivedStream(buffer, consumed))

    async def _serve(self, call_id: int, invocation: Invocation) -> None:
        side = self._side
        met, began_s = self._acceptor.in_flight.count - 1, time.monotonic()
        problem: BaseException | None = None
        try:
            if invocation.deadline_at <= began_s:
                raise DeadlineExceeded("the deadline passed before the call ran")
            if not side.is_live(call_id):
                raise CallCancelled("the call was given up before it ran")
            self._tasks[call_id] = asyncio.current_task()  # type: ignore[assignment]
            reply = await self._invoker(invocation)
            if reply.stream is None:
                body = reply.body
                if reply.packing and body is not None and side.may_pack(reply.packing, body):
                    reply = msgspec.structs.replace(reply, body=await packed(reply.packing, body))
                side.reply(call_id, reply)
            else:
                await self._pump(call_id, reply)
        except RpcError as error:
            problem = error
            side.fail(call_id, error)
        except asyncio.CancelledError as error:
            problem = error
            # Where we asked for it the call is over and this answers nobody.
            side.fail(call_id, CallCancelled("the handler was cancelled", may_have_run=True))
            raise
        except Exception as error:
            problem = error
            log.exception("%s/%s raised", invocation.service, invocation.method)
            side.fail(call_id, RemoteError(f"{type(error).__name__}: {error}", may_have_run=True))
        except BaseException as error:
            problem = error
            side.fail(call_id, RemoteError(f"{type(error).__name__}: the provider stops", may_have_run=True))
            raise
        finally:
            self._tasks.pop(call_id, None)
            self._acceptor.tally.ended(met, began_s, invocation.deadline_at, problem)
            if self._inbound:
                self._leave(call_id)
            side.finished(call_id)
            if self._is_idle or self._outbox.is_burst:
                self._wake(is_lone=side.running == 0)
            if self._acceptor.is_draining:
                self._acceptor.check_calm()

    def _leave(self, call_id: int) -> None:
        """The handler is over; whoever still reads its caller's stream learns that."""
        buffer = self._inbound.pop(call_id, None)
        if buffer is not None and not buffer.is_over:
            buffer.end(CallCancelled("the call is over, and so is its caller's stream", may_have_run=True))

    async def _pump(self, call_id: int, reply: Reply) -> None:
        side, stream, how = self._side, reply.stream, reply.packing
        assert stream is not None
        side.open_stream(call_id, reply)
        self._wake()
        try:
            async for body in stream:
                while not side.may_send(call_id):
                    await self._block(call_id)
                if how and side.may_pack(how, body):
                    body = await packed(how, body)
                if not side.is_live(call_id):
                    return
                side.item(call_id, body)
                self._wake()
            side.end(call_id)
        finally:
            aclose = getattr(stream, "aclose", None)
            if aclose is not None:
                await aclose()

    async def _block(self, call_id: int) -> None:
        self._blocked[call_id] = waiter = self._loop.create_future()
        try:
            await waiter
        finally:
            self._blocked.pop(call_id, None)

    def _unblock(self, call_id: int) -> None:
        waiter = self._blocked.get(call_id)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _cancel(self, call_id: int) -> None:
        task = self._tasks.get(call_id)
        if task is not None:
            task.cancel()

    def _expire(self, now_s: float) -> None:
        for call_id in self._side.expire(now_s):
            self._cancel(call_id)

    def _is_full(self) -> bool:
        return self._side.is_full()

    async def _until_not_full(self) -> None:
        while self._side.is_full():
            self._paused = self._loop.create_future()
            await self._paused

    def _after_writing(self) -> None:
        if self._acceptor.is_draining:
            self._acceptor.check_calm()
        if self._blocked or self._paused is not None:
            if self._side.is_full():
                return
            if self._paused is not None:
                paused, self._paused = self._paused, None
                if not paused.done():
                    paused.set_result(None)
            for call_id in list(self._blocked):
                self._unblock(call_id)

    def _ended(self, reason: str) -> None:
        if self._hello is not None:
            self._hello.cancel()
        self._side.abandon()
        for task in list(self._tasks.values()):
            task.cancel()
            self._acceptor.adopt(task)


def _encoded(report: LoadReport, *, older_by_s: float = 0.0) -> bytes:
    return encode_load(
        report.utilization,
        report.in_flight,
        report.queue_depth,
        report.age_s + older_by_s,
        report.calls_per_s,
        report.errors_per_s,
    )
