"""A slow attempt gets a rival; the first answer counts; every attempt is accounted; no other cancel is eaten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from steelyard.balance import Candidate
from steelyard.cluster.hedging import Attempt, BeatenAttempts, Hedging
from steelyard.errors import RpcError, Unavailable
from steelyard.model import Invocation, Outcome, Reply
from steelyard_registry.node import Node


def candidate(name: str) -> Candidate:
    return Candidate(Node(interface="test.S", host=name, port=1), 0.0)


class Nodes:
    """What each node does with an attempt, by host; and what was sent where."""

    def __init__(self, **behaviour: Callable[[], Awaitable[Reply]]) -> None:
        self.behaviour = behaviour
        self.sent: list[str] = []
        self.cancelled: list[str] = []
        self.beaten: list[str] = []
        self.rivals: list[str] = []

    async def send(self, chosen: Candidate, invocation: Invocation, attempt: Attempt | None) -> Reply:
        host = chosen.node.host
        self.sent.append(host)
        try:
            return await self.behaviour[host]()
        except asyncio.CancelledError:
            (self.beaten if attempt is not None and attempt.reply is not None else self.cancelled).append(host)
            raise

    def choose(self, invocation: Invocation, tried: list[str]) -> Candidate | None:
        return candidate(self.rivals.pop(0)) if self.rivals else None

    def hedging(self, *rivals: str) -> Hedging:
        self.rivals = list(rivals)
        return Hedging(self.send, self.choose, clock=time.monotonic, after=2.0, floor_s=0.01)


async def quick() -> Reply:
    return Reply(body=b"quick")


async def later() -> Reply:
    await asyncio.sleep(0.1)
    return Reply(body=b"later")


async def never() -> Reply:
    await asyncio.sleep(3600)
    raise AssertionError


async def broken() -> Reply:
    raise Unavailable("broken")


async def soon_broken() -> Reply:
    await asyncio.sleep(0.06)
    raise Unavailable("soon broken")


def invocation(timeout_s: float = 0.15) -> Invocation:
    return Invocation(service="test.S", method="m", body=b"x", deadline_at=time.monotonic() + timeout_s)


async def test_a_quick_answer_needs_no_rival() -> None:
    nodes = Nodes(a=quick, b=quick)
    hedging = nodes.hedging("b")
    assert (await hedging.run(candidate("a"), invocation(), ["a"])).body == b"quick"
    await asyncio.sleep(0.1)
    assert nodes.sent == ["a"]
    await hedging.close()


async def test_nothing_is_kept_of_a_call_that_is_over() -> None:
    """Kept until its moment, a crowd's futures would be most of what the garbage collector walks through."""
    nodes = Nodes(a=quick, b=quick, c=never)
    hedging = nodes.hedging("b")
    for _ in range(50):
        await hedging.run(candidate("a"), invocation(60.0), ["a"])
    await hedging.run(candidate("c"), invocation(60.0), ["c"])
    assert hedging.hedges == 1
    assert not any(hedging._wheel.values())
    await hedging.close()


async def test_a_silent_node_is_beaten_after_a_third_of_the_time() -> None:
    nodes = Nodes(a=never, b=quick)
    hedging = nodes.hedging("b")
    tried = ["a"]
    assert (await hedging.run(candidate("a"), invocation(), tried)).body == b"quick"
    assert nodes.sent == ["a", "b"]
    assert tried == ["a", candidate("b").node.identity]
    assert nodes.beaten == ["a"]
    assert (hedging.hedges, hedging.won) == (1, 1)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0  # the cancel that woke us is taken back
    await hedging.close()


async def test_the_moment_is_twice_the_95th_percentile_once_that_is_known() -> None:
    nodes = Nodes(a=quick, b=quick, c=never)
    hedging = nodes.hedging("b")
    for _ in range(30):
        await hedging.run(candidate("a"), invocation(60.0), ["a"])
    begun_s = time.monotonic()
    assert (await hedging.run(candidate("c"), invocation(60.0), ["c"])).body == b"quick"
    assert time.monotonic() - begun_s < 10.0  # a third of the time would be twenty seconds
    await hedging.close()


async def test_a_second_rival_when_the_first_is_silent_too() -> None:
    nodes = Nodes(a=never, b=never, c=quick)
    hedging = nodes.hedging("b", "c")
    assert (await hedging.run(candidate("a"), invocation(), ["a"])).body == b"quick"
    await asyncio.sleep(0)
    assert nodes.sent == ["a", "b", "c"]
    assert nodes.beaten == ["a"]
    assert nodes.cancelled == ["b"]
    await hedging.close()


