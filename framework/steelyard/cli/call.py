"""``steelyard call``: one call without the contract at hand.

The arguments go out in their plain form (JSON's types) and the provider, which has the contract, rebuilds and checks
them. Whether the method answers once or with a stream is not asked beforehand: the provider's answer says it.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from steelyard.codec import plain_codec
from steelyard.consumer import Consumer, with_options
from steelyard.invoke import Invoker, Position, Stack
from steelyard.model import Invocation, MethodSpec, Parameter, Reply
from steelyard.security import Bearer, Credentials
from steelyard_registry import Registry, ServiceKey

from .failure import usage
from .output import error_document, plain, pretty, remark, write_document


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What ``call`` was asked for. ``arguments``: a list by position, a mapping by name."""

    service: str
    method: str
    arguments: Sequence[Any] | Mapping[str, Any]
    registry: str | None = None
    timeout_s: float = 10.0
    attachments: Mapping[str, str] = field(default_factory=dict)
    expression: str | None = None
    policy: str = "dual"
    registry_wait_s: float | None = 10.0
    credentials: Credentials | None = None
    bearer_file: str | None = None


def split_target(target: str) -> tuple[str, str]:
    """``[group/]service[:version].method`` in its two parts; the method is what stands behind the last dot."""
    service, dot, method = target.rpartition(".")
    if not dot or not service or not method.isidentifier():
        raise usage(f"{target!r} does not name a method; write SERVICE.METHOD, [group/]SERVICE[:version].METHOD")
    return service, method


class Show:
    """How an answer is shown. JSON: one document, so a stream is a list that is written at its end. Text: each item as
    it comes."""

    def __init__(self, *, is_json: bool, width: int) -> None:
        self._is_json = is_json
        self._width = width
        self._items: list[Any] | None = None
        self._notes: dict[str, None] = {}

    @property
    def items(self) -> list[Any] | None:
        """What a stream has given so far; None for a call that is no stream (or shown as text)."""
        return self._items

    def value(self, value: Any) -> None:
        value = self._plain(value)
        if self._is_json:
            write_document(value)
        else:
            self._text(value)
        self._remarks()

    def open_stream(self) -> None:
        self._items = [] if self._is_json else None

    def item(self, value: Any) -> None:
        value = self._plain(value)
        if self._items is not None:
            self._items.append(value)
        else:
            self._text(value)

    def close_stream(self) -> None:
        if self._items is not None:
            write_document(self._items)
        self._remarks()

    def failed(self, error: BaseException) -> None:
        """An error is a document too, for those who read documents."""
        document = error_document(error)
        if self._items is not None:
            document["items"] = self._items
        write_document(document)

    def _plain(self, value: Any) -> Any:
        return plain(value, self._notes.setdefault)

    def _text(self, value: Any) -> None:
        text = value if isinstance(value, str) else pretty(value, self._width)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def _remarks(self) -> None:
        if not self._is_json:
            for note in self._notes:
                remark(note)


async def run(asked: Call, show: Show) -> None:
    """Makes the call and shows what comes back. Raises the RpcError of a call that fails."""
    async with Consumer(
        asked.registry,
        application="steelyard-call",
        registry_wait_s=asked.registry_wait_s,
        credentials=asked.credentials,
        bearer=Bearer(file=asked.bearer_file) if asked.bearer_file else None,
    ) as consumer:
        service = await _resolved(consumer.registry, asked)
        spec = MethodSpec(name=asked.method, parameters=(Parameter("arguments"),))
        proxy = consumer.generic(
            service,
            [spec],
            where=asked.expression,
            policy=asked.policy,
            codec=plain_codec(),
            stack=_streams_as_values,
        )
        proxy = with_options(proxy, timeout_s=asked.timeout_s, attachments=asked.attachments)
        answer = await getattr(proxy, asked.method)(asked.arguments)
        if not isinstance(answer, AsyncIterator):
            show.value(answer)
            return
        show.open_stream()
        async for item in answer:
            show.item(item)
        show.close_stream()


async def _resolved(registry: Registry, asked: Call) -> str:
    """The service key to call. A name without version and group stands for the only one that is registered."""
    key = ServiceKey.parse(asked.service)
    if key.version or key.group:
        return asked.service
    subscription = await registry.subscribe(ServiceKey(interface=key.interface, version="*", group="*"))
    try:
        keys = sorted({node.service_key for node in subscription.snapshot.nodes})
    finally:
        await subscription.close()
    if asked.service in keys or not keys:
        return asked.service
    if len(keys) > 1:
        raise usage(f"{asked.service} is registered as {', '.join(keys)}; say which")
    return keys[0]


def _streams_as_values(stack: Stack) -> Stack:
    return Stack(Position("answer", _answer, "a call that does not know its method takes what comes"), *stack)


async def _answer(invocation: Invocation, following: Invoker) -> Reply:
    reply = await following(invocation)
    return reply if reply.stream is None else Reply(value=reply.stream, attachments=reply.attachments)
