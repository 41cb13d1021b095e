"""Large bodies: cut into parts, taken in turn, put together within bounds."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.wire.sides import call, carry, consumer, joined, of, provider, sent

from steelyard.errors import Status
from steelyard.model import Reply
from steelyard.wire import WireLimits
from steelyard.wire.frames import Answer, Call, Cancel, End, Fail, Item, Method, Part, ProtocolError
from steelyard.wire.mux import Answered, Called, ItemArrived, ProviderSide, Received
from steelyard.wire.mux.outbox import PACKET_BYTES, PART_BYTES, TURN_BYTES

METHOD = Method(1, "test.Echo", "echo")
LARGE = 5 * PART_BYTES + 17


def part(id_: int, body: bytes) -> Part:
    return Part(id_, memoryview(body))


@given(st.lists(st.integers(0, 4 * PART_BYTES), min_size=1, max_size=8))
def test_bodies_of_any_sizes_arrive_whole_and_alone(sizes: list[int]) -> None:
    calling, serving = joined()
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    tokens = [calling.call(number, call(body=body), 0.0) for number, body in enumerate(bodies)]
    called = {event.id: event for event in carry(calling, serving, 0.0) if isinstance(event, Called)}
    assert [called[token.id].invocation.body for token in tokens] == bodies
    for event in called.values():
        serving.reply(event.id, Reply(body=event.invocation.body))
        serving.finished(event.id)
    answers = {event.call.token: event.reply.body for event in carry(serving, calling, 0.0) if type(event) is Answered}
    assert answers == dict(enumerate(bodies))
    assert calling.outbox.queued_bytes == serving.outbox.queued_bytes == 0


def test_a_small_call_waits_for_no_more_than_a_packet() -> None:
    side = consumer()
    for _ in range(4):
        side.call("large", call(body=bytes(100 * PART_BYTES)), 0.0)
    side.outbox.take()
    side.call("small", call(body=b"small"), 0.0)
    pieces, _, size = side.outbox.take_pieces()
    assert b"small" in bytes(pieces[0])
    assert size <= PACKET_BYTES + PART_BYTES + 100


def test_large_bodies_take_turns() -> None:
    side = consumer()
    ids = [side.call("large", call(body=bytes(2 * TURN_BYTES)), 0.0).id for _ in range(3)]
    order = [frame.id for frame in sent(side) if isinstance(frame, Part)]
    turns = [id_ for at, id_ in enumerate(order) if at == 0 or order[at - 1] != id_]
    assert turns == ids * 2
    assert max(Counter(order).values()) <= 2 * TURN_BYTES // PART_BYTES + 1


def test_a_body_of_one_turn_is_complete_before_the_next_begins() -> None:
    side = consumer()
    ids = [side.call("large", call(body=bytes(TURN_BYTES - 1)), 0.0).id for _ in range(3)]
    order = [frame.id for frame in sent(side) if isinstance(frame, Part)]
    assert order == sorted(order)
    assert set(order) == set(ids)


def test_what_follows_a_large_item_does_not_overtake_it() -> None:
    side = provider()
    side.receive(of(METHOD, Call(1, 1, None, 1, b"", b"")), 0.0)
    side.open_stream(1, Reply())
    side.item(1, b"first")
    side.item(1, bytes(LARGE))
    side.item(1, b"last")
    side.end(1)
    kinds = [type(frame) for frame in sent(side)]
    assert kinds == [Answer, Item, Item, *[Part] * 6, Item, End]


def test_a_cancelled_call_sends_no_more_parts() -> None:
    side = consumer()
    one = side.call("large", call(body=bytes(100 * PART_BYTES)), 0.0)
    side.outbox.take()
    side.cancel(one)
    assert [type(frame) for frame in sent(side)] == [Cancel]
    assert side.outbox.queued_bytes == 0


def test_a_call_that_has_not_left_whole_has_not_run() -> None:
    side = consumer()
    side.call("large", call(body=bytes(100 * PART_BYTES)), 0.0)
    side.call("small", call(), 0.0)
    side.outbox.take()
    assert {event.call.token: event.error.may_have_run for event in side.lost("gone")} == {
        "large": False,
        "small": True,
    }


def test_a_reply_that_nobody_waits_for_stops() -> None:
    side = provider()
    side.receive(of(METHOD, Call(1, 1, None, 1, b"", b"")), 0.0)
    side.reply(1, Reply(body=bytes(100 * PART_BYTES)))
    side.finished(1)
    side.outbox.take()
    side.receive(of(Cancel(1)), 0.0)
    assert sent(side) == []


def test_a_body_over_the_bound_is_refused_before_it_comes() -> None:
    side = provider(WireLimits(message_bytes=10_000))
    events = side.receive(of(METHOD, Call(1, 1, None, 1, b"", b"", 20_000), part(1, bytes(10))), 0.0)
    assert events == []
    (refusal,) = sent(side)
    assert isinstance(refusal, Fail)
    assert (refusal.status, refusal.has_started) == (Status.RESOURCE_EXHAUSTED, False)


def test_bodies_that_arrive_are_bounded_together() -> None:
    side = provider(WireLimits(queued_bytes=64 * 1024, message_bytes=64 * 1024))
    side.receive(of(METHOD, *(Call(n, 1, None, 1, b"", b"", 30_000) for n in (1, 2, 3))), 0.0)
    (refusal,) = sent(side)
    assert isinstance(refusal, Fail)
    assert refusal.id == 3
    side.receive(of(Cancel(1), Call(4, 1, None, 1, b"", b"", 30_000)), 0.0)
    assert sent(side) == []
    assert side.running == 2


def test_a_call_whose_body_never_comes_expires_and_counts_no_more() -> None:
    side = provider()
    side.receive(of(METHOD, Call(1, 1, 100, 1, b"", b"", 30_000), part(1, bytes(100))), 0.0)
    assert side.running == 1
    side.expire(0.2)
    assert side.running == 0
    (failure,) = sent(side)
    assert isinstance(failure, Fail)
    assert side.receive(of(part(1, bytes(29_900))), 0.3) == []


def test_an_item_that_the_handler_did_not_wait_for_is_forgotten() -> None:
    """Nobody sends its rest, so it was kept until the connection ended."""
    side = provider()
    side.receive(of(METHOD, Call(1, 1, None, 1, b"", b"", 0, True), Item(1, b"", LARGE), part(1, b"x")), 0.0)
    side.reply(1, Reply(body=b"enough"))
    side.finished(1)
    assert not side._assemblies
    assert side.receive(of(part(1, b"x")), 0.0) == [], "it may have been under way"


def test_what_had_come_of_a_body_goes_with_the_connection() -> None:
    """It was let go when Python's collector came to it, which with many objects about may be long after."""
    side = provider()
    side.receive(of(METHOD, Call(1, 1, None, 1, b"", b"", 0, True), Item(1, b"", LARGE), part(1, b"x")), 0.0)
    side.abandon()
    caller = consumer()
    caller.call("token", call(), 0.0)
    caller.receive(of(Answer(1, b"", b"", 0, LARGE), part(1, b"x")), 0.0)
    assert len(caller.lost("gone")) == 1
    assert (side._assemblies, side._begun) == (caller._assemblies, caller._begun) == ({}, 0)


