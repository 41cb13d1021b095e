"""However a first attempt ends, nothing is left of it: not in the hedging wheel, and not on its node's account."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from steelyard.balance import make_policy
from steelyard.cluster import ClusterInvoker
from steelyard.errors import InvalidArgument, Overloaded, RpcError, Unavailable
from steelyard.model import Invocation, MethodSpec, Reply
from steelyard.wire import OpenCall
from steelyard_registry.node import Node

ASK = MethodSpec(name="ask", is_idempotent=True)
Act = Callable[[asyncio.Future[Reply]], None]


class Cluster:
    """Two nodes with one connection, and on it *act* decides what becomes of a first attempt. All others succeed."""

    has_ended = False
    is_ready = True

    def __init__(self, act: Act) -> None:
        self._act = act
        self.submitted = self.abandoned = 0
        self.ready = self
        self.tokens: dict[str, str] = {}
        self.out: tuple[str, ...] = ()

    def channel(self, address: str) -> Any:
        return self

    def takes_calls(self, address: str) -> bool:
        return True

    def submit(self, invocation: Invocation, now_s: float) -> OpenCall:
        self.submitted += 1
        token: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._act(token)
        return OpenCall(self.submitted, token, 0, False)

    def abandon(self, call: OpenCall) -> None:
        self.abandoned += 1

    async def __call__(self, invocation: Invocation) -> Reply:
        return Reply(body=b"from another")


def answered(token: asyncio.Future[Reply]) -> None:
    token.set_result(Reply(body=b"hi"))


def failed(token: asyncio.Future[Reply]) -> None:
    token.set_exception(InvalidArgument("no"))


def lost(token: asyncio.Future[Reply]) -> None:
    token.set_exception(Unavailable("gone", may_have_run=True))


def refused(token: asyncio.Future[Reply]) -> None:
    raise Overloaded("too many")


def broken(token: asyncio.Future[Reply]) -> None:
    raise RuntimeError("a bug")


def silent(token: asyncio.Future[Reply]) -> None:
    """Until its caller leaves, or a hedge beats it."""


@pytest.mark.parametrize("is_hedged", [False, True])
@pytest.mark.parametrize("act", [answered, failed, lost, refused, broken, silent])
async def test_nothing_is_left(act: Act, is_hedged: bool) -> None:
    now_s = 1000.0
    policy, cluster = make_policy("round_robin"), Cluster(act)
    policy.set_nodes([Node(interface="test.S", host=host, port=1) for host in "ab"], now_s)
    directory: Any = cluster
    invoker = ClusterInvoker(directory, policy, clock=lambda: now_s, dice=lambda: 0.5)
    hedging = invoker._hedging
    assert hedging is not None
    for _ in range(3):
        asked = asyncio.ensure_future(
            invoker(Invocation(service="test.S", method="ask", body=b"x", deadline_at=now_s + 60.0, spec=ASK))
        )
        await asyncio.sleep(0)
        if is_hedged:
            now_s += 21.0
            hedging._ring()
            await asyncio.sleep(0.01)
        if not asked.done():
            asked.cancel()
        with suppress(RpcError, RuntimeError, asyncio.CancelledError):
            await asked
    assert cluster.submitted == 3
    assert cluster.abandoned == (3 if act is silent else 0)
    assert hedging.won == (3 if act is silent and is_hedged else 0)
    assert not any(hedging._wheel.values())
    await invoker.close()
    assert policy.open_calls == 0  # type: ignore[attr-defined]
