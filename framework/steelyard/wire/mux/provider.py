"""The serving side of a connection."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from steelyard.errors import InvalidArgument, Overloaded, RpcError, Status
from steelyard.guard import Rate
from steelyard.model import NOTHING, Identity, Invocation, Packed, Reply

from ..frames import (
    DRAIN,
    AnyFrame,
    Call,
    Cancel,
    Credit,
    Drain,
    End,
    Fail,
    Hello,
    Item,
    Load,
    Method,
    Part,
    Pong,
    ProtocolError,
    decode_names,
    encode,
)
from ..limits import WireLimits
from .deadlines import Deadlines
from .events import Called, Cancelled, Completed, Credited, Drained, Event, Received
from .outbox import PART_BYTES
from .side import BODY_TYPES, ITEM_COST_BYTES, NAME_CHARACTERS, Side, received, sent

MESSAGE_CHARACTERS = 4096
_ANSWER, _ITEM = 3, 6  # tags; these frames are encoded from tuples, as CALL is
_MOST_CREDIT = 2**40


class InFlight:
    """How many calls the provider has, over all its connections; every answer tells it. ``latency_s`` says how long one
    takes at that number, ``refused`` hears of each call that a bound of the protocol turns away."""

    __slots__ = ("count", "latency_s", "refused")

    def __init__(
        self, latency_s: Callable[[int], float] | None = None, refused: Callable[[], None] = lambda: None
    ) -> None:
        self.count = 0
        self.latency_s = latency_s
        self.refused = refused


class LiveCall(msgspec.Struct, eq=False, gc=False):
    """A call that still wants an answer. ``credit_bytes``: what its stream may send now (below 1: nothing);
    ``has_items``: its caller's stream is not complete; ``unread_bytes`` of that: arrived and not yet credited."""

    credit_bytes: int
    has_items: bool
    is_stream: bool = False
    unread_bytes: int = 0
    read_bytes: int = 0


