"""Large bodies over a byte stream: what goes first, and how much is under way."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steelyard.wire.frames import PING, Call, Part, Ping, Pong, encode, packet, parse
from steelyard.wire.mux import Outbox
from steelyard.wire.mux.outbox import CALM_MESSAGE_BYTES, CALM_PART_BYTES, PART_BYTES
from steelyard.wire.mux.pace import BUSY_BYTES, CALM_AFTER_S, CALM_PARTS, Pace

CALM_BYTES = CALM_PARTS * CALM_PART_BYTES
LARGE = 10 * CALM_BYTES


def with_body(size: int = LARGE) -> Outbox:
    outbox = Outbox()
    outbox.is_paced = True
    outbox.put(encode(Call(1, 1, None, 1, b"", b"", size)), 1)
    outbox.put_parts(1, bytes(size))
    return outbox


def taken(outbox: Outbox, now_s: float = 1000.0) -> list[list[object]]:
    """The frames of each packet."""
    return [list(parse(packet(pieces, count))) for pieces, count, _ in outbox.take_apart(now_s)]


def parts_of(packets: list[list[object]]) -> int:
    return sum(len(frame.body) for frames in packets for frame in frames if isinstance(frame, Part))


def test_a_part_is_alone_in_its_packet_and_a_ping_asks_what_became_of_it() -> None:
    call, part, ping = taken(with_body())
    assert [type(frame) for frame in call] == [Call]
    assert [type(frame) for frame in part] == [Part]
    assert ping == [Ping()]


def test_no_more_is_under_way_than_a_pong_has_answered_for() -> None:
    outbox, sent = with_body(), 0
    while outbox.is_waiting:
        sent += parts_of(taken(outbox))
    assert CALM_BYTES <= sent < CALM_BYTES + CALM_PART_BYTES
    assert taken(outbox) == []
    outbox.ponged(1000.0)
    assert outbox.is_waiting
    assert parts_of(taken(outbox)) == CALM_PART_BYTES


def test_beside_small_frames_one_part_is_under_way() -> None:
    outbox = with_body()
    outbox.put(PING)
    assert parts_of(taken(outbox)) == PART_BYTES
    assert not outbox.is_waiting
    outbox.put(PING)
    assert outbox.is_waiting
    assert taken(outbox) == [[Ping()]], "what is small does not wait for a PONG"
    outbox.ponged(1000.0)
    assert parts_of(taken(outbox)) == PART_BYTES


def test_it_is_calm_again_after_a_while() -> None:
    outbox = with_body()
    outbox.put(PING)
    taken(outbox, 1000.0)
    outbox.ponged(1000.0)
    assert parts_of(taken(outbox, 1000.0 + 2 * CALM_AFTER_S)) == CALM_PART_BYTES


def test_small_frames_that_went_before_the_body_came_count_too() -> None:
    outbox = Outbox()
    outbox.is_paced = True
    outbox.put(encode(Call(1, 1, None, 1, b"", b"")), 1)
    outbox.take_pieces()
    outbox.put(encode(Call(2, 1, None, 1, b"", b"", LARGE)), 2)
    outbox.put_parts(2, bytes(LARGE))
    assert parts_of(taken(outbox)) == PART_BYTES


def test_in_messages_too_parts_are_large_while_it_is_calm_and_small_beside_small_frames() -> None:
    def body_of(outbox: Outbox) -> list[int]:
        data = outbox.take(1000.0)
        assert data is not None
        return [len(frame.body) for frame in parse(data) if isinstance(frame, Part)]

    assert body_of(with_body()) == [CALM_MESSAGE_BYTES]
    busy = with_body()
    busy.put(PING)
    assert body_of(busy) == [PART_BYTES]


def test_a_far_peer_gets_what_keeps_the_way_full() -> None:
    pace = Pace()
    pace.look(0.0, has_small=True, calm_bytes=CALM_BYTES)
    pace.sent(BUSY_BYTES)
    assert pace.asks(0.0)
    assert not pace.has_room
    pace.answered(0.01)
    pace.sent(BUSY_BYTES)
    assert pace.has_room
    pace.sent(1_200_000)
    assert not pace.has_room


@given(
    st.integers(1, 5 * CALM_BYTES),
    st.lists(st.tuples(st.sampled_from(("small", "pong", "take", "extra pong")), st.floats(0, 0.1)), max_size=60),
)
def test_whatever_comes_all_of_it_leaves(size: int, steps: list[tuple[str, float]]) -> None:
    outbox, now_s, sent, pings = with_body(size), 1000.0, 0, 0

    def take() -> None:
        nonlocal sent, pings
        packets = taken(outbox, now_s)
        sent += parts_of(packets)
        pings += packets.count([Ping()])

    for step, wait_s in steps:
        now_s += wait_s
        if step == "small":
            outbox.put(encode(Pong()))
        elif step == "take" and outbox.has_bodies:
            take()
        elif step == "extra pong" or pings:
            outbox.ponged(now_s)
            pings = max(0, pings - 1)
    for _ in range(2 * size // PART_BYTES + 100):
        if outbox.has_bodies:
            take()
        outbox.ponged(now_s)
    assert sent == size
    assert outbox.queued_bytes == sum(len(frame) for _, frame in outbox._frames)
