from __future__ import annotations

import math

import pytest
from unit.wire.sides import call, consumer, hello, of, sent

from steelyard.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    Overloaded,
    RemoteError,
    Status,
    Unavailable,
)
from steelyard.model import LoadReport
from steelyard.wire import WireLimits
from steelyard.wire.frames import (
    Answer,
    AnyFrame,
    Bye,
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
    Ping,
    Pong,
    ProtocolError,
    encode_load,
    parse,
)
from steelyard.wire.mux import Answered, ConsumerSide, Draining, Ended, Failed, ItemArrived, Loaded, Opened, Told


def test_the_first_frame_is_hello_with_what_this_side_takes() -> None:
    side = ConsumerSide(WireLimits(in_flight=7), now_s=0.0, identity="me")
    data = side.outbox.take()
    assert data is not None
    (frame,) = parse(data)
    assert isinstance(frame, Hello)
    assert (frame.version, frame.identity, frame.in_flight) == (1, "me", 7)


def test_a_method_is_named_once_and_ids_grow() -> None:
    side = consumer()
    side.call("a", call(attachments={"k": "v"}, deadline_at=1.5, priority=0), 0.0)
    side.call("b", call(), 0.0)
    side.call("c", call("other"), 0.0)
    first, one, two, second, three = sent(side)
    assert first == Method(1, "test.Echo", "echo")
    assert second == Method(2, "test.Echo", "other")
    assert one == Call(1, 1, 1500, 0, b"\x81\xa1k\xa1v", b"hi")
    assert two == Call(2, 1, None, 1, b"", b"hi")
    assert isinstance(three, Call)
    assert three.ref == 2


def test_the_time_that_remains_is_rounded_up_to_a_millisecond() -> None:
    side = consumer()
    side.call("a", call(deadline_at=10.0001), 10.0)
    assert [frame.deadline_ms for frame in sent(side) if isinstance(frame, Call)] == [1]


def test_replies_and_failures_come_with_their_token() -> None:
    side = consumer()
    side.call("a", call(), 0.0)
    side.call("b", call(), 0.0)
    sent(side)
    answered, failed = side.receive(
        of(Answer(1, b"one", b"\x81\xa1k\xa1v", 5), Fail(2, 2, "ValueError: no", b"details", 4, True)), 0.0
    )
    assert isinstance(answered, Answered)
    assert (answered.call.token, answered.reply.body, answered.reply.in_flight) == ("a", b"one", 5)
    assert answered.reply.attachments == {"k": "v"}
    assert isinstance(failed, Failed)
    assert failed.call.token == "b"
    error = failed.error
    assert isinstance(error, RemoteError)
    assert (error.message, error.details, error.may_have_run) == ("ValueError: no", b"details", True)
    assert (error.is_remote, error.node) == (True, "node:1")
    assert side.open_calls == 0


def test_a_call_that_did_not_start_says_so() -> None:
    side = consumer()
    side.call("a", call(), 0.0)
    sent(side)
    (failed,) = side.receive(of(Fail(1, int(Status.UNAVAILABLE), "draining", None, 0, False)), 0.0)
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, Unavailable)
    assert failed.error.may_have_run is False


def test_late_answers_are_dropped_and_answers_to_nothing_are_an_error() -> None:
    side = consumer()
    side.cancel(side.call("a", call(), 0.0))
    for frame in (Answer(1, b"late", b"", 0), Fail(1, 2, "late", None, 0, True), Item(1, b"late"), End(1, 0)):
        assert side.receive(of(frame), 0.0) == []
    for frame in (Answer(2, b"", b"", 0), Fail(0, 2, "", None, 0, True), Item(9, b""), End(-1, 0)):
        with pytest.raises(ProtocolError, match="which was never made"):
            side.receive(of(frame), 0.0)


# Refusals on this side: certain not to have run.


def test_a_body_over_the_bound_of_either_side() -> None:
    for side in (consumer(WireLimits(message_bytes=1024)), consumer(peer=WireLimits(message_bytes=1024))):
        side.call("a", call(body=bytes(1024)), 0.0)
        with pytest.raises(Overloaded, match="a body of 1025 bytes; the bound is message_bytes=1024") as raised:
            side.call("b", call(body=bytes(1025)), 0.0)
        assert raised.value.may_have_run is False


def test_too_many_open_calls() -> None:
    side = consumer(peer=WireLimits(in_flight=2))
    first = side.call("a", call(), 0.0)
    side.call("b", call(), 0.0)
    with pytest.raises(Overloaded, match="2 calls are open on this connection; the bound is in_flight=2"):
        side.call("c", call(), 0.0)
    side.cancel(first)
    side.call("c", call(), 0.0)


def test_too_many_queued_bytes() -> None:
    side = consumer(WireLimits(queued_bytes=64 * 1024))
    side.call("a", call(body=bytes(200_000)), 0.0)  # an empty queue takes one of any size
    with pytest.raises(Overloaded, match=r"wait to be written on this connection; the bound is queued_bytes=65536"):
        side.call("b", call(), 0.0)
    sent(side)
    side.call("b", call(), 0.0)