@pytest.mark.parametrize("way", ["packet", "place"])
def test_many_that_are_only_announced_take_little(way: str) -> None:
    """2 MiB and a byte of it, a thousand times: 2 GB for 60 KB."""
    side, most = provider(), 1000
    for id_ in range(1, most + 1):
        frames = (Call(id_, 1, None, 1, b"", b"", 0, True), Item(id_, b"", 2 * 1024 * 1024))
        side.receive(of(*(METHOD, *frames) if id_ == 1 else frames), 0.0)
        if way == "packet":
            side.receive(of(part(id_, b"x")), 0.0)
        else:
            assert side.place(id_, 20_000) is not None
    assert sum(len(each.buffer) for each in side._assemblies.values()) < 64 * 1024 * 1024 + most * 2 * 20_000
    for id_ in range(1, most + 1):
        side.finished(id_)
    assert (side._begun, side._assemblies) == (0, {})


@pytest.mark.parametrize(
    "frames",
    [
        (part(1, b"x"),),
        (Call(1, 1, None, 1, b"", b"", 10), part(1, bytes(11))),
        (Call(1, 1, None, 1, b"", b"", 10), part(1, b"")),
        (Call(1, 1, None, 1, b"", b"", -1),),
        (Call(1, 1, None, 1, b"", b"some", 10),),
        (Call(1, 1, None, 1, b"", b""), Item(1, b"x")),
        (Call(1, 1, None, 1, b"", b""), End(1, 0)),
        (Call(1, 1, None, 1, b"", b"", 10, True), Item(1, b"x")),
        (Call(1, 1, None, 1, b"", b"", 0, True), Item(1, b"", 10), End(1, 0)),
        (Call(1, 1, None, 1, b"", b"", 0, True), Item(1, b"", 2**40)),
        (Call(1, 1, None, 1, b"", b"", 0, True), End(1, 0), Item(1, b"x")),
        (Call(1, 1, None, 1, b"", b"", 0, True), *(Item(1, bytes(100_000)) for _ in range(5))),
    ],
    ids=range(12),
)
def test_what_a_consumer_must_not_send(frames: tuple[Call | Part | Item | End, ...]) -> None:
    side = provider()
    with pytest.raises(ProtocolError):
        side.receive(of(METHOD, *frames), 0.0)


