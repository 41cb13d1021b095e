"""The calling side of a connection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from steelyard.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    Overloaded,
    RpcError,
    Unavailable,
    error_for,
)
from steelyard.model import NOTHING, Invocation, LoadReport, Reply

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
    ProtocolError,
    decode_load,
    decode_names,
    encode,
)
from ..limits import WireLimits
from .deadlines import Deadlines
from .events import Answered, Draining, Ended, Event, Failed, ItemArrived, Loaded, Opened
from .side import ITEM_COST_BYTES, NAME_CHARACTERS, Side

_CALL = 2  # Call's tag; the frame is encoded from a tuple, which saves making the struct


class OpenCall:
    """A call under way. ``unread_bytes``: of its stream, arrived and not yet credited."""

    __slots__ = ("credit_bytes", "id", "is_stream", "token", "unread_bytes")

    def __init__(self, call_id: int, token: Any) -> None:
        self.id = call_id
        self.token = token
        self.is_stream = False
        self.unread_bytes = 0
        self.credit_bytes = 0


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
        self._methods = limits.methods

    @property
    def open_calls(self) -> int:
        return len(self._calls)

    def call(self, token: Any, invocation: Invocation, now_s: float) -> OpenCall:
        """Queues a call. Raises the RpcError of a call that is refused here; it has certainly not run."""
        body = invocation.body
        if type(body) is not bytes:
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
        frame = encode((_CALL, call_id, ref, deadline_ms, int(invocation.priority), attachments, body))
        outbox.put(frame, call_id)
        self._calls[call_id] = call = OpenCall(call_id, token)
        if deadline_ms is not None:
            self.deadlines.add(deadline_at, call_id)
        return call

    def cancel(self, call: OpenCall) -> None:
        """Gives a call or the rest of its stream up; nothing more is heard of it. Harmless when it is over."""
        if self._calls.get(call.id) is call:
            del self._calls[call.id]
            self._withdraw(call.id)

    def consumed(self, call: OpenCall, body: bytes) -> None:
        """The reader has taken *body* in. Credit goes back in lumps of half a window, not item by item."""
        call.credit_bytes += len(body) + ITEM_COST_BYTES
        if call.credit_bytes * 2 >= self.limits.stream_window_bytes and call.id in self._calls:
            self.outbox.put(encode(Credit(call.id, call.credit_bytes)))
            call.unread_bytes -= call.credit_bytes
            call.credit_bytes = 0

    def expire(self, now_s: float) -> list[Failed]:
        """The calls whose deadline has passed; the provider is told."""
        failed: list[Failed] = []
        for call_id in self.deadlines.expired(now_s):
            call = self._calls.pop(call_id, None)
            if call is not None:
                has_gone = not self._withdraw(call_id)
                error = DeadlineExceeded("no answer within the deadline", node=self._node, may_have_run=has_gone)
                failed.append(Failed(call, error))
        return failed

    def lost(self, reason: str) -> list[Failed]:
        """The connection is gone: every open call fails, and says truthfully whether it can have run."""
        calls = list(self._calls.values())
        self._calls.clear()
        handed_id = self.outbox.handed_id
        return [Failed(call, Unavailable(reason, node=self._node, may_have_run=call.id <= handed_id)) for call in calls]

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """What a packet says. Raises ProtocolError, whatever the bytes are; the connection is then to be closed."""
        events: list[Event] = []
        for frame in self._hear(data, now_s):
            if type(frame) is Answer:
                self._answer(frame, events)
            else:
                self._other(frame, events)
        return events

    def _answer(self, frame: Answer, events: list[Event]) -> None:
        call = self._calls.get(frame.id)
        if call is None:
            return self._check_known(frame.id)
        attachments = self._reply_names(frame.attachments) if frame.attachments else NOTHING
        if frame.body is None:
            if call.is_stream:
                raise ProtocolError(f"a second REPLY opens stream {frame.id}")
            call.is_stream = True
            events.append(Opened(call, Reply(attachments=attachments, in_flight=frame.in_flight)))
            return None
        del self._calls[frame.id]
        events.append(Answered(call, Reply(body=frame.body, attachments=attachments, in_flight=frame.in_flight)))
        return None

    def _other(self, frame: AnyFrame, events: list[Event]) -> None:
        if isinstance(frame, Item):
            self._item(frame, events)
        elif isinstance(frame, Fail):
            call = self._take(frame.id)
            if call is not None:
                events.append(Failed(call, self._remote_error(frame)))
        elif isinstance(frame, End):
            call = self._take(frame.id)
            if call is not None:
                if not call.is_stream:
                    raise ProtocolError(f"END of call {frame.id}, which is not a stream")
                events.append(Ended(call))
        elif isinstance(frame, Load):
            load = decode_load(frame.report)
            events.append(Loaded(LoadReport(load.utilization, load.in_flight, load.queue_depth, load.age_s)))
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
        call.unread_bytes += len(frame.body) + ITEM_COST_BYTES
        events.append(ItemArrived(call, frame.body))
        return None

    def _take(self, call_id: int) -> OpenCall | None:
        call = self._calls.get(call_id)
        if call is None:
            self._check_known(call_id)
        else:
            del self._calls[call_id]
        return call

    def _check_known(self, call_id: int) -> None:
        # An answer may cross our CANCEL on the wire, so an id that was open once is fine.
        if not 0 < call_id <= self._last_id:
            raise ProtocolError(f"an answer to call {call_id}, which was never made")

    def _withdraw(self, call_id: int) -> bool:
        """Stops a call on its way. True: it had not left."""
        if self.outbox.withdraw(call_id):
            return True
        self.outbox.put(encode(Cancel(call_id)))
        return False

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
