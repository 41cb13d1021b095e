"""The two sides of a connection without anything between them: packets are passed by hand, time is a number."""

from __future__ import annotations

from typing import Any

from steelyard.model import Invocation
from steelyard.wire import WireLimits
from steelyard.wire.frames import AnyFrame, Hello, encode, packet, parse
from steelyard.wire.mux import ConsumerSide, ProviderSide


def call(method: str = "echo", body: bytes = b"hi", **facts: Any) -> Invocation:
    return Invocation(service="test.Echo", method=method, body=body, **facts)


def sent(side: ConsumerSide | ProviderSide) -> list[AnyFrame]:
    """What *side* wants to send, all of it, without its HELLO."""
    frames: list[AnyFrame] = []
    while (data := side.outbox.take()) is not None:
        frames.extend(parse(data))
    return [frame for frame in frames if not isinstance(frame, Hello)]


def of(*frames: AnyFrame) -> bytes:
    """A packet of these frames."""
    return packet([encode(frame) for frame in frames])


def hello(limits: WireLimits | None = None, *, version: int = 1, identity: str = "peer") -> Hello:
    own = limits or WireLimits()
    return Hello(
        version,
        identity,
        own.message_bytes,
        own.in_flight,
        own.stream_window_bytes,
        own.methods,
        own.attachments,
        own.attachment_bytes,
    )


def consumer(limits: WireLimits | None = None, *, peer: WireLimits | None = None, now_s: float = 0.0) -> ConsumerSide:
    """A consumer that has met its provider and has sent its HELLO."""
    side = ConsumerSide(limits or WireLimits(), now_s=now_s, node="node:1")
    side.receive(of(hello(peer)), now_s)
    side.outbox.take()
    return side


def provider(limits: WireLimits | None = None, *, peer: WireLimits | None = None, now_s: float = 0.0) -> ProviderSide:
    side = ProviderSide(limits or WireLimits(), now_s=now_s)
    side.receive(of(hello(peer)), now_s)
    side.outbox.take()
    return side


def joined(
    consumer_limits: WireLimits | None = None, provider_limits: WireLimits | None = None
) -> tuple[ConsumerSide, ProviderSide]:
    """A consumer and a provider that have met."""
    calling = ConsumerSide(consumer_limits or WireLimits(), now_s=0.0, node="node:1")
    serving = ProviderSide(provider_limits or WireLimits(), now_s=0.0)
    carry(calling, serving, 0.0)
    carry(serving, calling, 0.0)
    return calling, serving


def carry(from_side: ConsumerSide | ProviderSide, to_side: ConsumerSide | ProviderSide, now_s: float) -> list[Any]:
    """Takes every packet across; returns the events."""
    events: list[Any] = []
    while (data := from_side.outbox.take()) is not None:
        events.extend(to_side.receive(data, now_s))
    return events
