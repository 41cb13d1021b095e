from __future__ import annotations

from typing import Any

import pytest
from unit.wire.sides import hello, of, provider, sent

from steelyard.errors import Overloaded, RemoteError, Status
from steelyard.model import Invocation, Reply
from steelyard.wire import WireLimits
from steelyard.wire.frames import (
    Answer,
    AnyFrame,
    Call,
    Cancel,
    Credit,
    Drain,
    End,
    Fail,
    Item,
    Load,
    Method,
    Part,
    ProtocolError,
    encode_names,
)
from steelyard.wire.mux import Called, Cancelled, Credited, Drained, InFlight, ProviderSide
from steelyard.wire.mux.provider import load_frame

METHOD = Method(1, "test.Echo", "echo")


def a_call(call_id: int = 1, *, deadline_ms: int | None = None, attachments: bytes = b"", body: bytes = b"hi") -> Call:
    return Call(call_id, 1, deadline_ms, 1, attachments, body)


def serving(*calls: Call, **facts: Any) -> ProviderSide:
    side = provider(**facts)
    side.receive(of(METHOD, *calls), 0.0)
    sent(side)
    return side


def refusal(limits: WireLimits, frame: Call) -> Fail:
    """What the provider answers to *frame* without running it."""
    side = provider(limits)
    assert side.receive(of(METHOD, frame), 0.0) == []
    assert side.running == 0
    (fail,) = sent(side)
    assert isinstance(fail, Fail)
    assert fail.has_started is False
    return fail


def test_a_call_becomes_an_invocation() -> None:
    side = provider()
    names = encode_names({"k": "v"})
    (event,) = side.receive(of(METHOD, Call(1, 1, 1500, 0, names, b"hi")), 10.0)
    assert event == Called(
        1,
        Invocation(
            service="test.Echo", method="echo", body=b"hi", deadline_at=11.5, attachments={"k": "v"}, priority=0
        ),
    )


def test_a_reply_tells_how_many_other_calls_there_are_on_all_connections() -> None:
    total = InFlight()
    one, two = (ProviderSide(WireLimits(), now_s=0.0, in_flight=total) for _ in range(2))
    for side in (one, two):
        side.receive(of(hello(), METHOD, a_call()), 0.0)
        sent(side)
    one.reply(1, Reply(body=b"bye", attachments={"k": "v"}))
    one.finished(1)
    assert sent(one) == [Answer(1, b"bye", encode_names({"k": "v"}), 1)]
    two.fail(1, RemoteError("E: x", may_have_run=True, details=b"d"))
    two.finished(1)
    assert sent(two) == [Fail(1, 2, "E: x", b"d", 0, True)]
    assert total.count == one.running == two.running == 0


def test_refusals() -> None:
    late = refusal(WireLimits(), a_call(deadline_ms=0))
    assert (late.status, late.message) == (Status.DEADLINE_EXCEEDED, "the deadline passed before the call ran")
    large = refusal(WireLimits(message_bytes=1024), a_call(body=bytes(1025)))
    assert (large.status, large.message) == (Status.RESOURCE_EXHAUSTED, "a body of 1025 bytes; the bound is 1024")
    names = refusal(WireLimits(attachment_bytes=4), a_call(attachments=encode_names({"a": "long"})))
    assert names.status == Status.RESOURCE_EXHAUSTED
    assert refusal(WireLimits(), a_call(deadline_ms=10**13)).status == Status.INVALID_ARGUMENT
    for priority in (-1, 256):  # -1 would go before everybody else's
        odd = refusal(WireLimits(), Call(1, 1, None, priority, b"", b""))
        assert (odd.status, odd.message) == (Status.INVALID_ARGUMENT, f"a priority of {priority}; it is from 0 to 255")


def test_calls_over_the_bound_are_refused_at_once() -> None:
    side = serving(a_call(1), a_call(2), limits=WireLimits(in_flight=2))
    assert side.receive(of(a_call(3)), 0.0) == []
    (fail,) = sent(side)
    assert isinstance(fail, Fail)
    assert (fail.id, fail.status, fail.has_started) == (3, Status.RESOURCE_EXHAUSTED, False)
    side.finished(1)
    assert len(side.receive(of(a_call(4)), 0.0)) == 1


def test_calling_and_cancelling_in_a_row_gains_nothing() -> None:
    side = serving(limits=WireLimits(in_flight=2))
    events = [event for n in range(1, 100) for event in side.receive(of(a_call(n), Cancel(n)), 0.0)]
    assert len([event for event in events if isinstance(event, Called)]) == 2
    assert side.running == 2


