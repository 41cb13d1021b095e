"""degrade: when the cluster cannot answer, or should not be asked, the method's fallback does.

Three reasons for it, told apart in the log, in errors and in the statistics: the call failed; protection does not send
it (``guard.Protection``, by priority); an operator has switched the method (``Switches``). Without a fallback the first
leaves the error as it is, and the others raise Degraded, which says why.

It stands inside the codec filter, so that "the last good reply" can be kept as bytes under a digest of the encoded
arguments: an answer is only ever given again to the very same question.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from steelyard.errors import ConfigError, Degraded, RpcError, Status
from steelyard.guard import Admission, Protection
from steelyard.invoke import Filter, Invoker
from steelyard.model import Invocation, MethodSpec, Reply, ServiceSpec
from steelyard.service import LAST_GOOD_REPLY, fallback_call
from steelyard.telemetry import current_call_span

from .switches import OWN_FALLBACK, Mode, Switch, Switches

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

_PASS = Admission.PASS
_WHY = {
    Admission.DEGRADE_FAILING: "calls to the healthy nodes fail, and this one was not sent",
    Admission.DEGRADE_WAITING: "it would not be answered in time, and was not sent",
}


def degrade(
    service: ServiceSpec,
    *,
    protection: Protection | None = None,
    switches: Switches | None = None,
    clock: Callable[[], float] = time.monotonic,
    dice: Callable[[], float] = random.random,
    kept_replies: int = 1024,
    kept_bytes: int = 16 << 20,
) -> Filter:
    """The filter for one referenced service. ``protection`` decides which calls are sent [all]; ``switches`` are the
    operator's [none]. ``kept_replies`` and ``kept_bytes`` bound what LAST_GOOD_REPLY remembers, per method; the least
    recently used go first."""
    if kept_replies < 1 or kept_bytes < 1:
        raise ConfigError(f"degrade: kept_replies and kept_bytes start at 1, not {kept_replies!r} and {kept_bytes!r}")
    switches = switches or Switches(service)
    methods = {
        name: _Method(method, LastGoodReplies(kept_replies, kept_bytes) if _remembers(method) else None)
        for name, method in service.methods.items()
    }

    def filter_(invocation: Invocation, following: Invoker) -> Awaitable[Reply]:
        method = methods.get(invocation.method)
        if method is None:
            return following(invocation)
        switch = switches.of(invocation.method)
        if switch is not None and switch.mode is not Mode.FAIL:
            if switch.mode is Mode.OFF:
                return following(invocation)
            return method.refuse(invocation, switch, "it is switched to force")
        if protection is not None:
            now_s = clock()
            admission = protection.admit(
                invocation.method, invocation.priority, invocation.deadline_at - now_s, now_s, dice
            )
            if admission is not _PASS and not admission.is_sent:
                return method.refuse(invocation, switch, _WHY[admission])
        if method.has_fallback or switch is not None:
            return method.send(invocation, following, switch)
        return following(invocation)

    return filter_


class _Method:
    """One method: passes, remembers, answers, and says once when it begins to answer and once when it ends."""

    def __init__(self, spec: MethodSpec, memory: LastGoodReplies | None) -> None:
        self._spec = spec
        self._memory = memory
        self._degraded = 0
        self.has_fallback = spec.has_fallback

    async def send(self, invocation: Invocation, following: Invoker, switch: Switch | None) -> Reply:
        """Calls, and answers after a failure."""
        try:
            reply = await following(invocation)
        except RpcError as error:
            if error.status not in _CANNOT_ANSWER or error.details is not None:
                raise
            answer = await self._answer(invocation, switch)
            if answer is None:
                raise
            self._degraded += 1
            if self._degraded == 1:
                log.warning("%s is answered by its fallback: %s", self._named(invocation), error)
            _note(invocation, "the call failed")
            return answer
        if self._degraded:
            log.info("%s answers again after %d degraded calls", self._named(invocation), self._degraded)
            self._degraded = 0
        if self._memory is not None and reply.body is not None and invocation.body is not None:
            self._memory.keep(invocation.body, reply.body)
        return reply

    async def refuse(self, invocation: Invocation, switch: Switch | None, why: str) -> Reply:
        """Answers without calling. Raises Degraded when there is nothing to answer with."""
        _note(invocation, why)
        answer = await self._answer(invocation, switch)
        if answer is None:
            raise _degraded(invocation, why)
        return answer

    async def _answer(self, invocation: Invocation, switch: Switch | None) -> Reply | None:
        fallback = self._spec.fallback
        if switch is not None and switch.answer is not OWN_FALLBACK:
            fallback = switch.answer
        elif not self.has_fallback:
            return None
        elif self._memory is not None:
            body = None if invocation.body is None else self._memory.find(invocation.body)
            return None if body is None else Reply(body=body)
        if not callable(fallback):
            return Reply(value=fallback)
        call = fallback_call(fallback, self._spec.parameters, self._named(invocation))
        value = call(*invocation.args) if inspect.iscoroutinefunction(fallback) else await _call(call, invocation)
        return Reply(value=await value if inspect.isawaitable(value) else value)

    def _named(self, invocation: Invocation) -> str:
        return f"{invocation.service}.{self._spec.name}"


def degraded(invocation: Invocation, admission: Admission) -> Degraded:
    """The answer to a call that protection does not send and that has no fallback."""
    why = _WHY[admission]
    _note(invocation, why)
    return _degraded(invocation, why)


def _degraded(invocation: Invocation, why: str) -> Degraded:
    named = f"{invocation.service}.{invocation.method}"
    return Degraded(f"{named} (priority {invocation.priority}) is degraded: {why}", may_have_run=False)


def _note(invocation: Invocation, why: str) -> None:
    """An event on the call's span, where the call is traced; some 50 ns where it is not."""
    call = current_call_span.get()
    if call is not None:
        call.span.add_event("steelyard.degraded", {"reason": why, "priority": invocation.priority})


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
