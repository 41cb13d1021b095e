"""Compressed bodies in the core: offered, announced, bounded before anything is allocated, and unknown to old peers."""

from __future__ import annotations

from typing import Any

import pytest
from unit.wire.sides import call, carry, consumer, hello, joined, of, provider, sent

from steelyard.errors import Status
from steelyard.model import Invocation, Packed, Reply
from steelyard.wire import WireLimits
from steelyard.wire.frames import Answer, Call, Cancel, Fail, Item, Method, Part, ProtocolError
from steelyard.wire.mux import Answered, Called, ItemArrived, Received

SMALL = Packed("zstd", 5000, b"squeezed")
LARGE = Packed("lz4", 900_000, bytes(200_000))
METHOD = Method(1, "test.Echo", "echo")


def packed_call(id_: int = 1, *, raw: int = 5000, how: int = 1, body: bytes = b"x", **facts: Any) -> Call:
    return Call(id_, 1, None, 1, b"", body, raw=raw, how=how, **facts)


@pytest.mark.parametrize("body", [SMALL, LARGE])
@pytest.mark.parametrize("has_items", [False, True])
def test_a_call_a_reply_and_items_arrive_as_they_were_packed(body: Packed, has_items: bool) -> None:
    calling, serving = joined()
    assert calling.may_pack("zstd", bytes(2000))
    assert serving.may_pack("lz4", bytes(2000))
    opened = calling.call(
        "token", Invocation("test.Echo", "echo", body=body, stream=iter(()) if has_items else None), 0.0
    )  # type: ignore[arg-type]
    (called,) = [event for event in carry(calling, serving, 0.0) if type(event) is Called]
    assert called.invocation.body == body
    if has_items:
        calling.item(opened, body)
        (received,) = [event for event in carry(calling, serving, 0.0) if type(event) is Received]
        assert received.body == body
    serving.open_stream(1, Reply()) if has_items else serving.reply(1, Reply(body=body))  # type: ignore[arg-type]
    if has_items:
        serving.item(1, body)
    events = carry(serving, calling, 0.0)
    arrived = [event.body for event in events if type(event) is ItemArrived]
    answered = [event.reply.body for event in events if type(event) is Answered]
    assert arrived + answered == [body]


def test_an_old_peer_is_sent_nothing_compressed() -> None:
    """Its HELLO has no such field."""
    for side in (consumer(), provider()):
        assert not side.may_pack("zstd", bytes(5000))


def test_what_the_peer_cannot_unpack_is_not_packed() -> None:
    said = hello()
    said.packings = "brotli,lz4"
    side = consumer()
    side._meet(said)
    assert not side.may_pack("zstd", bytes(5000))
    assert not side.may_pack("brotli", bytes(5000))
    assert side.may_pack("lz4", bytes(5000))
    assert not side.may_pack("lz4", bytes(WireLimits().message_bytes + 1))


def test_what_it_becomes_is_bounded_before_it_is_anything() -> None:
    side = provider(WireLimits(message_bytes=10_000))
    side.receive(of(METHOD), 0.0)
    assert side.receive(of(packed_call(raw=10_001)), 0.0) == []
    (fail,) = sent(side)
    assert isinstance(fail, Fail)
    assert (fail.status, fail.message) == (
        Status.RESOURCE_EXHAUSTED,
        "a compressed body of 10001 bytes; the bound is 10000",
    )
    side = consumer(WireLimits(message_bytes=10_000))
    side.call("token", call(), 0.0)
    with pytest.raises(ProtocolError, match="a compressed body of 10001 bytes"):
        side.receive(of(Answer(1, b"x", b"", 0, raw=10_001, how=1)), 0.0)


def test_many_small_ones_do_not_become_too_much_together() -> None:
    limits = WireLimits(message_bytes=50_000, queued_bytes=100_000)
    side = provider(limits)
    side.receive(of(METHOD), 0.0)
    running = [event for n in range(1, 6) for event in side.receive(of(packed_call(n, raw=40_000)), 0.0)]
    assert [event.id for event in running] == [1, 2]
    refused = [frame for frame in sent(side) if isinstance(frame, Fail)]
    assert [(frame.id, frame.status) for frame in refused] == [(n, Status.RESOURCE_EXHAUSTED) for n in (3, 4, 5)]
    side.finished(1)
    assert len(side.receive(of(packed_call(6, raw=40_000)), 0.0)) == 1
    side.finished(2)
    side.finished(6)
    assert side._raw_bytes == 0


def test_one_that_is_given_up_while_it_arrives_is_forgotten() -> None:
    side = provider()
    side.receive(of(METHOD, packed_call(body=b"", more=100, raw=5000), Part(1, memoryview(b"y" * 40))), 0.0)
    assert side._raw_bytes == 5000
    side.receive(of(Cancel(1)), 0.0)
    assert (side._raw_bytes, side._raw_of, side.running) == (0, {}, 0)


@pytest.mark.parametrize(("raw", "how"), [(5000, 3), (5000, -1), (0, 1), (-1, 2), (2**41, 1)])
def test_nonsense_is_a_broken_protocol(raw: int, how: int) -> None:
    side = provider()
    side.receive(of(METHOD), 0.0)
    with pytest.raises(ProtocolError, match="compressed"):
        side.receive(of(packed_call(raw=raw, how=how)), 0.0)
    side = consumer()
    side.call("token", call(), 0.0)
    with pytest.raises(ProtocolError, match="compressed"):
        side.receive(of(Answer(1, b"x", b"", 0, raw=raw, how=how)), 0.0)
    side = consumer()
    side.call("token", call(), 0.0)
    with pytest.raises(ProtocolError, match="compressed"):
        side.receive(of(Answer(1, None, b"", 0), Item(1, b"x", raw=raw, how=how)), 0.0)
