"""Packets out of a byte stream: however it is cut, and whatever is in it."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wires import Handler, call, until

from steelyard.errors import Unavailable
from steelyard.wire import Channel, LaneConnector, Listener, WireLimits, lane_tag, read_lanes
from steelyard.wire.frames import ProtocolError, packet, part_head
from steelyard.wire.lane import socket_path
from steelyard.wire.socket_carrier import HIGH_WATER_BYTES, Link


class Transport:
    """A transport that does nothing but remember."""

    def __init__(self) -> None:
        self.is_reading = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def set_write_buffer_limits(self, **_: int) -> None: ...

    def get_extra_info(self, _: str) -> None: ...


class Heard:
    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.errors: list[Exception | None] = []
        self.takes_parts = True
        self._placing = bytearray()
        self.parts: list[tuple[int, bytes]] = []

    def place(self, id_: int, size: int) -> memoryview | None:
        if not self.takes_parts:
            return None
        self._placing = bytearray(size)
        return memoryview(self._placing)

    def placed(self, id_: int) -> None:
        self.parts.append((id_, bytes(self._placing)))

    def packet(self, data: memoryview) -> None:
        self.packets.append(bytes(data))

    def lost(self, error: Exception | None) -> None:
        self.errors.append(error)

    def writable(self) -> None: ...


def feed(link: Link, data: bytes) -> None:
    while data:
        buffer = link.get_buffer(-1)
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        link.buffer_updated(count)
        data = data[count:]


class Silent(Transport):
    """Its peer reads nothing, and as asyncio's own in Python 3.12 and 3.13 it looks at its limits in ``write`` and when
    they are set, and not in ``writelines``."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._high_bytes = self._bytes = 0

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self._bytes += len(data)
        self._look()

    def writelines(self, pieces: list[bytes]) -> None:
        self._bytes += sum(map(len, pieces))

    def get_write_buffer_size(self) -> int:
        return self._bytes

    def set_write_buffer_limits(self, high: int = 0, low: int = 0) -> None:
        self._high_bytes = high
        self._look()

    def _look(self) -> None:
        if self._bytes > self._high_bytes:
            self._link.pause_writing()


async def test_a_link_is_congested_when_too_much_waits_to_be_written_also_where_the_loop_does_not_say_so() -> None:
    for size, count in ((1_000, 400), (HIGH_WATER_BYTES * 2, 1)):
        for in_one in (False, True):
            link = Link(WireLimits())
            link.connection_made(Silent(link))
            packets = [([bytes(size)], 1, size)] * count
            assert not link.is_congested
            if in_one:
                link.write_packets(packets)
            else:
                for packet_ in packets:
                    link.write(*packet_)
            assert link.is_congested


