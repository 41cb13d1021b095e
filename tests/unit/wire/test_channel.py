from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from support.wires import call, until
from unit.wire.carriers import Peer, hear, say
from unit.wire.sides import hello

from steelyard.errors import DeadlineExceeded, Overloaded, Unavailable
from steelyard.model import LoadReport
from steelyard.wire import ChannelState, WireLimits
from steelyard.wire.frames import (
    Answer,
    AnyFrame,
    Bye,
    Call,
    Cancel,
    Drain,
    End,
    Fail,
    Hello,
    Item,
    Load,
    Ping,
    Pong,
    encode_load,
)
from steelyard.wire.loopback import MemoryCarrier

QUICK = WireLimits(heartbeat_interval_s=0.05, connect_timeout_s=0.1, backoff_base_s=0.01, backoff_max_s=0.05)


async def greet(carrier: MemoryCarrier) -> None:
    await say(carrier, hello())


async def test_it_connects_with_the_first_call_and_only_once() -> None:
    peer = Peer(greet)
    async with peer.channel() as channel:
        assert channel.state is ChannelState.IDLE
        assert peer.attempts == []
        tasks = [asyncio.ensure_future(channel(call(body=b"%d" % n))) for n in range(3)]
        await until(lambda: peer.carriers)
        (first,) = await hear(peer.carriers[0])
        assert isinstance(first, Hello)
        calls = [frame for frame in await hear(peer.carriers[0]) if isinstance(frame, Call)]
        assert [frame.body for frame in calls] == [b"0", b"1", b"2"], "they shared one packet"
        await say(peer.carriers[0], *(Answer(frame.id, frame.body, b"", 0) for frame in calls))
        assert [(await task).body for task in tasks] == [b"0", b"1", b"2"]
        assert len(peer.attempts) == 1
        assert channel.state is ChannelState.READY


async def test_nobody_there() -> None:
    peer = Peer()
    peer.refusal = "UNAVAILABLE: connection refused"
    states: list[ChannelState] = []
    async with peer.channel(limits=QUICK, on_state=states.append) as channel:
        with pytest.raises(Unavailable, match="unreachable: UNAVAILABLE: connection refused") as raised:
            await channel(call())
        assert raised.value.may_have_run is False
        assert raised.value.node == "peer:1"
        with pytest.raises(Unavailable):
            await channel.connect()
        assert states == [ChannelState.CONNECTING, ChannelState.UNREACHABLE]


async def test_while_unreachable_calls_fail_without_waiting_and_attempts_go_on() -> None:
    peer = Peer(greet)
    peer.refusal = "refused"
    async with peer.channel(limits=QUICK) as channel:
        with pytest.raises(Unavailable):
            await channel.connect()
        task = asyncio.ensure_future(channel(call()))
        await asyncio.sleep(0)
        assert task.done(), "it did not wait for anything"
        assert isinstance(task.exception(), Unavailable)
        await until(lambda: len(peer.attempts) > 3)
        peer.refusal = None
        await until(lambda: channel.state is ChannelState.READY)


async def test_back_off_grows_to_its_bound() -> None:
    peer = Peer()
    peer.refusal = "refused"
    limits = WireLimits(backoff_base_s=0.02, backoff_max_s=0.2)
    async with peer.channel(limits=limits) as channel:
        with pytest.raises(Unavailable):
            await channel.connect()
        await until(lambda: len(peer.attempts) == 8)
    gaps = [after - before for before, after in zip(peer.attempts, peer.attempts[1:], strict=False)]
    assert gaps[0] >= 0.02 * 0.8
    assert all(gap >= 0.2 * 0.8 for gap in gaps[-2:])


async def test_connect_does_not_wait_for_the_back_off() -> None:
    peer = Peer(greet)
    peer.refusal = "refused"
    async with peer.channel(limits=WireLimits(backoff_base_s=50.0, backoff_max_s=50.0)) as channel:
        with pytest.raises(Unavailable):
            await channel.connect()
        peer.refusal = None
        async with asyncio.timeout(10):
            await channel.connect()
        assert channel.state is ChannelState.READY


async def test_a_connector_that_breaks_is_an_unreachable_address() -> None:
    async def broken(_: MemoryCarrier) -> None:
        raise ValueError("no such scheme")

    async with Peer(broken).channel(limits=QUICK) as channel:
        with pytest.raises(Unavailable, match="ValueError: no such scheme"):
            await channel(call())


