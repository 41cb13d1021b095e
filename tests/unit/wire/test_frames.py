from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.wire.frames import (
    FRAMES_PER_PACKET,
    LOAD_BYTES,
    PING,
    VERSION,
    Answer,
    AnyFrame,
    Bye,
    Call,
    Cancel,
    Credit,
    Drain,
    End,
    Fail,
    Frame,
    Hello,
    Item,
    Load,
    LoadBody,
    Method,
    Ping,
    Pong,
    ProtocolError,
    decode_load,
    decode_names,
    encode,
    encode_load,
    encode_names,
    packet,
    parse,
)

ids = st.integers(0, 2**63 - 1)
numbers = st.integers(-(2**31), 2**31)
bodies = st.binary(max_size=200)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
FRAMES: st.SearchStrategy[AnyFrame] = st.one_of(
    st.builds(Hello, numbers, texts, ids, ids, ids, ids, ids, ids),
    st.builds(Method, ids, texts, texts),
    st.builds(Call, ids, ids, st.none() | numbers, numbers, bodies, bodies),
    st.builds(Answer, ids, st.none() | bodies, bodies, numbers),
    st.builds(Fail, ids, numbers, texts, st.none() | bodies, numbers, st.booleans()),
    st.builds(Cancel, ids),
    st.builds(Item, ids, bodies),
    st.builds(End, ids, numbers),
    st.builds(Credit, ids, numbers),
    st.builds(Load, bodies),
    st.just(Drain()),
    st.just(Ping()),
    st.builds(Pong, st.none() | numbers, st.none() | st.floats(0, 1e6)),
    st.builds(Bye, texts),
)


@given(st.lists(FRAMES, max_size=8))
def test_a_packet_gives_back_its_frames(frames: list[AnyFrame]) -> None:
    assert parse(packet([encode(frame) for frame in frames])) == frames


@given(st.binary(max_size=300))
def test_any_bytes_are_frames_or_a_protocol_error(data: bytes) -> None:
    text = f"wire version {VERSION}"
    try:
        parse(data)
    except ProtocolError as error:
        text = str(error)
    assert f"wire version {VERSION}" in text


@given(st.lists(FRAMES, min_size=1, max_size=4), st.data())
def test_a_damaged_packet_is_frames_or_a_protocol_error(frames: list[AnyFrame], data: st.DataObject) -> None:
    whole = bytearray(packet([encode(frame) for frame in frames]))
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[at] = data.draw(st.integers(0, 255))
    else:
        del whole[at:]
    try:
        parse(bytes(whole))
    except ProtocolError:
        pass


def test_an_unknown_frame_names_its_kind_and_both_versions() -> None:
    data = packet([PING, encode((99, "from the future"))])
    with pytest.raises(ProtocolError, match=r"unknown frame kind 99 \(this side speaks wire version 1, .* version 7\)"):
        parse(data, peer_version=7)


def test_a_frame_may_grow_at_its_end() -> None:
    assert parse(packet([encode((5, 12, "new", [1, 2]))])) == [Cancel(12)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xdd\xff\xff\xff\xff",  # 4 billion frames announced
        b"\xdd\x00\x00\x00\x01",  # one announced, none there
        b"\xdc\xff\xff" + b"\x91\x0b" * 65_535,  # 65,535 PINGs
        b"\x91\xdd\xff\xff\xff\xff\x0b",  # a frame of 4 billion elements
        b"\x91\x93\x06\x01\xc6\xff\xff\xff\xff",  # a body of 4 GiB
        b"\x91\x95\x05\x01" + b"\x91" * 100_000,  # nested 100,000 deep
        b"\x81\x00\x01",  # a map
        b"\x91\x91\x0b\x00",  # something after the packet
        b"\x91\x93\x0d\xa1\xff",  # text that is not UTF-8
    ],
)
def test_hostile_packets(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse(data)


def test_the_most_frames_are_taken_and_one_more_is_not() -> None:
    assert len(parse(packet([PING] * FRAMES_PER_PACKET))) == FRAMES_PER_PACKET
    with pytest.raises(ProtocolError, match=f"the bound is {FRAMES_PER_PACKET}"):
        parse(packet([PING] * (FRAMES_PER_PACKET + 1)))


@given(st.dictionaries(texts, texts, max_size=5))
def test_names_come_back(names: dict[str, str]) -> None:
    data = encode_names(names)
    assert (decode_names(data, most=5) if data else {}) == names


def test_names_are_text_and_bounded() -> None:
    with pytest.raises(TypeError, match="'n' is 7"):
        encode_names({"n": 7})  # type: ignore[dict-item]
    with pytest.raises(ProtocolError, match="2 attachments; the bound is 1"):
        decode_names(encode_names({"a": "1", "b": "2"}), most=1)
    with pytest.raises(ProtocolError, match="undecodable attachments"):
        decode_names(msgspec.msgpack.encode({"a": 1}), most=1)


def test_a_load_report_comes_back_and_keeps_none_apart_from_zero() -> None:
    load = decode_load(encode_load({"cpu": 0.5, "gpu": 0.0}, None, 0, 0.25))
    assert (load.utilization, load.in_flight, load.queue_depth, load.age_s) == ({"cpu": 0.5, "gpu": 0.0}, None, 0, 0.25)


def test_load_reports_are_bounded() -> None:
    with pytest.raises(ValueError, match=f"the bound is {LOAD_BYTES}"):
        encode_load({f"resource-{number}": 0.5 for number in range(2000)}, None, None, 0.0)
    with pytest.raises(ProtocolError, match=f"the bound is {LOAD_BYTES}"):
        decode_load(bytes(LOAD_BYTES + 1))
    with pytest.raises(ProtocolError, match="undecodable load report"):
        decode_load(b"\xc1")


class OldPong(Frame, tag=12):
    """As it was before it told anything."""


class OldLoadBody(msgspec.Struct, array_like=True):
    """As it was before it told rates."""

    utilization: dict[str, float]
    in_flight: int | None
    queue_depth: int | None
    age_s: float


@given(st.none() | numbers, st.none() | st.floats(0, 1e6))
def test_a_pong_that_tells_something_is_read_by_who_expects_nothing(count: int | None, latency_s: float | None) -> None:
    decode = msgspec.msgpack.Decoder(list[OldPong]).decode
    assert decode(packet([encode(Pong(count, latency_s))])) == [OldPong()]
    assert parse(packet([encode(OldPong())])) == [Pong(None, None)]


rates = st.none() | st.floats(0, 1e9)


@given(rates, rates)
def test_rates_in_a_load_report_cross_versions(calls_per_s: float | None, errors_per_s: float | None) -> None:
    body = encode_load({"cpu": 0.5}, 3, None, 0.25, calls_per_s, errors_per_s)
    load = decode_load(body)
    assert (load.calls_per_s, load.errors_per_s) == (calls_per_s, errors_per_s)
    old = OldLoadBody({"cpu": 0.5}, 3, None, 0.25)
    assert msgspec.msgpack.decode(body, type=OldLoadBody) == old
    assert decode_load(encode(old)) == LoadBody({"cpu": 0.5}, 3, None, 0.25)
