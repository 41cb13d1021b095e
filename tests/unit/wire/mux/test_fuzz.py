"""Laws over both sides: what they do to each other, and what nobody can do to them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from unit.wire.sides import call, carry, consumer, joined, of, provider
from unit.wire.test_frames import FRAMES

from steelyard.errors import RpcError
from steelyard.model import Reply
from steelyard.wire import WireLimits
from steelyard.wire.frames import AnyFrame, Method, ProtocolError
from steelyard.wire.mux import (
    Answered,
    Called,
    Cancelled,
    ConsumerSide,
    Ended,
    Failed,
    ItemArrived,
    Opened,
    ProviderSide,
)

SMALL = WireLimits(in_flight=8, queued_bytes=64 * 1024, stream_window_bytes=1024, methods=4)


def suffer(side: ConsumerSide | ProviderSide, packets: list[bytes]) -> None:
    """Feeds hostile packets until the side has had enough; only ProtocolError may come out."""
    try:
        for number, data in enumerate(packets):
            side.receive(data, float(number))
            side.expire(float(number))
    except ProtocolError:
        pass
    assert side.outbox.queued_bytes <= 1_000_000


@settings(max_examples=300)
@given(st.lists(st.lists(FRAMES, max_size=4), max_size=6))
def test_any_frames_are_events_or_a_protocol_error(packets: list[list[AnyFrame]]) -> None:
    data = [of(*frames) for frames in packets]
    calling = consumer(SMALL)
    for number in range(4):
        calling.call(number, call(deadline_at=3.0), 0.0)
    calling.outbox.take()
    suffer(calling, data)
    suffer(ConsumerSide(SMALL, now_s=0.0), data)
    serving = provider(SMALL)
    serving.receive(of(Method(1, "s", "m")), 0.0)
    suffer(serving, data)
    suffer(ProviderSide(SMALL, now_s=0.0), data)
    assert serving.running <= SMALL.in_flight


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_bytes_are_events_or_a_protocol_error(packets: list[bytes]) -> None:
    suffer(consumer(SMALL), packets)
    suffer(provider(SMALL), packets)


class Conversation(RuleBasedStateMachine):
    """A consumer and a provider that keep to the protocol, with packets in both directions delayed at will.

    Neither ever raises ProtocolError; each call ends exactly once; a stream's items come in order; the bounds hold;
    when everything has arrived both have forgotten everything.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calling, self.serving = joined(SMALL, SMALL)
        self.now_s = 0.0
        self.calls: dict[int, Any] = {}
        self.endings: dict[int, int] = {}
        self.arrived: dict[int, list[bytes]] = {}
        self.unread: dict[int, list[bytes]] = {}
        self.running: set[int] = set()
        self.streams: dict[int, int] = {}
        self.upward: list[bytes] = []
        self.downward: list[bytes] = []

    @rule(size=st.integers(0, 30_000), wait_s=st.sampled_from([0.5, 3.0, 1e9]), method=st.sampled_from("abcde"))
    def start(self, size: int, wait_s: float, method: str) -> None:
        token = len(self.endings)
        try:
            self.calls[token] = self.calling.call(
                token, call(method, bytes(size), deadline_at=self.now_s + wait_s), self.now_s
            )
        except RpcError as error:
            self.endings[token] = 1 + error.may_have_run
        else:
            self.endings[token] = 0

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.calls)))
        self.calling.cancel(self.calls.pop(token))
        self.endings[token] += 1

    @precondition(lambda self: self.running)
    @rule(data=st.data(), size=st.integers(0, 70_000))
    def answer(self, data: st.DataObject, size: int) -> None:
        call_id = data.draw(st.sampled_from(sorted(self.running)))
        if call_id in self.streams:
            self.serving.end(call_id)
        else:
            self.serving.reply(call_id, Reply(body=bytes(size)))
        self.finish(call_id)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def stream(self, data: st.DataObject) -> None:
        call_id = data.draw(st.sampled_from(sorted(self.running)))
        if call_id not in self.streams:
            self.serving.open_stream(call_id, Reply())
            self.streams[call_id] = 0
        while self.serving.is_live(call_id) and self.serving.may_send(call_id):
            self.serving.item(call_id, b"%d" % self.streams[call_id])
            self.streams[call_id] += 1

    @rule()
    def read(self) -> None:
        for token, bodies in self.unread.items():
            while bodies and token in self.calls:
                self.calling.consumed(self.calls[token], bodies.pop(0))

    @rule(by_s=st.floats(0.0, 1.0))
    def wait(self, by_s: float) -> None:
        self.now_s += by_s
        for event in self.calling.expire(self.now_s):
            self.heard(event)
        self.serving.expire(self.now_s)

    @rule()
    def send_up(self) -> None:
        if (data := self.calling.outbox.take()) is not None:
            self.upward.append(data)

    @rule()
    def send_down(self) -> None:
        if (data := self.serving.outbox.take()) is not None:
            self.downward.append(data)

    @rule()
    def arrive_up(self) -> None:
        if self.upward:
            for event in self.serving.receive(self.upward.pop(0), self.now_s):
                self.served(event)

    @rule()
    def arrive_down(self) -> None:
        if self.downward:
            for event in self.calling.receive(self.downward.pop(0), self.now_s):
                self.heard(event)

    def served(self, event: Any) -> None:
        if isinstance(event, Called):
            self.running.add(event.id)
        elif isinstance(event, Cancelled):
            self.finish(event.id)

    def finish(self, call_id: int) -> None:
        self.running.discard(call_id)
        self.streams.pop(call_id, None)
        self.serving.finished(call_id)

    def heard(self, event: Any) -> None:
        if isinstance(event, Opened):
            return
        if isinstance(event, ItemArrived):
            self.arrived.setdefault(event.call.token, []).append(event.body)
            self.unread.setdefault(event.call.token, []).append(event.body)
            return
        assert isinstance(event, Answered | Ended | Failed)
        self.endings[event.call.token] += 1
        self.calls.pop(event.call.token)

    @invariant()
    def bounds_hold(self) -> None:
        assert self.serving.running == len(self.running) <= SMALL.in_flight
        assert self.calling.open_calls == len(self.calls) <= SMALL.in_flight
        assert all(count <= 1 for count in self.endings.values())

    @invariant()
    def items_come_in_order(self) -> None:
        assert all(items == [b"%d" % n for n in range(len(items))] for items in self.arrived.values())

    def teardown(self) -> None:
        for _ in range(3):
            while self.upward or self.downward or self.calling.outbox.is_waiting or self.serving.outbox.is_waiting:
                self.send_up()
                self.send_down()
                self.arrive_up()
                self.arrive_down()
            for call_id in sorted(self.running):
                if call_id in self.streams:
                    self.serving.end(call_id)
                else:
                    self.serving.reply(call_id, Reply(body=b""))
                self.finish(call_id)
        assert all(count == 1 for count in self.endings.values())
        assert self.calling.open_calls == self.serving.running == 0


Conversation.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestConversation = Conversation.TestCase


def test_both_sides_meet() -> None:
    calling, serving = joined()
    calling.call("token", call(), 0.0)
    (event,) = carry(calling, serving, 0.0)
    serving.reply(event.id, Reply(body=event.invocation.body))
    (answered,) = carry(serving, calling, 0.0)
    assert answered.reply.body == b"hi"
