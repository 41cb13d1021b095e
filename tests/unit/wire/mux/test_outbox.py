from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steelyard.wire.frames import (
    DRAIN,
    PING,
    AnyFrame,
    Call,
    Cancel,
    Drain,
    End,
    Item,
    Load,
    Part,
    Ping,
    Pong,
    encode,
    parse,
)
from steelyard.wire.mux import Outbox
from steelyard.wire.mux.outbox import BURST_FRAMES, MESSAGE_FRAMES, PACKET_BYTES


def taken(outbox: Outbox) -> list[object]:
    data = outbox.take()
    return [] if data is None else list(parse(data))


def test_what_waits_leaves_together_and_in_order() -> None:
    outbox = Outbox()
    assert not outbox.is_waiting
    assert outbox.take() is None
    outbox.put(PING)
    outbox.put(DRAIN)
    assert outbox.is_waiting
    assert outbox.queued_bytes == len(PING) + len(DRAIN)
    assert taken(outbox) == [Ping(), Drain()]
    assert not outbox.is_waiting
    assert outbox.queued_bytes == 0


@given(st.integers(1, 3000))
def test_a_crowd_leaves_in_quanta_that_grow_with_it(crowd: int) -> None:
    outbox = Outbox()
    for number in range(1, crowd + 1):
        outbox.put(encode(Cancel(number)))
        assert outbox.is_burst == (number >= BURST_FRAMES)
    sizes, left = [], []
    while found := taken(outbox):
        sizes.append(len(found))
        left += found
    assert left == [Cancel(number) for number in range(1, crowd + 1)]
    assert sizes[0] == min(crowd, max(MESSAGE_FRAMES, crowd // 4))
    assert len(sizes) < 5 + crowd // MESSAGE_FRAMES  # each message has its price
    assert len(sizes) <= 20


def test_large_frames_are_cut_into_packets() -> None:
    outbox = Outbox()
    large = encode(Item(1, bytes(PACKET_BYTES // 2)))
    for _ in range(3):
        outbox.put(large)
    outbox.put(PING)
    sizes = []
    while outbox.is_waiting:
        sizes.append(len(taken(outbox)))
    assert sizes == [1, 1, 2]
    assert outbox.queued_bytes == 0


def test_a_frame_above_the_packet_size_goes_alone() -> None:
    outbox = Outbox()
    outbox.put(PING)
    outbox.put(encode(Item(1, bytes(2 * PACKET_BYTES))))
    outbox.put(PING)
    assert [len(taken(outbox)) for _ in range(3)] == [1, 1, 1]


def test_a_call_is_handed_over_when_it_is_taken() -> None:
    outbox = Outbox()
    outbox.put(PING, 1)
    outbox.put(PING, 2)
    assert outbox.handed_id == 0
    outbox.take()
    assert outbox.handed_id == 2


def test_a_withdrawn_call_never_leaves() -> None:
    outbox = Outbox()
    outbox.put(encode(Cancel(1)), 1)
    outbox.put(encode(Cancel(2)), 2)
    assert outbox.withdraw(1)
    assert taken(outbox) == [Cancel(2)]
    assert not outbox.withdraw(2), "it is gone"
    assert outbox.queued_bytes == 0


def test_a_flood_of_pings_queues_one_pong_and_only_the_newest_load_report() -> None:
    outbox = Outbox()
    for number in range(1000):
        outbox.pong()
        outbox.load(encode(Load(b"%d" % number)))
    assert taken(outbox) == [Pong(), Load(b"999")]
    assert not outbox.is_waiting


def test_cleared_is_empty() -> None:
    outbox = Outbox()
    outbox.put(PING, 1)
    outbox.pong()
    outbox.load(PING)
    outbox.clear()
    assert (outbox.take(), outbox.queued_bytes, outbox.handed_id) == (None, 0, 0)


@given(st.lists(st.tuples(st.integers(1, 2000), st.booleans()), max_size=40))
def test_bytes_and_order_are_kept_whatever_is_withdrawn(entries: list[tuple[int, bool]]) -> None:
    outbox = Outbox()
    for call_id, (size, _) in enumerate(entries, 1):
        outbox.put(encode(Item(call_id, bytes(size * 300))), call_id)
    gone = {call_id for call_id, (_, is_withdrawn) in enumerate(entries, 1) if is_withdrawn}
    for call_id in gone:
        assert outbox.withdraw(call_id)
    ids = []
    while outbox.is_waiting:
        before = outbox.queued_bytes
        ids.extend(frame.id for frame in taken(outbox) if isinstance(frame, Item))
        assert outbox.queued_bytes < before
    assert ids == [call_id for call_id in range(1, len(entries) + 1) if call_id not in gone]
    assert outbox.queued_bytes == 0


def _call(call_id: int, body: bytes = b"") -> Call:
    return Call(call_id, 1, None, 1, b"", body)


def test_a_withdrawn_calls_stream_goes_with_it() -> None:
    outbox = Outbox()
    outbox.put(encode(_call(1)), 1)
    outbox.put(encode(_call(2)), 2)
    outbox.put_in_order(2, encode(Item(2, b"up")))
    outbox.put(encode(_call(3)), 3)
    outbox.put_in_order(2, encode(End(2, 0)))
    outbox.put_in_order(3, encode(End(3, 0)))
    assert outbox.withdraw(2)
    data = outbox.take()
    assert data is not None
    assert parse(data) == [_call(1), _call(3), End(3, 0)]
    assert (outbox.queued_bytes, outbox.is_waiting, outbox.handed_id) == (0, False, 3)


def test_a_large_item_does_not_overtake_its_own_call() -> None:
    outbox = Outbox()
    for call_id in (1, 2, 3, 4):
        outbox.put(encode(_call(call_id, bytes(60_000))), call_id)
    outbox.put_in_order(4, encode(Item(4, b"", 70_000)), bytes(70_000))
    kinds: list[type[AnyFrame]] = []
    while (data := outbox.take()) is not None:
        kinds += [type(frame) for frame in parse(data) if getattr(frame, "id", 0) == 4]
    assert kinds == [Call, Item, Part, Part]