def test_what_a_provider_must_not_announce() -> None:
    for frame in (Answer(1, b"", b"", 0, 2**40), Answer(1, b"some", b"", 0, 10), Answer(1, b"", b"", 0, -1)):
        side = consumer()
        side.call("a", call(), 0.0)
        with pytest.raises(ProtocolError):
            side.receive(of(frame), 0.0)


def test_a_large_item_of_the_callers_stream() -> None:
    calling, serving = joined()
    stream = object()
    one = calling.call("a", call(stream=stream), 0.0)
    calling.item(one, b"first")
    calling.item(one, bytes(LARGE))
    calling.end(one)
    events = carry(calling, serving, 0.0)
    assert [len(event.body) for event in events if isinstance(event, Received)] == [5, LARGE]
    serving.open_stream(one.id, Reply())
    serving.item(one.id, bytes(LARGE))
    assert [len(event.body) for event in carry(serving, calling, 0.0) if isinstance(event, ItemArrived)] == [LARGE]


# Read straight into the body.


def arriving(size: int = LARGE, **facts: int) -> ProviderSide:
    side = provider(WireLimits(**facts))
    side.receive(of(METHOD, Call(1, 1, None, 1, b"", b"", size)), 0.0)
    return side


def test_a_part_is_read_straight_into_its_body() -> None:
    side, body, events = arriving(), bytes(range(256)) * (LARGE // 256 + 1), []
    for at in range(0, LARGE, PART_BYTES):
        chunk = body[:LARGE][at : at + PART_BYTES]
        place = side.place(1, len(chunk))
        assert place is not None
        place[:] = chunk
        events += side.placed(1, 0.0)
    assert [event.invocation.body for event in events if isinstance(event, Called)] == [body[:LARGE]]


@pytest.mark.parametrize(("id_", "size"), [(2, 10), (1, 0), (1, LARGE + 1), (1, 2**32 - 1)])
def test_there_is_no_place_for_what_was_not_announced(id_: int, size: int) -> None:
    assert arriving().place(id_, size) is None


def test_a_part_that_promises_much_has_no_place() -> None:
    side = arriving(16 * 1024 * 1024)
    assert side.place(1, 16 * 1024 * 1024) is None
    place = side.place(1, 100_000)
    assert place is not None
    assert len(place.obj) <= 2 * 1024 * 1024


def test_a_call_that_is_over_while_a_part_of_it_comes() -> None:
    side = arriving(PART_BYTES + 1)
    assert side.place(1, PART_BYTES) is not None
    side.expire(1e9)
    side.receive(of(Cancel(1)), 0.0)
    assert side.placed(1, 0.0) == []
    assert side.place(1, 1) is None, "nobody wants the rest"
    assert side.placed(1, 0.0) == []


def test_a_part_of_another_body_of_the_same_stream_is_none_of_this_one() -> None:
    calling, serving = joined(provider_limits=WireLimits(stream_window_bytes=16 * LARGE))
    one = calling.call("a", call(stream=object()), 0.0)
    carry(calling, serving, 0.0)
    serving.receive(of(Item(one.id, b"", LARGE)), 0.0)
    place = serving.place(one.id, PART_BYTES)
    assert place is not None
    serving._assemblies.clear()  # as if it had been given up
    serving.receive(of(Item(one.id, b"", LARGE)), 0.0)
    assert serving.placed(one.id, 0.0) == []
    assert serving._assemblies[one.id].have == 0