def test_a_cancelled_call_is_reported_once_and_its_reply_dropped() -> None:
    side = serving(a_call())
    assert side.receive(of(Cancel(1), Cancel(1)), 0.0) == [Cancelled(1)]
    assert not side.is_live(1)
    side.reply(1, Reply(body=b"late"))
    side.fail(1, RemoteError("late"))
    side.finished(1)
    assert sent(side) == []


def test_an_expired_call_is_answered_and_its_reply_dropped() -> None:
    side = serving(a_call(1, deadline_ms=100), a_call(2, deadline_ms=200))
    assert side.deadlines.next_at() == pytest.approx(0.1)
    assert side.expire(0.05) == []
    assert side.expire(0.15) == [1]
    side.reply(1, Reply(body=b"late"))
    (fail,) = sent(side)
    assert isinstance(fail, Fail)
    assert (fail.id, fail.status, fail.has_started) == (1, Status.DEADLINE_EXCEEDED, True)


def test_a_reply_over_a_bound_becomes_an_error() -> None:
    small = WireLimits(message_bytes=1024, attachments=1)
    for facts in ({"limits": small}, {"peer": small}):
        side = serving(a_call(1), a_call(2), **facts)
        side.reply(1, Reply(body=bytes(1025)))
        side.reply(2, Reply(body=b"", attachments={"a": "1", "b": "2"}))
        fails = sent(side)
        assert [(frame.id, frame.status, frame.has_started) for frame in fails if isinstance(frame, Fail)] == [
            (1, Status.RESOURCE_EXHAUSTED, True),
            (2, Status.RESOURCE_EXHAUSTED, True),
        ]


def test_replies_beyond_the_queue_become_errors_and_reading_should_stop() -> None:
    side = serving(a_call(1), a_call(2), a_call(3), limits=WireLimits(queued_bytes=64 * 1024))
    side.reply(1, Reply(body=bytes(60_000)))
    assert not side.is_full()
    side.reply(2, Reply(body=bytes(60_000)))
    kinds = [type(frame) for frame in sent(side)]
    assert kinds == [Answer, Fail]
    side.reply(3, Reply(body=bytes(100_000)))  # an empty queue takes one of any size
    assert side.is_full()
    assert [type(frame) for frame in sent(side)] == [Answer, Part, Part]
    assert not side.is_full()


@pytest.mark.parametrize("body", [None, "text", 7])
def test_a_reply_that_is_not_bytes_is_an_internal_error(body: Any) -> None:
    side = serving(a_call())
    side.reply(1, Reply(body=body))
    (fail,) = sent(side)
    assert isinstance(fail, Fail)
    assert fail.status == Status.INTERNAL


def test_an_error_text_that_cannot_be_encoded_still_arrives() -> None:
    side = serving(a_call())
    side.fail(1, RemoteError("bad \ud800 text" + "x" * 10_000))
    (fail,) = sent(side)
    assert isinstance(fail, Fail)
    assert fail.message.startswith("bad ? text")
    assert len(fail.message) == 4096


# Streams.


def test_a_stream_sends_while_it_has_credit() -> None:
    side = serving(a_call(), peer=WireLimits(stream_window_bytes=1024))
    side.open_stream(1, Reply())
    assert side.may_send(1)
    side.item(1, bytes(600))
    assert side.may_send(1)
    side.item(1, bytes(600))
    assert not side.may_send(1)
    assert side.receive(of(Credit(1, 700)), 0.0) == [Credited(1)]
    assert side.may_send(1)
    side.end(1)
    assert [type(frame) for frame in sent(side)] == [Answer, Item, Item, End]


def test_a_full_queue_stops_streams_too() -> None:
    side = serving(a_call(), limits=WireLimits(queued_bytes=64 * 1024), peer=WireLimits(stream_window_bytes=10**8))
    side.open_stream(1, Reply())
    side.item(1, bytes(70_000))
    assert not side.may_send(1)
    sent(side)
    assert side.may_send(1)


def test_a_stream_that_is_over_lets_its_sender_run_out() -> None:
    side = serving(a_call())
    side.open_stream(1, Reply())
    side.receive(of(Cancel(1)), 0.0)
    assert side.may_send(1)
    sent(side)
    side.item(1, b"late")
    side.end(1)
    assert sent(side) == []
    assert side.receive(of(Credit(1, 5)), 0.0) == [], "credit may cross the end"


