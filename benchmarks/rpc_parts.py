"""The parts of a call by themselves, for bench_instructions: what the pipeline asks of whom, as one call asks it.

They reach into the objects of a reference that works, so this file has to follow the code; nothing else depends on it.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import bench_rpc
from rpc_common import KEPT

# Calls that share a packet.
BATCH = 16
FOR_EVER_S = 1e6

Part = tuple[str, Callable[[], Any], int]
"""(what, do it, so many calls' worth)."""


async def parts(body: bytes) -> list[Part]:
    """Each after the one that it needs: what goes out comes in."""
    from steelyard.consumer.proxy import reference_of

    contract, _ = bench_rpc.echo_contract()
    await bench_rpc.connect_pipeline(await bench_rpc.serve_pipeline(), "tcp")
    consumer = KEPT[-1]
    proxy: Any = consumer.refer(contract)
    await consumer.ready(proxy)
    for _ in range(100):
        await proxy.echo(body)
    return [*_consumers(reference_of(proxy), body), *_wires(body)]


def stand_in_for_the_wire(body: bytes) -> None:
    """From now on every call is answered with *body*, in the next turn of the loop."""
    import msgspec

    from steelyard.model import NOTHING, Reply
    from steelyard.wire import OpenCall
    from steelyard.wire.consuming import ConsumerConnection

    reply = Reply(None, msgspec.msgpack.encode(body), None, NOTHING, 3)

    def answer(future: Any) -> None:
        if not future.done():
            future.set_result(reply)

    def submit(self: Any, invocation: Any, now_s: float) -> OpenCall:
        future = self._loop.create_future()
        self._loop.call_soon(answer, future)
        return OpenCall(0, future, 0, False)

    ConsumerConnection.submit = submit  # type: ignore[method-assign]


def _consumers(reference: Any, body: bytes) -> list[Part]:
    from steelyard.consumer.proxy import CallOptions, _opener
    from steelyard.model import Outcome
    from steelyard.telemetry import note_attempt

    clock, dice = time.monotonic, random.random
    spec = reference.spec
    method, short, cluster = spec.methods["echo"], reference.short_way, reference._cluster
    policy, protection, hedging = reference._policy, reference._protection, cluster._hedging
    codec = short.codec(spec.key, method)
    open_call = _opener(spec.key, method, FOR_EVER_S, CallOptions(timeout_s=FOR_EVER_S), codec.encode_arguments)
    invocation = open_call((body,), {}, clock())
    candidate = policy.pick(clock(), dice)
    result = codec.encode_result(body)
    now_s = clock()

    def protect() -> None:
        protection.admit("echo", 1, 10.0, now_s, dice)
        protection.started("echo", now_s)
        protection.ended("echo", now_s, True, 0.001)
        protection.node_ended(candidate.identity, True)

    def account() -> None:
        policy.started(candidate, now_s)
        policy.ended(candidate, Outcome.OK, now_s, latency_s=0.001, in_flight=3)

    def hedge() -> None:
        attempt = hedging.watch(invocation, candidate.identity, now_s)
        attempt.is_over()
        attempt.latency.add(0.001)

    def listen() -> bool:
        return short.switches.are_set or not short.telemetry.is_silent(now_s)

    def find() -> None:
        cluster._budget.deposit(now_s)
        note_attempt(candidate.node)
        assert reference.directory.channel(candidate.node.address).ready is not None

    return [
        ("does anybody listen, is a switch set", listen, 1),
        ("proxy: arguments, deadline, encoding, Invocation", lambda: open_call((body,), {}, now_s), 1),
        ("codec: the result decoded", lambda: codec.decode_result(result), 1),
        ("protection: may it be sent, what became of it", protect, 1),
        ("balancer: pick", lambda: policy.pick(now_s, dice), 1),
        ("balancer: started, ended", account, 1),
        ("hedging: watched, answered", hedge, 1),
        ("retry budget, the span, the connection", find, 1),
    ]


def _wires(body: bytes) -> list[Part]:
    from steelyard.model import Invocation, Reply
    from steelyard.wire import WireLimits
    from steelyard.wire.mux import ConsumerSide, InFlight, ProviderSide
    from steelyard.wire.tally import Tally

    now_s = time.monotonic()
    limits = WireLimits(in_flight=1_000_000)
    consumer = ConsumerSide(limits, now_s=now_s)
    provider = ProviderSide(limits, now_s=now_s, in_flight=InFlight())
    invocation = Invocation("bench.Echo", "echo", (), body, now_s + FOR_EVER_S)
    reply, tally = Reply(None, body), Tally()
    packets: deque[Any] = deque((provider.outbox.take(), consumer.outbox.take()))
    consumer.receive(packets.popleft(), now_s)
    provider.receive(packets.popleft(), now_s)
    called: deque[Any] = deque()

    def call_out() -> None:
        for _ in range(BATCH):
            consumer.call(None, invocation, now_s)
        packets.append(consumer.outbox.take())

    def call_in() -> None:
        called.append(provider.receive(packets.popleft(), now_s))

    def reply_out() -> None:
        for event in called.popleft():
            provider.reply(event.id, reply)
            provider.finished(event.id)
        packets.append(provider.outbox.take())

    def reply_in() -> None:
        consumer.receive(packets.popleft(), now_s)

    return [
        ("wire: CALL made and packed", call_out, BATCH),
        ("wire: CALL understood", call_in, BATCH),
        ("wire: REPLY made and packed", reply_out, BATCH),
        ("wire: REPLY understood", reply_in, BATCH),
        ("provider: the tally", lambda: tally.ended(3, now_s, FOR_EVER_S, None), 1),
    ]
