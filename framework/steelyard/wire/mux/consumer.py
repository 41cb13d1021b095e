"""The calling side of a connection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from steelyard.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    Overloaded,
    RpcError,
    Unavailable,
    error_for,
)
from steelyard.model import NOTHING, Invocation, LoadReport, Packed, Reply

from ..frames import (
    DRAIN,
    Answer,
    AnyFrame,
    Cancel,
    Credit,
    Drain,
    End,
    Fail,
    Item,
    Load,
    Method,
    Part,
    Pong,
    ProtocolError,
    decode_load,
    decode_names,
    encode,
)
from ..limits import WireLimits
from .deadlines import Deadlines
from .events import Answered, Draining, Ended, Event, Failed, Granted, ItemArrived, Loaded, Opened, Told
from .outbox import PART_BYTES
from .side import BODY_TYPES, ITEM_COST_BYTES, NAME_CHARACTERS, Side, received, sent

_CALL, _ITEM = 2, 6  # tags; these frames are encoded from tuples, which saves making the structs
_MOST_CREDIT = 2**40


class OpenCall(msgspec.Struct, eq=False):
    """A call under way. ``token`` is its driver's. ``unread_bytes``: of its stream, arrived and not yet credited;
    ``read_bytes``: read since the last credit. ``credit_bytes``: what its caller's own stream may send now (below 1:
    nothing)."""

    id: int
    token: Any
    credit_bytes: int
    has_items: bool
    is_stream: bool = False
    unread_bytes: int = 0
    read_bytes: int = 0


class ConsumerSide(Side):
    """``node`` names the provider in errors."""

    def __init__(self, limits: WireLimits, *, now_s: float, identity: str = "", node: str | None = None) -> None:
        super().__init__(limits, identity, now_s)
        self._calls: dict[int, OpenCall] = {}
        self.deadlines = Deadlines(self._calls)
        self.is_draining = False
        self._node = node
        self._refs: dict[tuple[str, str], int] = {}
        self._last_id = 0
        self._in_flight = limits.in_flight
        self._window_bytes = 0  # of the provider, for what callers stream; its HELLO says it
        self._methods = limits.methods

    @property
    def open_calls(self) -> int:
        return len(self._calls)

    def call(self, token: Any, invocation: Invocation, now_s: float) -> OpenCall:
        """Queues a call. Raises the RpcError of a call that is refused here; it has certainly not run."""
        body: Any = invocation.body
        packing: tuple[int, int] | tuple[()] = ()
        if type(body) is Packed:
            body, packing = sent(body)
        if type(body) not in BODY_TYPES or body is None:
            raise InternalError(f"the wire carries bytes, not a body of type {type(body).__name__}")
        if self.is_draining:
            raise Unavailable("the provider is draining", node=self._node)
        outbox = self.outbox
        if (
            len(body) > self._message_bytes
            or len(self._calls) >= self._in_flight
            or (outbox.queued_bytes and outbox.queued_bytes + len(body) > self.limits.queued_bytes)
        ):
            raise self._overloaded(len(body))
        deadline_at = invocation.deadline_at
        deadline_ms: int | None = None
        if deadline_at != math.inf:
            if deadline_at <= now_s:
                raise DeadlineExceeded("the deadline passed before the call was sent", node=self._node)
            deadline_ms = math.ceil((deadline_at - now_s) * 1000)
        attachments = self._names(invocation.attachments) if invocation.attachments else b""
        ref = self._refs.get((invocation.service, invocation.method)) or self._intern(invocation)
        self._last_id = call_id = self._last_id + 1
        priority, has_items = int(invocation.priority), invocation.stream is not None
        if len(body) > PART_BYTES:
            head = (_CALL, call_id, ref, deadline_ms, priority, attachments, b"", len(body), has_items, *packing)
            outbox.put(encode(head), call_id)
            outbox.put_parts(call_id, body)
        elif has_items or packing:
            head = (_CALL, call_id, ref, deadline_ms, priority, attachments, body, 0, has_items, *packing)
            outbox.put(encode(head), call_id)
        else:
            outbox.put(encode((_CALL, call_id, ref, deadline_ms, priority, attachments, body)), call_id)
        self._calls[call_id] = call = OpenCall(call_id, token, self._window_bytes, has_items)
        if deadline_ms is not None:
            self.deadlines.add(deadline_at, call_id)
        return call

    def cancel(self, call: OpenCall) -> None:
        """Gives a call or the rest of its stream up; nothing more is heard of it. Harmless when it is over."""
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
            self._withdraw(call.id)

    # The caller's own stream.

    def may_send(self, call: OpenCall) -> bool:
        """Whether the call's stream may send an item now. One whose call is over may: its items are dropped."""
        if call.id not in self._calls:
            return True
        return call.credit_bytes > 0 and self.outbox.queued_bytes <= self.limits.queued_bytes

    def item(self, call: OpenCall, body: Any) -> None:
        """Sends bytes or a Packed. Raises Overloaded for what is over the bound, InternalError for anything else."""
        if self._calls.get(call.id) is not call:
            return
        packing: tuple[int, int] | tuple[()] = ()
        if type(body) is Packed:
            body, packing = sent(body)
        if type(body) not in BODY_TYPES:
            raise InternalError(f"the wire carries bytes, not an item of type {type(body).__name__}")
        if len(body) > self._message_bytes:
            raise self._overloaded(len(body))
        call.credit_bytes -= len(body) + ITEM_COST_BYTES
        if len(body) > PART_BYTES:
            self.outbox.put_in_order(call.id, encode((_ITEM, call.id, b"", len(body), *packing)), body)
        elif packing:
            self.outbox.put_in_order(call.id, encode((_ITEM, call.id, body, 0, *packing)))
        else:
            self.outbox.put_in_order(call.id, encode((_ITEM, call.id, body)))

    def end(self, call: OpenCall) -> None:
        """The caller's stream is complete."""
        if self._calls.get(call.id) is call:
            self.outbox.put_in_order(call.id, encode(End(call.id, 0)))

    # The provider's stream.

    def consumed(self, call: OpenCall, body: bytes) -> None:
        """The reader has taken *body* in. Credit goes back in lumps of half a window, not item by item."""
        call.read_bytes += len(body) + ITEM_COST_BYTES
        if call.read_bytes * 2 >= self.limits.stream_window_bytes and call.id in self._calls:
            self.outbox.put(encode(Credit(call.id, call.read_bytes)))
            call.unread_bytes -= call.read_bytes
            call.read_bytes = 0

    def expire(self, now_s: float) -> list[Failed]:
        """The calls whose deadline has passed; the provider is told."""
        failed: list[Failed] = []
        for call_id in self.deadlines.expired(now_s):
            call = self._calls.pop(call_id, None)
            if call is not None:
                has_gone = self.outbox.has_left(call_id)
                self._withdraw(call_id)
                error = DeadlineExceeded("no answer within the deadline", node=self._node, may_have_run=has_gone)
                failed.append(Failed(call, error))
        return failed

    def lost(self, reason: str) -> list[Failed]:
        """The connection is gone: every open call fails, and says truthfully whether it can have run."""
        calls = list(self._calls.values())
        self._calls.clear()
        self._drop_assemblies()
        has_left = self.outbox.has_left
        return [Failed(call, Unavailable(reason, node=self._node, may_have_run=has_left(call.id))) for call in calls]

    def receive(self, data: bytes | memoryview, now_s: float) -> list[Event]:
        """What a packet says. Raises ProtocolError, whatever the bytes are; the connection is then to be closed."""
        events: list[Event] = []
        try:
            for frame in self._hear(data, now_s):
                if type(frame) is Answer:
                    self._answer(frame, events)
                else:
                    self._other(frame, events)
        except ProtocolError:
            # The driver never hears of these endings, so ``lost`` has to tell them: callers would wait for ever.
            for event in events:
                if isinstance(event, Answered | Ended | Failed):
                    self._calls[event.call.id] = event.call
            raise
        return events

    def _answer(self, frame: Answer, events: list[Event]) -> None:
        call = self._calls.get(frame.id)
        if call is None:
            return self._check_known(frame.id)
        if frame.how:
            self._check_raw(frame)
        if call.is_stream:
            raise ProtocolError(f"a REPLY to call {frame.id}, whose stream is open")
        attachments = self._reply_names(frame.attachments) if frame.attachments else NOTHING
        if frame.body is None:
            call.is_stream = True
            events.append(Opened(call, Reply(attachments=attachments, in_flight=frame.in_flight)))
            return None
        if frame.more:
            return self._announced(frame)
        del self._calls[frame.id]
        self._forget(frame.id)
        events.append(
            Answered(
                call, Reply(None, received(frame) if frame.how else frame.body, None, attachments, frame.in_flight)
            )
        )
        return None

    def _check_raw(self, frame: Answer | Item) -> None:
        self._check_packing(frame)
        if frame.raw > self.limits.message_bytes:
            raise ProtocolError(f"a compressed body of {frame.raw} bytes; the bound is {self.limits.message_bytes}")

    def _announced(self, frame: Answer | Item) -> None:
        """A body that follows in parts."""
        if frame.more > self.limits.message_bytes:
            raise ProtocolError(f"a body of {frame.more} bytes; the bound is {self.limits.message_bytes}")
        self._assemble(frame)

    def _other(self, frame: AnyFrame, events: list[Event]) -> None:
        if isinstance(frame, Item):
            self._item(frame, events)
        elif isinstance(frame, Part):
            self._take_part(frame, events)
        elif isinstance(frame, Credit):
            self._credit(frame, events)
        elif isinstance(frame, Fail):
            call = self._take(frame.id)
            if call is not None:
                events.append(Failed(call, self._remote_error(frame)))
        elif isinstance(frame, End):
            call = self._calls.get(frame.id)
            if call is not None and (not call.is_stream or frame.id in self._assemblies):
                raise ProtocolError(f"END of call {frame.id}, which has no stream to end")
            call = self._take(frame.id)
            if call is not None:
                events.append(Ended(call))
        elif isinstance(frame, Load):
            load = decode_load(frame.report)
            events.append(Loaded(LoadReport(*msgspec.structs.astuple(load))))
        elif isinstance(frame, Pong):
            self.outbox.ponged(self._heard_at)
            # None, and a latency of None, come from a provider that is older than probes: it lives, and tells nothing.
            if frame.in_flight is not None and frame.latency_s is not None:
                events.append(Told(frame.in_flight, frame.latency_s))
        elif isinstance(frame, Drain):
            if not self.is_draining:
                self.is_draining = True
                self.outbox.put(DRAIN)
                events.append(Draining())
        else:
            self._common(frame)

    def _item(self, frame: Item, events: list[Event]) -> None:
        call = self._calls.get(frame.id)
        if call is None:
            return self._check_known(frame.id)
        if not call.is_stream:
            raise ProtocolError(f"ITEM for call {frame.id}, which is not a stream")
        if call.unread_bytes >= self.limits.stream_window_bytes:
            raise ProtocolError(f"stream {frame.id} was sent beyond its credit")
        call.unread_bytes += len(frame.body) + frame.more + ITEM_COST_BYTES
        if frame.how:
            self._check_raw(frame)
        if frame.more:
            return self._announced(frame)
        events.append(ItemArrived(call, received(frame)))
        return None

    def _take_part(self, part: Part, events: list[Event]) -> None:
        frame = self._part(part)
        if frame is not None:
            self._arrived(frame, events)

    def _arrived(self, frame: Any, events: list[Event]) -> None:
        if type(frame) is Answer:
            self._answer(frame, events)
        else:
            call = self._calls.get(frame.id)
            if call is not None:
                events.append(ItemArrived(call, received(frame)))

    def _credit(self, frame: Credit, events: list[Event]) -> None:
        if not 0 < frame.amount <= _MOST_CREDIT:
            raise ProtocolError(f"a credit of {frame.amount} bytes")
        call = self._calls.get(frame.id)
        if call is None:
            return self._check_known(frame.id)
        if not call.has_items:
            raise ProtocolError(f"CREDIT for call {frame.id}, whose caller streams nothing")
        call.credit_bytes += frame.amount
        if call.credit_bytes > _MOST_CREDIT:
            raise ProtocolError(f"the credit of call {frame.id} overflows")
        events.append(Granted(call))
        return None

    def _take(self, call_id: int) -> OpenCall | None:
        call = self._calls.get(call_id)
        if call is None:
            self._check_known(call_id)
        else:
            del self._calls[call_id]
            self._forget(call_id)
        return call

    def _forget(self, call_id: int) -> None:
        """The call is over: what is still to be sent of it or arrives in parts is not wanted."""
        self.outbox.drop(call_id)
        if self._assemblies:
            self._drop_assembly(call_id)

    def _check_known(self, call_id: int) -> None:
        # An answer may cross our CANCEL on the wire, so an id that was open once is fine.
        if not 0 < call_id <= self._last_id:
            raise ProtocolError(f"an answer to call {call_id}, which was never made")

    def _withdraw(self, call_id: int) -> None:
        """Stops a call on its way, or at the provider."""
        self._forget(call_id)
        if not self.outbox.withdraw(call_id):
            self.outbox.put(encode(Cancel(call_id)))

    def _remote_error(self, frame: Fail) -> RpcError:
        return error_for(
            frame.status,
            frame.message,
            may_have_run=frame.has_started,
            node=self._node,
            is_remote=True,
            details=frame.details,
        )

    def _meet(self, hello: Any) -> None:
        super()._meet(hello)
        self._in_flight = min(self.limits.in_flight, hello.in_flight)
        self._methods = min(self.limits.methods, hello.methods)
        self._window_bytes = hello.stream_window_bytes

    def _overloaded(self, body_bytes: int) -> Overloaded:
        if body_bytes > self._message_bytes:
            text = f"a body of {body_bytes} bytes; the bound is message_bytes={self._message_bytes}"
        elif len(self._calls) >= self._in_flight:
            text = f"{len(self._calls)} calls are open on this connection; the bound is in_flight={self._in_flight}"
        else:
            text = (
                f"{self.outbox.queued_bytes} bytes wait to be written on this connection; "
                f"the bound is queued_bytes={self.limits.queued_bytes}"
            )
        return Overloaded(text, node=self._node)

    def _reply_names(self, data: bytes) -> Mapping[str, str]:
        if len(data) > self.limits.attachment_bytes:
            raise ProtocolError(f"{len(data)} bytes of attachments in a reply")
        return decode_names(data, most=self.limits.attachments)

    def _intern(self, invocation: Invocation) -> int:
        service, method = invocation.service, invocation.method
        if len(self._refs) >= self._methods:
            raise Overloaded(
                f"{len(self._refs)} methods are in use on this connection; the bound is methods={self._methods}",
                node=self._node,
            )
        if len(service) > NAME_CHARACTERS or len(method) > NAME_CHARACTERS:
            raise InvalidArgument(f"a service or method name of more than {NAME_CHARACTERS} characters")
        ref = len(self._refs) + 1
        try:
            frame = encode(Method(ref, service, method))
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"a service or method name that cannot be sent: {error}") from error
        self._refs[service, method] = ref
        self.outbox.put(frame)
        return ref