@given(st.lists(st.integers(0, 700_000), min_size=1, max_size=6), st.lists(st.integers(1, 300_000), max_size=20))
def test_packets_arrive_however_the_stream_is_cut(sizes: list[int], cuts: list[int]) -> None:
    async def run() -> None:
        link, heard = Link(WireLimits()), Heard()
        link.connection_made(Transport())
        link.attach(heard)
        packets = [os.urandom(16) * (size // 16) for size in sizes]
        data = b"".join(struct.pack(">I", len(packet)) + packet for packet in packets)
        for cut in cuts:
            feed(link, data[:cut])
            data = data[cut:]
        feed(link, data)
        assert heard.packets == packets
        assert heard.errors == []

    asyncio.run(run())


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 300_000)), min_size=1, max_size=8),
    st.lists(st.integers(1, 300_000), max_size=20),
    st.booleans(),
)
def test_parts_are_read_to_where_they_belong_however_the_stream_is_cut(
    sizes: list[tuple[bool, int]], cuts: list[int], takes_parts: bool
) -> None:
    async def run() -> None:
        link, heard = Link(WireLimits()), Heard()
        heard.takes_parts = takes_parts
        link.connection_made(Transport())
        link.attach(heard)
        bodies = [os.urandom(16) * (size // 16) for _, size in sizes]
        packets = [
            packet([part_head(id_, len(body)), body], 1) if is_part else body
            for id_, ((is_part, _), body) in enumerate(zip(sizes, bodies, strict=True))
        ]
        data = b"".join(struct.pack(">I", len(each)) + each for each in packets)
        for cut in cuts:
            feed(link, data[:cut])
            data = data[cut:]
        feed(link, data)
        assert heard.errors == []
        if not takes_parts:
            assert heard.packets == packets
            return
        assert [body for _, body in heard.parts] + heard.packets == [
            *(bodies[id_] for id_, _ in heard.parts),
            *(each for id_, each in enumerate(packets) if id_ not in dict(heard.parts)),
        ]
        large = {id_ for id_, (is_part, size) in enumerate(sizes) if is_part and size > 70_000}
        assert large <= set(dict(heard.parts))

    asyncio.run(run())


async def test_a_length_over_the_bound_ends_it_before_anything_is_allocated() -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"GE", struct.pack(">I", 2**32 - 1)):
        link, heard = Link(WireLimits(message_bytes=1024)), Heard()
        link.connection_made(Transport())
        link.attach(heard)
        for byte in data:
            feed(link, bytes([byte]))
            if heard.errors:
                break
        assert all(isinstance(error, ProtocolError) for error in heard.errors)
        assert len(heard.errors) == (len(data) >= 4)


async def test_a_promised_length_is_not_allocated_before_it_comes() -> None:
    link, heard = Link(WireLimits(message_bytes=1 << 28)), Heard()
    link.connection_made(Transport())
    link.attach(heard)
    feed(link, struct.pack(">I", 1 << 28) + b"x")
    assert len(link.get_buffer(-1)) <= 1 << 20


async def test_what_comes_before_anybody_listens_is_kept() -> None:
    link, heard = Link(WireLimits()), Heard()
    link.connection_made(Transport())
    feed(link, struct.pack(">I", 3) + b"one" + struct.pack(">I", 3) + b"t")
    assert await link.first() == b"one"
    link.attach(heard)
    feed(link, b"wo")
    assert heard.packets == [b"one", b"two"]


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\xa5" * 1000, b"\x00\x00\x00\x02\x90\xc1"]
)
async def test_garbage_ends_its_connection_and_no_other(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with Listener(Handler(), lanes=("tcp",)) as listener:
        channel = Channel(listener.address, connector=LaneConnector("tcp", listener.lanes))
        await channel.connect()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(listener.lanes["tcp"]))
        writer.write(garbage)
        writer.write_eof()
        async with asyncio.timeout(10):
            await reader.read()
        writer.close()
        await until(lambda: listener.connections == 1)
        assert (await channel(call())).body == b"hi"
        await channel.close()


async def test_a_peer_that_says_nothing_is_out_within_three_heartbeats() -> None:
    limits = WireLimits(heartbeat_interval_s=0.25)
    async with Listener(Handler(), lanes=("tcp",), limits=limits) as listener:
        writers = [(await asyncio.open_connection("127.0.0.1", int(listener.lanes["tcp"])))[1] for _ in range(50)]
        await until(lambda: listener.connections == 50)
        await until(lambda: listener.connections == 0)
        for writer in writers:
            writer.close()


async def test_a_pinned_lane_that_is_not_offered_is_unreachable() -> None:
    async with Listener(Handler()) as listener:
        for kind in ("tcp", "uds"):
            channel = Channel(listener.address, connector=LaneConnector(kind))
            with pytest.raises(Unavailable, match=f"offers no {kind} lane"):
                await channel.connect()
            await channel.close()


async def test_the_socket_is_this_users_alone_and_goes_with_its_listener() -> None:
    async with Listener(Handler(), lanes=("uds",)) as listener:
        path = listener.lanes["uds"]
        folder = os.stat(os.path.dirname(path))
        assert (stat.S_IMODE(folder.st_mode), folder.st_uid) == (0o700, os.getuid())
        assert os.path.exists(path)
    assert not os.path.exists(path)


def test_a_folder_that_others_can_enter_is_not_used(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = os.path.join(str(tmp_path), f"steelyard-{os.getuid()}")
    os.mkdir(folder)
    os.chmod(folder, 0o755)
    with pytest.raises(OSError, match="not a folder of this user alone"):
        socket_path(1)


@given(st.text())
def test_reading_a_tag_never_fails(tag: str) -> None:
    for kind, place in read_lanes(tag).items():
        assert kind in ("tcp", "uds")
        assert place


def test_tags() -> None:
    lanes = {"uds": "/run/x.sock", "tcp": "4001"}
    assert lane_tag(lanes) == "tcp:4001,uds:/run/x.sock"
    assert read_lanes(lane_tag(lanes)) == lanes
    assert read_lanes("tcp:0,tcp:65536,tcp:x,uds:relative,quic:1") == {}