def test_too_many_methods() -> None:
    side = consumer(peer=WireLimits(methods=1))
    side.call("a", call(), 0.0)
    with pytest.raises(Overloaded, match="the bound is methods=1"):
        side.call("b", call("other"), 0.0)


def test_attachments_have_bounds() -> None:
    side = consumer(peer=WireLimits(attachments=1, attachment_bytes=10))
    with pytest.raises(Overloaded, match="2 attachments; the bound is attachments=1"):
        side.call("a", call(attachments={"a": "1", "b": "2"}), 0.0)
    with pytest.raises(Overloaded, match="bytes of attachments; the bound is attachment_bytes=10"):
        side.call("a", call(attachments={"a": "1" * 20}), 0.0)


@pytest.mark.parametrize("attachments", [{"a": 1}, {1: "a"}, {"a": "\ud800"}])
def test_attachments_that_cannot_be_sent_are_the_callers_fault_and_harm_nothing(attachments: dict[str, str]) -> None:
    side = consumer()
    with pytest.raises(InvalidArgument, match="attachments cannot be sent"):
        side.call("a", call(attachments=attachments), 0.0)
    assert sent(side) == []
    assert side.open_calls == 0


def test_names_that_cannot_be_sent() -> None:
    for method in ("m" * 1025, "\ud800"):
        side = consumer()
        with pytest.raises(InvalidArgument):
            side.call("a", call(method), 0.0)
        assert sent(side) == []


def test_a_call_without_a_body_is_a_broken_promise_of_this_side() -> None:
    with pytest.raises(InternalError, match="not a body of type NoneType"):
        consumer().call("a", call(body=None), 0.0)  # type: ignore[arg-type]


def test_a_deadline_that_has_passed() -> None:
    with pytest.raises(DeadlineExceeded, match="before the call was sent"):
        consumer().call("a", call(deadline_at=1.0), 1.0)


# Deadlines, cancelling, loss.


def test_an_expired_call_fails_and_the_provider_is_told() -> None:
    side = consumer()
    side.call("a", call(deadline_at=1.0), 0.0)
    side.call("b", call(deadline_at=2.0), 0.0)
    side.call("c", call(deadline_at=math.inf), 0.0)
    sent(side)
    assert side.deadlines.next_at() == 1.0
    assert side.expire(0.99) == []
    (failed,) = side.expire(1.0)
    assert failed.call.token == "a"
    assert isinstance(failed.error, DeadlineExceeded)
    assert failed.error.may_have_run is True
    assert sent(side) == [Cancel(1)]
    assert side.deadlines.next_at() == 2.0


def test_a_call_that_expires_in_the_queue_never_leaves() -> None:
    side = consumer()
    side.call("a", call(deadline_at=1.0), 0.0)
    (failed,) = side.expire(1.0)
    assert failed.error.may_have_run is False
    assert sent(side) == [Method(1, "test.Echo", "echo")]


def test_cancel_is_sent_once_and_only_for_what_has_left() -> None:
    side = consumer()
    gone, waiting = side.call("a", call(), 0.0), None
    sent(side)
    waiting = side.call("b", call(), 0.0)
    for one in (gone, waiting, gone):
        side.cancel(one)
    assert sent(side) == [Cancel(1)]


def test_loss_tells_which_calls_may_have_run() -> None:
    side = consumer()
    side.call("left", call(), 0.0)
    sent(side)
    side.call("waits", call(), 0.0)
    lost = {event.call.token: event.error for event in side.lost("gone")}
    assert {token: error.may_have_run for token, error in lost.items()} == {"left": True, "waits": False}
    assert all(isinstance(error, Unavailable) and error.message == "gone" for error in lost.values())
    assert side.lost("again") == []


# Streams.


def test_a_stream_opens_brings_items_and_ends() -> None:
    side = consumer()
    open_call = side.call("a", call(), 0.0)
    sent(side)
    (opened,) = side.receive(of(Answer(1, None, b"", 3)), 0.0)
    assert isinstance(opened, Opened)
    assert opened.call is open_call
    events = side.receive(of(Item(1, b"x"), Item(1, b"y"), End(1, 0)), 0.0)
    assert events == [ItemArrived(open_call, b"x"), ItemArrived(open_call, b"y"), Ended(open_call)]
    assert side.open_calls == 0


def test_a_deadline_covers_the_whole_stream() -> None:
    side = consumer()
    side.call("a", call(deadline_at=1.0), 0.0)
    sent(side)
    side.receive(of(Answer(1, None, b"", 0), Item(1, b"x")), 0.5)
    assert [event.call.token for event in side.expire(1.0)] == ["a"]
    assert sent(side) == [Cancel(1)]


def test_credit_goes_back_in_lumps_and_only_for_what_was_read() -> None:
    side = consumer(WireLimits(stream_window_bytes=1024))
    open_call = side.call("a", call(), 0.0)
    sent(side)
    side.receive(of(Answer(1, None, b"", 0), Item(1, bytes(400)), Item(1, bytes(400))), 0.0)
    side.consumed(open_call, bytes(400))
    assert sent(side) == []
    side.consumed(open_call, bytes(400))
    assert sent(side) == [Credit(1, 928)]