async def test_a_peer_that_accepts_and_says_nothing() -> None:
    async with Peer().channel(limits=QUICK) as channel:
        with pytest.raises(Unavailable, match=r"the provider said nothing within 0.1 s") as raised:
            await channel(call())
        assert raised.value.may_have_run is False


async def test_a_connector_that_hangs() -> None:
    async def hang(_: MemoryCarrier) -> None:
        await asyncio.Event().wait()

    async with Peer(hang).channel(limits=QUICK) as channel:
        with pytest.raises(Unavailable, match=r"no connection within 0.1 s"):
            await channel(call())


async def test_a_deadline_counts_while_connecting() -> None:
    async with Peer().channel() as channel:
        with pytest.raises(DeadlineExceeded, match="before there was a connection") as raised:
            await channel(call(deadline_at=time.monotonic() + 0.05))
        assert raised.value.may_have_run is False
        with pytest.raises(DeadlineExceeded):
            await channel(call(deadline_at=time.monotonic() - 1))


async def test_cancelling_one_caller_leaves_the_others_their_connection() -> None:
    peer = Peer()
    async with peer.channel() as channel:
        one, two = (asyncio.ensure_future(channel(call(body=body))) for body in (b"1", b"2"))
        await until(lambda: peer.carriers)
        one.cancel()
        await greet(peer.carriers[0])
        await hear(peer.carriers[0])
        frames = [frame for frame in await hear(peer.carriers[0]) if isinstance(frame, Call)]
        assert [frame.body for frame in frames] == [b"2"]
        await say(peer.carriers[0], Answer(frames[0].id, b"done", b"", 0))
        assert (await two).body == b"done"
        assert one.cancelled()


async def test_another_version_is_a_clear_error_and_the_peer_is_told() -> None:
    async def of_the_future(carrier: MemoryCarrier) -> None:
        await say(carrier, hello(version=9))

    peer = Peer(of_the_future)
    async with peer.channel() as channel:
        with pytest.raises(Unavailable, match="this side speaks wire version 1, the peer speaks wire version 9"):
            await channel(call())
        frames = [frame for _ in range(2) for frame in await hear(peer.carriers[0])]
        assert isinstance(frames[-1], Bye)
        assert "wire version 9" in frames[-1].reason


async def test_hostile_bytes_end_the_connection_and_fail_its_calls() -> None:
    peer = Peer(greet)
    async with peer.channel() as channel:
        task = asyncio.ensure_future(channel(call()))
        await until(lambda: peer.carriers)
        await hear(peer.carriers[0])
        await hear(peer.carriers[0])
        await peer.carriers[0].send(b"\xc1 nonsense")
        with pytest.raises(Unavailable, match="undecodable packet") as raised:
            await task
        assert raised.value.may_have_run is True


@pytest.mark.parametrize(
    "frames",
    [
        (Answer(1, b"hi", b"", 0), Answer(99, b"", b"", 0)),
        (Fail(1, 14, "no", None, 0, False), Answer(99, b"", b"", 0)),
        (End(1, 0),),
        (Answer(1, b"", b"", 0, 10), End(1, 0)),
    ],
    ids=["an answer before nonsense", "a failure before nonsense", "an END without a stream", "an END within a body"],
)
async def test_a_provider_that_breaks_the_protocol_leaves_no_caller_waiting(frames: tuple[AnyFrame, ...]) -> None:
    """The call was taken off the list before the packet was found to be broken, and nobody told its caller, who waited
    for ever: not even its deadline knew it."""
    peer = Peer(greet)
    async with peer.channel() as channel:
        task = asyncio.ensure_future(channel(call()))
        await until(lambda: peer.carriers)
        await hear(peer.carriers[0])
        await hear(peer.carriers[0])
        await say(peer.carriers[0], *frames)
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable) as raised:
                await task
        assert raised.value.may_have_run is True
        assert channel.open_calls == 0


@pytest.mark.parametrize("second", [Answer(1, b"hi", b"", 0), Answer(1, None, b"", 0), Answer(1, b"", b"", 0, 10)])
async def test_a_reply_to_a_call_whose_stream_is_open_ends_the_stream(second: Answer) -> None:
    """Its reader waited for ever."""
    peer = Peer(greet)
    async with peer.channel() as channel:
        task = asyncio.ensure_future(channel(call()))
        await until(lambda: peer.carriers)
        await hear(peer.carriers[0])
        await hear(peer.carriers[0])
        await say(peer.carriers[0], Answer(1, None, b"", 0), Item(1, b"a"))
        stream = (await task).stream
        assert stream is not None
        assert await anext(stream) == b"a"
        await say(peer.carriers[0], second)
        async with asyncio.timeout(20):
            with pytest.raises(Unavailable, match="stream is open"):
                await anext(stream)


