"""The short way of a call and the stack of filters: the same answers, the same errors, the same accounts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest

from steelyard import InvalidArgument, RpcError, Status, method, service, with_options
from steelyard.consumer import Consumer
from steelyard.consumer.proxy import reference_of
from steelyard.guard import Admission
from steelyard.invoke import Position
from steelyard.model import Invocation, Reply
from steelyard.testing import LocalCluster


class Refused(Exception):
    """Declared."""


@service("test.Ways")
class Ways(Protocol):
    @method(timeout_s=5.0, idempotent=True, raises=(Refused,))
    async def act(self, what: str) -> str: ...


class WaysModel(Ways):
    async def act(self, what: str) -> str:
        if what == "declared":
            raise Refused("no")
        if what == "broken":
            raise ZeroDivisionError("by zero")
        if what == "status":
            raise InvalidArgument("not that")
        if what == "slow":
            await asyncio.sleep(3600)
        return what * 2


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        await cluster.provide(WaysModel())
        yield cluster


async def both(consumer: Consumer) -> tuple[Any, Any]:
    """A proxy with the short way, and one whose stack was "edited" and so has none."""
    short, long = consumer.refer(Ways), consumer.refer(Ways, stack=lambda stack: stack)
    assert reference_of(short).short_way is not None
    assert reference_of(long).short_way is None
    for proxy in (short, long):
        await consumer.ready(proxy)
    return short, long


async def outcome(proxy: Any, *args: Any, **facts: Any) -> Any:
    try:
        return await with_options(proxy, **facts).act(*args)
    except Exception as error:
        facts_of = (error.status, error.may_have_run, error.is_remote) if isinstance(error, RpcError) else ()
        return type(error), str(error), facts_of


def accounts(proxy: Any) -> Any:
    statistics = reference_of(proxy).statistics()
    (node,) = statistics.balance.nodes
    assert statistics.failover is not None
    assert statistics.protection is not None
    wait = statistics.protection.waits.get("act")
    return (
        (node.ok, node.failed, node.in_flight, statistics.balance.open_calls),
        (statistics.failover.calls, statistics.failover.attempts),
        (statistics.protection.asked, wait is not None and wait.in_flight),
    )


@pytest.mark.parametrize(
    ("args", "facts"),
    [
        (("x",), {}),
        (("declared",), {}),
        (("broken",), {}),
        (("status",), {}),
        (("slow",), {"timeout_s": 0.1}),
        ((), {}),
        ((object(),), {}),
        (("x", "y"), {}),
        (("x",), {"attachments": {"a": "b"}, "priority": 0}),
    ],
)
async def test_both_ways_lead_to_the_same_end(cluster: LocalCluster, args: Any, facts: Any) -> None:
    short, long = await both(cluster.consumer)
    found, expected = await outcome(short, *args, **facts), await outcome(long, *args, **facts)
    if isinstance(expected, tuple) and "object at" not in expected[1]:
        assert found == expected
    assert type(found) is type(expected)
    assert accounts(short) == accounts(long)


async def test_a_caller_who_leaves_is_accounted_alike(cluster: LocalCluster) -> None:
    ends = []
    for proxy in await both(cluster.consumer):
        task = asyncio.ensure_future(proxy.act("slow"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ends.append(accounts(proxy))
    assert ends[0] == ends[1]
    assert ends[0][2][1] == 0


async def test_what_protection_does_not_send_is_refused_in_the_same_words(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for proxy in await both(cluster.consumer):
        law = reference_of(proxy)._protection
        assert law is not None
        monkeypatch.setattr(law, "admit", lambda *_: Admission.DEGRADE_WAITING)
        ends.append(await outcome(proxy, "x"))
    assert ends[0] == ends[1]
    assert "is degraded" in ends[0][1]


async def test_a_switch_that_is_set_is_obeyed_at_once(cluster: LocalCluster) -> None:
    short, _ = await both(cluster.consumer)
    assert await short.act("a") == "aa"
    cluster.consumer.switch(short, "force", answer="instead")
    assert await short.act("a") == "instead"
    cluster.consumer.switch(short, None)
    assert await short.act("a") == "aa"


async def test_an_inserted_filter_sees_every_call(cluster: LocalCluster) -> None:
    seen: list[str] = []

    async def mine(invocation: Invocation, following: Any) -> Reply:
        seen.append(invocation.method)
        reply: Reply = await following(invocation)
        return reply

    proxy = cluster.consumer.refer(Ways, stack=lambda stack: stack.insert_before("codec", Position("mine", mine, "")))
    await cluster.consumer.ready(proxy)
    with pytest.raises(RpcError) as raised:
        await proxy.act("status")
    assert raised.value.status is Status.INVALID_ARGUMENT
    assert seen == ["act"]