class ProviderSide(Side):
    """Answers to calls that are no longer live (cancelled, expired) are dropped here, so a driver need not ask.

    A call is *live* while it wants an answer and *running* until its driver says ``finished``. The bound is on the
    running ones: a peer that calls and cancels in a row (HTTP/2's "rapid reset") gains nothing.
    """

    def __init__(
        self,
        limits: WireLimits,
        *,
        now_s: float,
        identity: str = "",
        in_flight: InFlight | None = None,
        caller: Identity | None = None,
    ) -> None:
        super().__init__(limits, identity, now_s)
        self._caller = caller
        self._rate = Rate(limits.calls_per_s, now_s) if limits.calls_per_s else None
        self._live: dict[int, LiveCall] = {}
        self.deadlines = Deadlines(self._live)
        self._total = in_flight or InFlight()
        self._methods: dict[int, tuple[str, str]] = {}
        self._running = 0
        self._last_id = 0
        self._has_drained = False
        self._has_refused = False  # a reply, because others wait
        self._window_bytes = 0
        self._assembling_bytes = 0
        # What the compressed bodies of running calls become: a few bytes must not be able to ask for all memory.
        self._raw_bytes = 0
        self._raw_of: dict[int, int] = {}
        self._deadlines_at: dict[int, float] = {}  # of calls whose bodies arrive in parts

    @property
    def running(self) -> int:
        return self._running

    def _meet(self, hello: Hello) -> None:
        super()._meet(hello)
        self._window_bytes = hello.stream_window_bytes

    def is_live(self, call_id: int) -> bool:
        return call_id in self._live

    def is_full(self) -> bool:
        """Too much waits to be written: the driver should stop reading until it does not. That begins with the first
        reply that had to be refused for it, since handlers whose replies are refused work in vain."""
        queued, most = self.outbox.queued_bytes, self.limits.queued_bytes
        if self._has_refused and queued <= most // 2:
            self._has_refused = False
        return self._has_refused or queued > most

    def receive(self, data: bytes | memoryview, now_s: float) -> list[Event]:
        """What a packet says. Raises ProtocolError, whatever the bytes are; the connection is then to be closed."""
        events: list[Event] = []
        try:
            for frame in self._hear(data, now_s):
                if type(frame) is Call:
                    self._call(frame, now_s, events)
                else:
                    self._other(frame, events)
        except ProtocolError:
            # The driver never hears of the calls before the broken frame, so nobody else gives their places back.
            for event in events:
                if type(event) is Called:
                    self.finished(event.id)
            raise
        return events

    def _call(self, frame: Call, now_s: float, events: list[Event]) -> None:
        call_id = frame.id
        if call_id <= self._last_id:
            raise ProtocolError(f"call id {call_id} after {self._last_id}: ids must grow")
        self._last_id = call_id
        name = self._methods.get(frame.ref)
        if frame.how:
            self._check_packing(frame)
        if name is None:
            raise ProtocolError(f"call {call_id} names method {frame.ref}, which was never introduced")
        refusal = self._refusal(frame) if self._rate is None or self._rate.admits(now_s) else self._too_many()
        if refusal is not None:
            return self._refuse(call_id, *refusal)
        if frame.more:
            self._assemble(frame)  # what it does not take is not counted
        if frame.how:
            self._raw_of[call_id] = frame.raw
            self._raw_bytes += frame.raw
        self._live[call_id] = LiveCall(self._window_bytes, frame.has_items)
        self._running += 1
        self._total.count += 1
        deadline_at = math.inf
        if frame.deadline_ms is not None:
            deadline_at = now_s + frame.deadline_ms / 1000
            self.deadlines.add(deadline_at, call_id)
        if frame.more:
            self._assembling_bytes += frame.more
            self._deadlines_at[call_id] = deadline_at
        else:
            self._start(frame, deadline_at, events)
        return None

    def _start(self, frame: Call, deadline_at: float, events: list[Event]) -> None:
        attachments = NOTHING
        if frame.attachments:
            try:
                attachments = decode_names(frame.attachments, most=self.limits.attachments)
            except ProtocolError:
                self.finished(frame.id)  # the driver never hears of it
                raise
        service, method = self._methods[frame.ref]
        body = received(frame) if frame.how else frame.body
        # By position: half the price of keywords, and one is made for every call.
        invocation = Invocation(
            service, method, (), body, deadline_at, attachments, frame.priority, None, None, None, self._caller
        )
        events.append(Called(frame.id, invocation, frame.has_items))

    def _refusal(self, frame: Call) -> tuple[Status, str] | None:
        limits = self.limits
        if self._running >= limits.in_flight:
            return Status.RESOURCE_EXHAUSTED, f"{self._running} calls of this connection run already"
        size = len(frame.body) + frame.more
        if size > limits.message_bytes:
            return Status.RESOURCE_EXHAUSTED, f"a body of {size} bytes; the bound is {limits.message_bytes}"
        if frame.more and self._assembling_bytes + frame.more > limits.queued_bytes:
            return Status.RESOURCE_EXHAUSTED, f"{self._assembling_bytes} bytes of large bodies are arriving already"
        if frame.how and (frame.raw > limits.message_bytes or self._raw_bytes + frame.raw > limits.queued_bytes):
            return Status.RESOURCE_EXHAUSTED, self._raw_problem(frame.raw)
        if len(frame.attachments) > limits.attachment_bytes:
            return Status.RESOURCE_EXHAUSTED, f"{len(frame.attachments)} bytes of attachments"
        if frame.deadline_ms is not None:
            if frame.deadline_ms <= 0:
                return Status.DEADLINE_EXCEEDED, "the deadline passed before the call ran"
            if frame.deadline_ms > 1e12:
                return Status.INVALID_ARGUMENT, f"a deadline of {frame.deadline_ms} ms"
        if not 0 <= frame.priority <= 255:  # below 0 is the provider's own, before all callers (``provider.pool``)
            return Status.INVALID_ARGUMENT, f"a priority of {frame.priority}; it is from 0 to 255"
        if self._has_drained:
            return Status.UNAVAILABLE, "the provider is draining"
        return None

    def _raw_problem(self, raw: int) -> str:
        if raw > self.limits.message_bytes:
            return f"a compressed body of {raw} bytes; the bound is {self.limits.message_bytes}"
        return f"compressed bodies of {self._raw_bytes} bytes are being served on this connection already"

    def _too_many(self) -> tuple[Status, str]:
        return Status.RESOURCE_EXHAUSTED, f"more than {self.limits.calls_per_s:g} calls a second on one connection"

    def _other(self, frame: AnyFrame, events: list[Event]) -> None:
        if isinstance(frame, Cancel):
            self._check_known(frame.id)
            self.outbox.drop(frame.id)
            if self._close(frame.id) is not None and not self._forget_parts(frame.id):
                events.append(Cancelled(frame.id))
        elif isinstance(frame, Part):
            self._take_part(frame, events)
        elif isinstance(frame, Item):
            self._item(frame, events)
        elif isinstance(frame, End):
            self._check_known(frame.id)
            self._complete(frame.id, events)
        elif isinstance(frame, Method):
            self._introduce(frame)
        elif isinstance(frame, Credit):
            self._credit(frame, events)
        elif isinstance(frame, Drain):
            self._has_drained = True
            events.append(Drained())
        else:
            self._common(frame)

    def _take_part(self, part: Part, events: list[Event]) -> None:
        frame = self._part(part)
        if frame is not None:
            self._arrived(frame, events)

    def _arrived(self, frame: Any, events: list[Event]) -> None:
        if type(frame) is Item:
            events.append(Received(frame.id, received(frame)))
            return
        self._assembling_bytes -= len(frame.body)
        self._start(frame, self._deadlines_at.pop(frame.id), events)

    def _forget_parts(self, call_id: int) -> bool:
        """The call is over while something of it was arriving. True: it was the call's own body, so it never ran."""
        assembly = self._drop_assembly(call_id) if self._assemblies else None
        if assembly is None or type(assembly.frame) is Item:
            return False
        frame = assembly.frame
        self._assembling_bytes -= frame.more
        del self._deadlines_at[call_id]
        self._running -= 1
        self._total.count -= 1
        if self._raw_of:
            self._raw_bytes -= self._raw_of.pop(call_id, 0)
        return True

    def _item(self, frame: Item, events: list[Event]) -> None:
        call = self._live.get(frame.id)
        if call is None:
            return self._check_known(frame.id)
        if not call.has_items or frame.id in self._deadlines_at:
            raise ProtocolError(f"ITEM for call {frame.id}, whose caller sends none")
        if call.unread_bytes >= self.limits.stream_window_bytes:
            raise ProtocolError(f"the caller of {frame.id} sent beyond its credit")
        size = len(frame.body) + frame.more
        if size > self.limits.message_bytes:
            raise ProtocolError(f"an item of {size} bytes; the bound is {self.limits.message_bytes}")
        if frame.how:
            self._check_packing(frame)
            if frame.raw > self.limits.message_bytes:
                raise ProtocolError(f"a compressed item of {frame.raw} bytes; the bound is {self.limits.message_bytes}")
        call.unread_bytes += size + ITEM_COST_BYTES
        if frame.more:
            self._assemble(frame)
        else:
            events.append(Received(frame.id, received(frame)))
        return None

    def _complete(self, call_id: int, events: list[Event]) -> None:
        call = self._live.get(call_id)
        if call is None:
            return
        if not call.has_items or call_id in self._assemblies:
            raise ProtocolError(f"END of call {call_id}, whose caller has no stream to end")
        call.has_items = False
        events.append(Completed(call_id))

    def consumed(self, call_id: int, body: bytes) -> None:
        """The handler has taken an item of its caller in. Credit goes back in lumps of half a window."""
        call = self._live.get(call_id)
        if call is None:
            return
        call.read_bytes += len(body) + ITEM_COST_BYTES
        if call.read_bytes * 2 >= self.limits.stream_window_bytes and call.has_items:
            self.outbox.put(encode(Credit(call_id, call.read_bytes)))
            call.unread_bytes -= call.read_bytes
            call.read_bytes = 0

    def _introduce(self, frame: Method) -> None:
        if frame.ref in self._methods:
            raise ProtocolError(f"method {frame.ref} is introduced twice")
        if len(frame.service) > NAME_CHARACTERS or len(frame.method) > NAME_CHARACTERS:
            raise ProtocolError(f"a name of more than {NAME_CHARACTERS} characters")
        if len(self._methods) >= self.limits.methods:
            raise ProtocolError(f"more than {self.limits.methods} methods on one connection")
        self._methods[frame.ref] = (frame.service, frame.method)

    def _credit(self, frame: Credit, events: list[Event]) -> None:
        self._check_known(frame.id)
        if not 0 < frame.amount <= _MOST_CREDIT:
            raise ProtocolError(f"a credit of {frame.amount} bytes")
        call = self._live.get(frame.id)
        if call is not None:
            call.credit_bytes += frame.amount
            if call.credit_bytes > _MOST_CREDIT:
                raise ProtocolError(f"the credit of stream {frame.id} overflows")
            events.append(Credited(frame.id))

    def _check_known(self, call_id: int) -> None:
        if not 0 < call_id <= self._last_id:
            raise ProtocolError(f"a frame about call {call_id}, which was never made")

    # What the driver answers.

    def reply(self, call_id: int, reply: Reply) -> None:
        """The one answer of a call. A body over a bound becomes RESOURCE_EXHAUSTED."""
        if call_id not in self._live:
            return
        body: Any = reply.body
        packing: tuple[int, int] | tuple[()] = ()
        if type(body) is Packed:
            body, packing = sent(body)
        if type(body) not in BODY_TYPES or body is None:
            self._fail(call_id, Status.INTERNAL, f"a reply without a body of bytes: {type(body).__name__}")
        elif (problem := self._overflow(len(body))) is not None:
            self._fail(call_id, Status.RESOURCE_EXHAUSTED, problem)
        elif len(body) <= PART_BYTES and not packing and not reply.attachments:  # ``_answer`` of nearly every call
            del self._live[call_id]
            self.outbox.put(encode((_ANSWER, call_id, body, b"", self._others)))
        else:
            self._answer(call_id, body, reply, packing)

    def open_stream(self, call_id: int, reply: Reply) -> None:
        """Opens the call's stream: ``item`` and then ``end`` or ``fail`` follow."""
        call = self._live.get(call_id)
        if call is not None:
            self._answer(call_id, None, reply)
            call.is_stream = True

    def may_send(self, call_id: int) -> bool:
        """Whether the stream may send an item now. A stream that is over may: its items are dropped."""
        call = self._live.get(call_id)
        return call is None or (call.credit_bytes > 0 and not self.is_full())

    def item(self, call_id: int, body: Any) -> None:
        """*body*: bytes or Packed. Raises Overloaded when it is over the bound, InvalidArgument for anything else."""
        call = self._live.get(call_id)
        if call is None:
            return
        packing: tuple[int, int] | tuple[()] = ()
        if type(body) is Packed:
            body, packing = sent(body)
        if type(body) not in BODY_TYPES:
            raise InvalidArgument(f"a stream's item is bytes here, not {type(body).__name__}", may_have_run=True)
        if len(body) > self._message_bytes:
            raise Overloaded(
                f"an item of {len(body)} bytes; the bound is message_bytes={self._message_bytes}", may_have_run=True
            )
        call.credit_bytes -= len(body) + ITEM_COST_BYTES
        if len(body) > PART_BYTES:
            self.outbox.put_in_order(call_id, encode((_ITEM, call_id, b"", len(body), *packing)), body)
        elif packing:
            self.outbox.put_in_order(call_id, encode((_ITEM, call_id, body, 0, *packing)))
        else:
            self.outbox.put_in_order(call_id, encode((_ITEM, call_id, body)))

    def end(self, call_id: int) -> None:
        if self._close(call_id) is not None:
            self.outbox.put_in_order(call_id, encode(End(call_id, self._others)))

    def fail(self, call_id: int, error: RpcError) -> None:
        """Answers with an error. ``may_have_run`` of *error* is told to the consumer, who may repeat the call elsewhere
        if it is False: an error that leaves a handler must have it set."""
        details = error.details
        if type(details) is not bytes or len(details) > self._message_bytes:
            details = None
        self._fail(call_id, error.status, error.message, details=details, has_started=error.may_have_run)

    def finished(self, call_id: int) -> None:
        """The driver's task of this call has ended, whatever became of the call."""
        self._running -= 1
        self._total.count -= 1
        if self._raw_of:
            self._raw_bytes -= self._raw_of.pop(call_id, 0)
        if self._assemblies:  # an item that the handler did not wait for: its rest need not come
            self._drop_assembly(call_id)
        if call_id in self._live:
            del self._live[call_id]

    def expire(self, now_s: float) -> list[int]:
        """The calls whose deadline has passed: answered here, and to be cancelled by the driver."""
        expired = self.deadlines.expired(now_s)
        for call_id in expired:
            self.outbox.drop(call_id)
            self._forget_parts(call_id)
            self._fail(call_id, Status.DEADLINE_EXCEEDED, "the deadline passed while the call ran")
        return expired

    def abandon(self) -> None:
        """The connection is gone: no call wants an answer any more, and those that were still arriving never ran."""
        for call_id in list(self._deadlines_at):
            self._forget_parts(call_id)
        self._drop_assemblies()
        self._live.clear()

    def load(self, frame: bytes) -> None:
        """Sends an encoded LOAD (see ``load_frame``); a newer one overtakes an older one that still waits."""
        self.outbox.load(frame)

    def drain(self) -> None:
        """Asks for no new calls. Calls that cross this are served until the consumer says that it understood."""
        self.outbox.put(DRAIN)

    def _pong(self) -> bytes:
        """What a probe asks for. Every PONG tells it: who asks whether this side lives may as well know."""
        count, latency_s = self._total.count, self._total.latency_s
        return encode(Pong(count, None if latency_s is None else latency_s(count)))

    @property
    def _others(self) -> int:
        # The call that is being answered still counts as running.
        return max(0, self._total.count - 1)

    def _answer(
        self, call_id: int, body: bytes | None, reply: Reply, packing: tuple[int, int] | tuple[()] = ()
    ) -> None:
        try:
            attachments = self._names(reply.attachments) if reply.attachments else b""
        except RpcError as error:
            return self._fail(call_id, error.status, f"the reply's attachments: {error.message}")
        if body is not None:
            self._close(call_id)
        if body is not None and len(body) > PART_BYTES:
            head = encode((_ANSWER, call_id, b"", attachments, self._others, len(body), *packing))
            self.outbox.put_in_order(call_id, head, body)
        elif packing:
            self.outbox.put(encode((_ANSWER, call_id, body, attachments, self._others, 0, *packing)))
        else:
            self.outbox.put(encode((_ANSWER, call_id, body, attachments, self._others)))
        return None

    def _overflow(self, body_bytes: int) -> str | None:
        if body_bytes > self._message_bytes:
            return f"a reply of {body_bytes} bytes; the bound is message_bytes={self._message_bytes}"
        queued = self.outbox.queued_bytes
        if queued and queued + body_bytes > self.limits.queued_bytes:
            self._has_refused = True
            return f"{queued} bytes wait to be written; the bound is queued_bytes={self.limits.queued_bytes}"
        return None

    def _fail(
        self, call_id: int, status: int, message: str, *, details: bytes | None = None, has_started: bool = True
    ) -> None:
        if self._close(call_id) is not None:
            self._put_fail(call_id, status, message, details, self._others, has_started)

    def _refuse(self, call_id: int, status: Status, message: str) -> None:
        self._total.refused()
        self._put_fail(call_id, status, message, None, self._total.count, False)

    def _put_fail(
        self, call_id: int, status: int, message: str, details: bytes | None, others: int, has_started: bool
    ) -> None:
        # A message may hold what cannot be encoded (a lone surrogate of an exception's text).
        text = str(message)[:MESSAGE_CHARACTERS].encode("utf-8", "replace").decode()
        frame = encode(Fail(call_id, int(status), text, details, others, has_started))
        self.outbox.put_in_order(call_id, frame)

    def _close(self, call_id: int) -> LiveCall | None:
        return self._live.pop(call_id, None)


def load_frame(report: bytes) -> bytes:
    return encode(Load(report))