async def test_the_peers_last_word_is_the_reason() -> None:
    peer = Peer(greet)
    async with peer.channel() as channel:
        await channel.connect()
        await say(peer.carriers[0], Bye("I do not like you"))
        await peer.carriers[0].close()
        await until(lambda: channel.state is ChannelState.UNREACHABLE)
        assert "I do not like you" in channel.reason


async def test_loss_tells_what_may_have_run_and_the_connection_comes_back() -> None:
    peer = Peer(greet)
    async with peer.channel(limits=QUICK) as channel:
        task = asyncio.ensure_future(channel(call()))
        await until(lambda: peer.carriers)
        await hear(peer.carriers[0])
        await hear(peer.carriers[0])
        late = asyncio.ensure_future(channel(call()))
        await asyncio.sleep(0)
        await peer.carriers[0].sever("cut")
        with pytest.raises(Unavailable, match="cut") as raised:
            await task
        assert raised.value.may_have_run is True
        with pytest.raises(Unavailable):
            await late
        await until(lambda: channel.state is ChannelState.READY)
        assert len(peer.attempts) == 2


async def test_a_silent_peer_is_lost_and_calls_fail() -> None:
    peer = Peer(greet)
    async with peer.channel(limits=QUICK) as channel:
        with pytest.raises(Unavailable, match=r"nothing was heard for three heartbeats of 0.05 s") as raised:
            await channel(call())
        assert raised.value.may_have_run is True


async def test_calls_that_wait_for_a_peer_that_does_not_read_are_bounded_and_have_not_run() -> None:
    peer = Peer(greet)
    limits = WireLimits(queued_bytes=64 * 1024)
    async with peer.channel(limits=limits) as channel:
        tasks = [asyncio.ensure_future(channel(call(body=bytes(200_000)))) for _ in range(12)]
        await until(lambda: any(task.done() for task in tasks))
        refused = [task for task in tasks if task.done()]
        assert all(isinstance(task.exception(), Overloaded) for task in refused)
        await peer.carriers[0].sever("cut")
        waiting = [task for task in tasks if task not in refused]
        errors = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, Unavailable) for error in errors)


async def test_after_a_drain_the_next_call_connects_anew() -> None:
    peer = Peer(greet)
    async with peer.channel() as channel:
        await channel.connect()
        await say(peer.carriers[0], Drain())
        await until(lambda: channel.state is ChannelState.DRAINING)
        with pytest.raises(Unavailable, match="draining"):
            await channel(call())
        await peer.carriers[0].close()
        await until(lambda: channel.state is ChannelState.IDLE)
        assert len(peer.attempts) == 1, "nobody connects to a provider that wanted to go"
        await channel.connect()
        assert channel.state is ChannelState.READY


async def test_a_stream_that_opens_and_ends_within_one_packet() -> None:
    peer = Peer(greet)
    async with peer.channel() as channel:
        task = asyncio.ensure_future(channel(call()))
        await until(lambda: peer.carriers)
        await hear(peer.carriers[0])
        await hear(peer.carriers[0])
        await say(peer.carriers[0], Answer(1, None, b"", 0), Item(1, b"a"), Item(1, b"b"))
        reply = await task
        assert reply.stream is not None
        assert [await anext(reply.stream), await anext(reply.stream)] == [b"a", b"b"]