async def test_the_first_attempt_may_still_win() -> None:
    nodes = Nodes(a=later, b=never)
    hedging = nodes.hedging("b")
    assert (await hedging.run(candidate("a"), invocation(), ["a"])).body == b"later"
    await asyncio.sleep(0)
    assert nodes.cancelled == ["b"]
    assert hedging.won == 0
    await hedging.close()


async def test_a_rival_that_fails_changes_nothing() -> None:
    nodes = Nodes(a=later, b=broken)
    hedging = nodes.hedging("b")
    assert (await hedging.run(candidate("a"), invocation(), ["a"])).body == b"later"
    await hedging.close()


async def test_when_the_first_fails_the_rival_under_way_decides() -> None:
    nodes = Nodes(a=soon_broken, b=later)
    hedging = nodes.hedging("b")
    assert (await hedging.run(candidate("a"), invocation(), ["a"])).body == b"later"
    nodes = Nodes(a=soon_broken, b=soon_broken)
    hedging = nodes.hedging("b")
    with pytest.raises(RpcError, match="soon broken"):
        await hedging.run(candidate("a"), invocation(), ["a"])
    await hedging.close()


async def test_the_callers_cancel_stays_the_callers() -> None:
    nodes = Nodes(a=never, b=never)
    hedging = nodes.hedging("b")
    call = asyncio.create_task(hedging.run(candidate("a"), invocation(), ["a"]))
    await asyncio.sleep(0.1)
    assert nodes.sent == ["a", "b"]
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0)
    assert sorted(nodes.cancelled) == ["a", "b"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await hedging.run(candidate("a"), invocation(60.0), ["a"])
    await hedging.close()


async def test_a_task_that_was_cancelled_before_may_still_call() -> None:
    nodes = Nodes(a=never, b=quick)
    hedging = nodes.hedging("b")

    async def cleans_up() -> bytes | None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return (await hedging.run(candidate("a"), invocation(), ["a"])).body
        raise AssertionError

    task = asyncio.create_task(cleans_up())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == b"quick"
    await hedging.close()


async def test_a_crowd_of_calls_shares_one_timer_and_leaves_nothing() -> None:
    nodes = Nodes(a=quick, b=quick, c=never)
    hedging = nodes.hedging(*["b"] * 50)
    calls = [hedging.run(candidate("c" if at % 2 else "a"), invocation(), ["x"]) for at in range(100)]
    replies = await asyncio.gather(*calls)
    assert len(replies) == 100
    assert hedging.won == 50
    await hedging.close()
    assert len(asyncio.all_tasks()) == 1


async def test_who_waits_while_another_is_hedged_is_not_forgotten_for_its_second_moment() -> None:
    """The timer was then for the second moment of the other, up to a third of a call's time too late."""
    now_s = 1000.0
    nodes = Nodes(b=never)
    nodes.rivals = ["b", "b"]
    hedging = Hedging(nodes.send, nodes.choose, clock=lambda: now_s, after=2.0, floor_s=0.01)
    for started_s in (now_s, now_s + 0.1):
        hedging.watch(Invocation(service="test.S", method="m", body=b"x", deadline_at=started_s + 30.0), "a", started_s)
    now_s += 10.01
    hedging._ring()
    assert hedging.hedges == 1
    assert hedging._armed_for == min(hedging._wheel)
    now_s += 0.1
    hedging._ring()
    assert hedging.hedges == 2
    await hedging.close()


class Ended:
    def __init__(self) -> None:
        self.outcomes: list[tuple[str, Outcome]] = []

    def __call__(self, chosen: Candidate, outcome: Outcome, started_s: float) -> None:
        self.outcomes.append((chosen.node.host, outcome))


async def test_a_beaten_attempt_fails_at_its_deadline_unless_the_node_speaks() -> None:
    ended = Ended()
    beaten = BeatenAttempts(ended, clock=time.monotonic)
    silent, slow = candidate("silent"), candidate("slow")
    for chosen in (silent, slow, slow):
        beaten.add(chosen, time.monotonic(), time.monotonic() + 0.05)
    assert ended.outcomes == []
    assert beaten.is_silent(silent.node.identity)
    beaten.heard(slow.node.identity)
    assert ended.outcomes == [("slow", Outcome.IGNORED)] * 2
    assert not beaten.is_silent(slow.node.identity)
    await asyncio.sleep(0.15)
    assert ended.outcomes[2:] == [("silent", Outcome.FAILED)]
    assert not beaten.silent


async def test_closing_accounts_what_is_left() -> None:
    ended = Ended()
    beaten = BeatenAttempts(ended, clock=time.monotonic)
    beaten.add(candidate("a"), 0.0, time.monotonic() + 60)
    beaten.close()
    assert ended.outcomes == [("a", Outcome.IGNORED)]
