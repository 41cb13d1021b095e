"""The consumer's end of a connection, at work: futures for calls, streams for streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from steelyard.codec import packed
from steelyard.model import Invocation, LoadReport

from .carrier import Carrier
from .connection import LAST_WORDS_S, Connection
from .frames import PING
from .limits import WireLimits
from .mux import (
    Answered,
    ConsumerSide,
    Draining,
    Ended,
    Event,
    Failed,
    Granted,
    ItemArrived,
    Loaded,
    OpenCall,
    Opened,
    Told,
)
from .socket_carrier import Link
from .streaming import ReplyStream, StreamBuffer

OnProbed = Callable[[int, float], None]
"""(calls in flight at the provider, seconds that one takes at that number)."""


class ConsumerConnection(Connection):
    """One future a call and no task; ``token`` of an open call is that future, and of a stream its buffer. Only a call
    whose caller streams has a task, which sends the items."""

    def __init__(
        self,
        carrier: Carrier | Link,
        limits: WireLimits,
        *,
        node: str,
        identity: str,
        on_load: Callable[[LoadReport], None],
        on_draining: Callable[[], None],
        on_ended: Callable[[str], None],
    ) -> None:
        self._side = side = ConsumerSide(limits, now_s=time.monotonic(), identity=identity, node=node)
        super().__init__(carrier, side)
        self._on_load = on_load
        self._on_draining = on_draining
        self._on_ended = on_ended
        self._is_welcome: asyncio.Future[None] = self._loop.create_future()
        self._senders: dict[int, asyncio.Task[None]] = {}
        self._blocked: dict[int, asyncio.Future[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._probes: dict[object, OnProbed] = {}  # unanswered, by who asked: one PING serves all of them

    @property
    def open_calls(self) -> int:
        return self._side.open_calls

    @property
    def is_draining(self) -> bool:
        return self._side.is_draining

    async def welcomed(self) -> None:
        """Returns when the provider's HELLO has come, or the connection has ended without it."""
        await self._is_welcome

    def submit(self, invocation: Invocation, now_s: float) -> OpenCall:
        """Sends a call; its answer comes to the future ``.token``. Raises the RpcError of a refused call. Who leaves
        before the answer has to say so (``abandon``)."""
        call = self._side.call(self._loop.create_future(), invocation, now_s)
        if self._is_idle or self._outbox.is_burst:
            self._wake(is_lone=self._side.open_calls == 1)
        if invocation.deadline_at < self._armed_at:
            self._arm()
        if invocation.stream is not None:
            how = "" if invocation.spec is None else invocation.spec.compress
            self._senders[call.id] = self._loop.create_task(self._send_items(call, invocation.stream, how))
        return call

    async def packed(self, invocation: Invocation, how: str) -> Invocation:
        """*invocation* with its body compressed, where the provider can unpack it and it pays."""
        body: Any = invocation.body
        if not self._side.may_pack(how, body):
            return invocation
        return msgspec.structs.replace(invocation, body=await packed(how, body))

    def abandon(self, call: OpenCall) -> None:
        """The caller no longer wants *call*. Harmless when it is over."""
        self._side.cancel(call)
        self._wake()
        if self._senders:
            self._stop_sending(call)

    def probe(self, asker: object, on_probed: OnProbed) -> bool:
        """Asks how many calls the provider has and how long one takes. False: *asker* has a probe under way here
        already, and its answer will do. No task waits for it, and the connection's end forgets it."""
        if asker in self._probes:
            return False
        is_first = not self._probes
        self._probes[asker] = on_probed
        if is_first:
            self._outbox.put(PING)
            self._wake()
        return True

    def is_probed(self, asker: object) -> bool:
        """Whether *asker* has a probe under way here."""
        return asker in self._probes

    def consumed(self, call: OpenCall, body: bytes) -> None:
        """A body of the call's stream was read."""
        self._side.consumed(call, body)
        if self._outbox.is_waiting:
            self._wake()

    def _handle(self, data: bytes | memoryview, now_s: float) -> None:
        self._act(self._side.receive(data, now_s))
        if self._side.peer is not None and not self._is_welcome.done():
            self._is_welcome.set_result(None)

    def _handle_placed(self, id_: int, now_s: float) -> None:
        self._act(self._side.placed(id_, now_s))

    def _act(self, events: list[Event]) -> None:
        for event in events:
            if type(event) is Answered:
                call = event.call
                future = call.token
                if not future.done():
                    future.set_result(event.reply)
                if self._senders:
                    self._stop_sending(call)
            else:
                self._other(event)

    def _other(self, event: Any) -> None:
        if isinstance(event, ItemArrived | Ended):
            buffer = event.call.token
            if type(buffer) is not StreamBuffer:
                return  # nobody wanted the stream any more when it was opened
            if isinstance(event, ItemArrived):
                buffer.put(event.body)
            else:
                buffer.end()
                self._stop_sending(event.call)
        elif isinstance(event, Failed):
            self._failed(event)
        elif isinstance(event, Granted):
            self._unblock(event.call.id)
        elif isinstance(event, Opened):
            self._open(event)
        elif isinstance(event, Loaded):
            self._on_load(event.report)
        elif isinstance(event, Told):
            probes, self._probes = self._probes, {}
            for on_probed in probes.values():
                on_probed(event.in_flight, event.latency_s)
        elif isinstance(event, Draining):
            self._on_draining()

    def _open(self, event: Opened) -> None:
        call, future = event.call, event.call.token
        if future.done():
            return  # the caller was cancelled; its task runs soon and abandons the call
        call.token = buffer = StreamBuffer()
        future.set_result(msgspec.structs.replace(event.reply, stream=ReplyStream(self, call, buffer)))

    def _expire(self, now_s: float) -> None:
        for event in self._side.expire(now_s):
            self._failed(event)

    def _failed(self, event: Failed) -> None:
        _fail(event.call.token, event.error)
        if self._senders:
            self._stop_sending(event.call)

    # What callers stream.

    async def _send_items(self, call: OpenCall, stream: AsyncIterator[bytes], how: str) -> None:
        side = self._side
        try:
            async for body in stream:
                while not side.may_send(call):
                    await self._block(call.id)
                side.item(call, await packed(how, body) if how and side.may_pack(how, body) else body)
                self._wake()
            side.end(call)
        except Exception as error:
            # The caller's own iterator failed, or gave what cannot be sent: its call cannot be completed.
            side.cancel(call)
            _fail(call.token, RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
        finally:
            self._senders.pop(call.id, None)
            self._wake()
            aclose = getattr(stream, "aclose", None)
            if aclose is not None:
                await aclose()

    def _stop_sending(self, call: OpenCall) -> None:
        """The call is over, so nobody wants what its caller still has."""
        sender = self._senders.pop(call.id, None)
        if sender is not None:
            self._ending.add(sender)
            sender.add_done_callback(self._ending.discard)
            sender.cancel()

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

    def _after_writing(self) -> None:
        if self._blocked and self._outbox.queued_bytes <= self._side.limits.queued_bytes:
            for call_id in list(self._blocked):
                self._unblock(call_id)

    async def _wind_up(self) -> None:
        if self._ending:
            await asyncio.wait(self._ending, timeout=LAST_WORDS_S)

    def _ended(self, reason: str) -> None:
        self._probes.clear()
        for event in self._side.lost(reason):
            self._failed(event)
        if not self._is_welcome.done():
            self._is_welcome.set_result(None)
        self._on_ended(reason)


def _fail(token: Any, error: BaseException) -> None:
    if type(token) is StreamBuffer:
        token.end(error)
    elif not token.done():
        token.set_exception(error)