def test_a_provider_that_sends_beyond_its_credit_is_cut_off() -> None:
    side = consumer(WireLimits(stream_window_bytes=1024))
    side.call("a", call(), 0.0)
    sent(side)
    side.receive(of(Answer(1, None, b"", 0), Item(1, bytes(2000))), 0.0)  # one item may go over
    with pytest.raises(ProtocolError, match="stream 1 was sent beyond its credit"):
        side.receive(of(Item(1, b"")), 0.0)


@pytest.mark.parametrize(
    "frames",
    [
        (Item(1, b"x"),),
        (End(1, 0),),
        (Answer(1, None, b"", 0), Answer(1, None, b"", 0)),
        (Method(1, "a", "b"),),
        (Call(1, 1, None, 1, b"", b""),),
        (Cancel(1),),
        (Credit(1, 1),),
        (hello(),),
        (Answer(1, b"", b"\xc1", 0),),
        (Answer(1, b"", bytes(20_000), 0),),
        (Load(b"\xc1"),),
    ],
    ids=str,
)
def test_what_a_provider_must_not_send(frames: tuple[AnyFrame, ...]) -> None:
    side = consumer()
    side.call("a", call(), 0.0)
    sent(side)
    with pytest.raises(ProtocolError):
        side.receive(of(*frames), 0.0)


# The connection.


def test_load_reports_arrive() -> None:
    side = consumer()
    (event,) = side.receive(of(Load(encode_load({"cpu": 0.5}, 3, None, 0.1, 40.0, 2.5))), 0.0)
    assert event == Loaded(LoadReport({"cpu": 0.5}, 3, None, 0.1, 40.0, 2.5))


def test_a_pong_tells_what_a_probe_asks_where_the_provider_tells_it() -> None:
    side = consumer()
    assert side.receive(of(Pong(7, 0.02)), 0.0) == [Told(7, 0.02)]
    assert side.receive(of(Pong(), Pong(7, None)), 0.0) == []


def test_draining_is_understood_and_answered_once() -> None:
    side = consumer()
    side.call("a", call(), 0.0)
    assert side.receive(of(Drain(), Drain()), 0.0) == [Draining()]
    with pytest.raises(Unavailable, match="the provider is draining") as raised:
        side.call("b", call(), 0.0)
    assert raised.value.may_have_run is False
    assert [frame for frame in sent(side) if isinstance(frame, Drain)] == [Drain()]
    (answered,) = side.receive(of(Answer(1, b"done", b"", 0)), 0.0)
    assert isinstance(answered, Answered)


def test_the_first_frame_must_be_hello() -> None:
    side = ConsumerSide(WireLimits(), now_s=0.0)
    with pytest.raises(ProtocolError, match="the first frame must be HELLO, not PING"):
        side.receive(of(Ping()), 0.0)


def test_another_version_is_named_beside_ours() -> None:
    side = ConsumerSide(WireLimits(), now_s=0.0)
    with pytest.raises(
        ProtocolError, match=r"this side speaks wire version 1, the peer speaks wire version 2 .*'peer'"
    ):
        side.receive(of(hello(version=2)), 0.0)


@pytest.mark.parametrize("field", ["message_bytes", "in_flight", "stream_window_bytes", "methods"])
def test_a_hello_with_an_impossible_bound(field: str) -> None:
    bad = hello()
    setattr(bad, field, 0)
    with pytest.raises(ProtocolError, match="impossible bound"):
        ConsumerSide(WireLimits(), now_s=0.0).receive(of(bad), 0.0)


def test_the_last_word_is_kept() -> None:
    side = consumer()
    side.receive(of(Bye("go away")), 0.0)
    assert side.parting == "go away"
    side.bye("you too")
    assert sent(side) == [Bye("you too")]


# Heartbeats.


def test_a_silent_peer_is_asked_each_interval_and_lost_after_three() -> None:
    side = consumer(WireLimits(heartbeat_interval_s=1.0))
    assert side.beat(1.0) == 2.0
    assert sent(side) == [Ping()]
    assert side.beat(2.0) == 3.0
    assert sent(side) == [Ping()]
    assert side.beat(3.0) is None


def test_a_peer_that_is_heard_is_not_asked() -> None:
    side = consumer(WireLimits(heartbeat_interval_s=1.0))
    side.receive(of(Pong()), 0.9)
    assert side.beat(1.0) == pytest.approx(1.9)
    assert sent(side) == []
    side.receive(of(Pong()), 1.8)
    assert side.beat(1.9) == pytest.approx(2.8)


def test_the_time_in_which_this_process_stood_still_is_not_held_against_the_peer() -> None:
    side = consumer(WireLimits(heartbeat_interval_s=1.0))
    wake_at = side.beat(60.0)
    assert wake_at is not None
    assert sent(side) == [Ping()]
    side.receive(of(Pong()), 60.1)
    assert side.beat(wake_at) is not None


def test_a_ping_gets_a_pong() -> None:
    side = consumer()
    side.receive(of(Ping()), 0.0)
    assert sent(side) == [Pong()]