def test_an_item_over_the_bound() -> None:
    side = serving(a_call(), limits=WireLimits(message_bytes=1024))
    side.open_stream(1, Reply())
    with pytest.raises(Overloaded, match="an item of 1025 bytes") as raised:
        side.item(1, bytes(1025))
    assert raised.value.may_have_run is True


# The connection.


def test_drain_serves_what_crosses_it_and_refuses_after_the_consumer_has_understood() -> None:
    side = serving()
    side.drain()
    assert sent(side) == [Drain()]
    assert len(side.receive(of(a_call(1)), 0.0)) == 1
    assert side.receive(of(Drain()), 0.0) == [Drained()]
    assert side.receive(of(a_call(2)), 0.0) == []
    (fail,) = sent(side)
    assert isinstance(fail, Fail)
    assert (fail.status, fail.has_started) == (Status.UNAVAILABLE, False)


def test_load_reports_leave() -> None:
    side = serving()
    side.load(load_frame(b"old"))
    side.load(load_frame(b"new"))
    assert sent(side) == [Load(b"new")]


def test_a_connection_that_is_gone_wants_no_answers() -> None:
    side = serving(a_call(deadline_ms=5))
    side.abandon()
    side.reply(1, Reply(body=b"late"))
    side.finished(1)
    assert sent(side) == []
    assert side.deadlines.next_at() is None


@pytest.mark.parametrize(
    "frames",
    [
        (a_call(1), a_call(1)),
        (a_call(2), a_call(1)),
        (a_call(0),),
        (a_call(-3),),
        (Call(1, 2, None, 1, b"", b""),),
        (METHOD,),
        (Method(2, "n" * 1025, "m"),),
        (Method(2, "a", "b"), Method(3, "a", "b"), Method(4, "a", "b")),
        (Cancel(1),),
        (Credit(1, 1),),
        (a_call(), Credit(1, 0)),
        (a_call(), Credit(1, 2**41)),
        (a_call(), Credit(1, 2**40), Credit(1, 2**40)),
        (a_call(attachments=b"\xc1"),),
        (a_call(attachments=encode_names({str(n): "" for n in range(100)})),),
        (Answer(1, b"", b"", 0),),
        (Item(1, b""),),
        (End(1, 0),),
        (Fail(1, 2, "", None, 0, True),),
        (Load(b""),),
        (hello(),),
    ],
    ids=lambda frames: ", ".join(type(frame).__name__ for frame in frames),
)
def test_what_a_consumer_must_not_send(frames: tuple[AnyFrame, ...]) -> None:
    side = serving(limits=WireLimits(methods=3))
    with pytest.raises(ProtocolError):
        side.receive(of(*frames), 0.0)


def test_calls_in_a_packet_that_ends_in_nonsense_give_their_places_back() -> None:
    total = InFlight()
    side = ProviderSide(WireLimits(), now_s=0.0, in_flight=total)
    side.receive(of(hello()), 0.0)
    with pytest.raises(ProtocolError, match="ids must grow"):
        side.receive(of(METHOD, a_call(1), a_call(2), a_call(1)), 0.0)
    side.abandon()
    assert (total.count, side.running) == (0, 0)


def test_calls_that_were_still_arriving_when_the_connection_broke_give_their_places_back() -> None:
    total = InFlight()
    side = ProviderSide(WireLimits(), now_s=0.0, in_flight=total)
    side.receive(of(hello()), 0.0)
    assert side.receive(of(METHOD, Call(1, 1, None, 1, b"", b"", more=4)), 0.0) == []
    assert total.count == 1
    side.abandon()
    assert (total.count, side.running) == (0, 0)


@pytest.mark.parametrize(
    "frames",
    [
        (Call(1, 1, None, 1, b"\xff\xff", b"hi"),),
        (Call(1, 1, None, 1, b"\xff\xff", b"", 2), Part(1, memoryview(b"hi"))),
        (Call(1, 1, None, 1, b"", b"some", 10),),
        (Call(1, 1, None, 1, b"", b"", -1),),
    ],
    ids=["attachments", "attachments of one in parts", "a body and parts", "less than nothing"],
)
def test_the_call_that_is_nonsense_itself_gives_its_place_back(frames: tuple[AnyFrame, ...]) -> None:
    """It was counted among the provider's calls in flight for ever, one for each connection."""
    total = InFlight()
    side = ProviderSide(WireLimits(), now_s=0.0, in_flight=total)
    side.receive(of(hello()), 0.0)
    with pytest.raises(ProtocolError):
        side.receive(of(METHOD, *frames), 0.0)
    side.abandon()
    assert (total.count, side.running) == (0, 0)