async def test_a_stream_whose_caller_was_cancelled_meanwhile_is_cancelled() -> None:
    peer = Peer(greet)
    async with peer.channel() as channel:
        task = asyncio.ensure_future(channel(call()))
        await until(lambda: peer.carriers)
        await hear(peer.carriers[0])
        await hear(peer.carriers[0])
        await say(peer.carriers[0], Answer(1, None, b"", 0), Item(1, b"a"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await hear(peer.carriers[0]) == [Cancel(1)]
        assert channel.open_calls == 0


async def test_callbacks_that_raise_harm_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def break_down(_: object) -> None:
        raise ValueError("broken callback")

    peer = Peer(greet)
    async with peer.channel(on_state=break_down, on_load=break_down) as channel:
        await channel.connect()
        await say(peer.carriers[0], Load(encode_load({}, 1, None, 0.0)))
        await until(lambda: "on_load raised" in caplog.text)
        assert channel.state is ChannelState.READY
    assert "on_state raised" in caplog.text


async def test_load_reports_arrive_as_they_were() -> None:
    peer = Peer(greet)
    reports: list[LoadReport] = []
    async with peer.channel(on_load=reports.append) as channel:
        await channel.connect()
        await say(peer.carriers[0], Load(encode_load({"gpu": 0.75}, None, 2, 0.1)))
        await until(lambda: reports)
    assert reports == [LoadReport({"gpu": 0.75}, None, 2, 0.1)]


async def test_closing_while_connecting() -> None:
    peer = Peer()
    channel = peer.channel()
    task = asyncio.ensure_future(channel(call()))
    await until(lambda: peer.carriers)
    await channel.close()
    with pytest.raises(Unavailable, match="the channel was closed"):
        await task
    assert channel.state is ChannelState.CLOSED
    await channel.close()


async def test_closing_in_the_pause_between_attempts() -> None:
    peer = Peer()
    peer.refusal = "refused"
    channel = peer.channel(limits=WireLimits(backoff_base_s=50.0, backoff_max_s=50.0))
    with pytest.raises(Unavailable):
        await channel.connect()
    await channel.close()
    with pytest.raises(Unavailable, match="closed"):
        await channel.connect()


async def test_a_deadline_is_kept_without_anyones_help() -> None:
    peer = Peer(greet)
    async with peer.channel(limits=WireLimits(heartbeat_interval_s=3600)) as channel:
        await channel.connect()
        with pytest.raises(DeadlineExceeded, match="no answer within the deadline") as raised:
            await channel(call(deadline_at=time.monotonic() + 0.3))
        assert raised.value.may_have_run is True


async def test_what_is_said_not_to_have_run_never_leaves_after_that() -> None:
    peer = Peer(greet)
    channel = peer.channel()
    await channel.connect()
    tasks = {n: asyncio.ensure_future(channel(call(body=b"%09d" % n + bytes(60_000)))) for n in range(60)}
    await asyncio.sleep(0.05)
    closing = asyncio.ensure_future(channel.close())
    left: set[int] = set()
    while frames := await hear(peer.carriers[0]):
        left |= {int(frame.body[:9]) for frame in frames if isinstance(frame, Call)}
    await closing
    errors = {n: task.exception() for n, task in tasks.items()}
    assert all(isinstance(error, Unavailable) for error in errors.values())
    may_have_run = {n for n, error in errors.items() if isinstance(error, Unavailable) and error.may_have_run}
    assert 0 < len(may_have_run) < 60
    assert left <= may_have_run


def take_into(answers: list[tuple[int, float]]) -> Callable[[int, float], None]:
    return lambda in_flight, latency_s: answers.append((in_flight, latency_s))


async def test_a_probe_is_a_ping_and_each_asker_has_one_under_way() -> None:
    peer = Peer(greet)
    answers: list[tuple[int, float]] = []
    async with peer.channel() as channel:
        assert not channel.probe("a", take_into(answers)), "there is no connection yet"
        await channel.connect()
        await hear(peer.carriers[0])
        assert channel.probe("a", take_into(answers))
        assert channel.probe("b", take_into(answers)), "and one PING serves both"
        assert not channel.probe("a", take_into(answers))
        assert channel.is_probed("a")
        assert await hear(peer.carriers[0]) == [Ping()]
        await say(peer.carriers[0], Pong(3, 0.02), Pong(4, 0.03))
        await until(lambda: answers)
        assert answers == [(3, 0.02), (3, 0.02)]
        assert not channel.is_probed("a")
        assert channel.probe("a", take_into(answers))


async def test_a_provider_that_does_not_tell_is_asked_once() -> None:
    peer = Peer(greet)
    answers: list[tuple[int, float]] = []
    async with peer.channel() as channel:
        await channel.connect()
        await hear(peer.carriers[0])
        assert channel.probe("a", take_into(answers))
        await say(peer.carriers[0], Pong(), Load(encode_load({}, 1, None, 0.0)))
        await asyncio.sleep(0.05)
        assert not channel.probe("a", take_into(answers))
        assert answers == []


async def test_a_lost_connection_forgets_the_probes_on_it() -> None:
    peer = Peer(greet)
    answers: list[tuple[int, float]] = []
    async with peer.channel(limits=QUICK) as channel:
        await channel.connect()
        assert channel.probe("a", take_into(answers))
        await peer.carriers[0].sever()
        await until(lambda: channel.state is not ChannelState.READY)
        assert not channel.is_probed("a")
        await until(lambda: channel.state is ChannelState.READY)
        assert channel.probe("a", take_into(answers))
        await say(peer.carriers[-1], Pong(1, 0.01))
        await until(lambda: answers)
    assert answers == [(1, 0.01)]
