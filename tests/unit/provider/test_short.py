"""The short way to a handler and the stack of filters: the same answers, the same errors, the same marks."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Protocol

import pytest

from steelyard import InvalidArgument, RpcError, current_call, method, service, with_options
from steelyard.testing import LocalCluster


class Refused(Exception):
    """Declared."""


@service("test.Served")
class Ways(Protocol):
    @method(timeout_s=5.0, raises=(Refused,))
    async def act(self, what: str) -> Any: ...


class WaysModel(Ways):
    def __init__(self) -> None:
        self.left: list[str] = []
        self.late: Any = None

    async def act(self, what: str) -> Any:
        call = current_call()
        assert call is not None
        if what == "declared":
            raise Refused("no")
        if what == "broken":
            raise ZeroDivisionError("by zero")
        if what == "status":
            raise InvalidArgument("not that")
        if what == "exit":
            raise SystemExit(3)
        if what == "cancelled":
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        if what == "unsendable":
            return object()
        if what == "slow":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.left.append(what)
                raise
        if what == "facts":
            return [call.service, call.method, call.attachments.get("a", ""), call.priority]
        return what * 2


async def outcome(proxy: Any, what: object, **facts: Any) -> Any:
    try:
        return await with_options(proxy, **facts).act(what)
    except Exception as error:
        text = re.sub(r"127\.0\.0\.1:\d+|0x[0-9a-f]+", "...", str(error))
        return type(error), text, (error.status, error.may_have_run) if isinstance(error, RpcError) else ()


CASES: list[tuple[object, dict[str, Any]]] = [
    ("x", {}),
    ("declared", {}),
    ("broken", {}),
    ("status", {}),
    ("exit", {}),
    ("cancelled", {}),
    ("unsendable", {}),
    ("facts", {"attachments": {"a": "b"}, "priority": 2}),
    ("slow", {"timeout_s": 0.1}),
    (7, {}),
]


async def test_both_ways_lead_to_the_same_end() -> None:
    ends: list[list[Any]] = []
    for settings in ({}, {"stack": lambda stack: stack}):
        model = WaysModel()
        async with LocalCluster() as cluster:
            provider = await cluster.provide(model, **settings)
            assert bool(provider._dispatcher._short_ways) is not bool(settings)
            proxy = cluster.consumer.refer(Ways, retries=0)
            await cluster.consumer.ready(proxy)
            ends.append([await outcome(proxy, what, **facts) for what, facts in CASES])
            async with asyncio.timeout(5):
                while not model.left:
                    await asyncio.sleep(0.01)
    for what, short, long in zip(CASES, *ends, strict=True):
        assert short == long, what


@pytest.mark.parametrize("kind", ["blocking", "stream"])
async def test_what_is_no_unary_coroutine_has_no_short_way(kind: str) -> None:
    from support.shop import ShopModel

    async with LocalCluster() as cluster:
        provider = await cluster.provide(ShopModel())
        names = {name for _, name in provider._dispatcher._short_ways}
        assert "echo" in names
        assert not names & {"blocking", "count", "blocking_count"}, kind
