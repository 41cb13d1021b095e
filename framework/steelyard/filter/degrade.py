"""degrade: when the cluster cannot answer, the method's fallback does; when it can again, it simply does.

It stands inside the codec filter, so that "the last good reply" can be kept as bytes under a digest of the encoded
arguments: an answer is only ever given again to the very same question. The protection law (BALANCING section 5), which
degrades calls before they fail, takes this same place.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from steelyard.errors import ConfigError, RpcError, Status
from steelyard.invoke import Filter, Invoker
from steelyard.model import Invocation, MethodSpec, Reply, ServiceSpec
from steelyard.service import LAST_GOOD_REPLY

log = logging.getLogger(__name__)

# The caller's own faults are not the cluster's: a fallback must not hide a wrong argument.
_CANNOT_ANSWER = frozenset(
    {
        Status.UNKNOWN,
        Status.DEADLINE_EXCEEDED,
        Status.RESOURCE_EXHAUSTED,
        Status.INTERNAL,
        Status.UNAVAILABLE,
        Status.DATA_LOSS,
    }
)

Answer = Callable[[Invocation], Awaitable[Reply | None]]


def degrade(service: ServiceSpec, *, kept_replies: int = 1024, kept_bytes: int = 16 << 20) -> Filter:
    """The filter for one referenced service. ``kept_replies`` and ``kept_bytes`` bound what LAST_GOOD_REPLY remembers,
    per method; the least recently used go first."""
    if kept_replies < 1 or kept_bytes < 1:
        raise ConfigError(f"degrade: kept_replies and kept_bytes start at 1, not {kept_replies!r} and {kept_bytes!r}")
    methods: dict[str, _Method] = {
        name: _Method(method, LastGoodReplies(kept_replies, kept_bytes) if _remembers(method) else None)
        for name, method in service.methods.items()
        if method.has_fallback
    }

    def filter_(invocation: Invocation, following: Invoker) -> Awaitable[Reply]:
        method = methods.get(invocation.method)
        return following(invocation) if method is None else method(invocation, following)

    return filter_


class _Method:
    """One method with a fallback: passes, remembers, answers, and says once when it begins and when it ends."""

    def __init__(self, spec: MethodSpec, memory: LastGoodReplies | None) -> None:
        self._spec = spec
        self._memory = memory
        self._degraded = 0

    async def __call__(self, invocation: Invocation, following: Invoker) -> Reply:
        try:
            reply = await following(invocation)
        except RpcError as error:
            if error.status not in _CANNOT_ANSWER or error.details is not None:
                raise
            answer = await self._answer(invocation)
            if answer is None:
                raise
            self._note(invocation, error)
            return answer
        if self._degraded:
            log.info("%s.%s answers again after %d degraded calls", invocation.service, self._spec.name, self._degraded)
            self._degraded = 0
        if self._memory is not None and reply.body is not None and invocation.body is not None:
            self._memory.keep(invocation.body, reply.body)
        return reply

    async def _answer(self, invocation: Invocation) -> Reply | None:
        if self._memory is not None:
            body = None if invocation.body is None else self._memory.find(invocation.body)
            return None if body is None else Reply(body=body)
        fallback = self._spec.fallback
        if not callable(fallback):
            return Reply(value=fallback)
        value = (
            fallback(*invocation.args) if inspect.iscoroutinefunction(fallback) else await _call(fallback, invocation)
        )
        return Reply(value=await value if inspect.isawaitable(value) else value)

    def _note(self, invocation: Invocation, error: RpcError) -> None:
        self._degraded += 1
        if self._degraded == 1:
            log.warning("%s.%s is answered by its fallback: %s", invocation.service, self._spec.name, error)


async def _call(fallback: Callable[..., Any], invocation: Invocation) -> Any:
    # A fallback may read a file or a cache: it runs beside the loop, never on it.
    return await asyncio.to_thread(fallback, *invocation.args)


def _remembers(method: MethodSpec) -> bool:
    return method.fallback is LAST_GOOD_REPLY


class LastGoodReplies:
    """The newest reply to each question, bounded by count and bytes."""

    def __init__(self, max_replies: int, max_bytes: int) -> None:
        self._replies: OrderedDict[bytes, bytes] = OrderedDict()
        self._max_replies = max_replies
        self._max_bytes = max_bytes
        self._bytes = 0

    def keep(self, question: bytes, answer: bytes) -> None:
        if len(answer) > self._max_bytes:
            return
        digest = _digest(question)
        self._bytes -= len(self._replies.pop(digest, b""))
        self._replies[digest] = answer
        self._bytes += len(answer)
        while len(self._replies) > self._max_replies or self._bytes > self._max_bytes:
            _, dropped = self._replies.popitem(last=False)
            self._bytes -= len(dropped)

    def find(self, question: bytes) -> bytes | None:
        digest = _digest(question)
        answer = self._replies.get(digest)
        if answer is not None:
            self._replies.move_to_end(digest)
        return answer


def _digest(question: bytes) -> bytes:
    return hashlib.blake2b(question, digest_size=16).digest()
