"""The short way of a call: what the default filters do where nothing has to be done, in one coroutine.

Every filter is a function around the next, and most calls only pass them: nobody traces or measures, no switch is set,
the method has no fallback. A stack of functions still costs a frame each, a record that is made twice and a clock that
is asked six times; together they were a third of a call. So where the stack is the default one, a unary call goes
through this coroutine, which asks the same objects the same questions in the same order as ``tracing``, ``metrics``,
``codec``, ``degrade`` and ``recover`` do, and takes the long way, the stack, as soon as one of them has more to do than
to look. ``tests/unit/consumer/test_short.py`` runs one list of calls over both and compares.

An edited stack has no short way: who inserts a filter wants it called.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from steelyard.codec import MethodCodec
from steelyard.errors import RemoteError, RpcError
from steelyard.filter import Codecs, Switches, degraded, rebuilt, unpacked_reply
from steelyard.guard import Admission, Protection
from steelyard.invoke import Invoker, outcome_of
from steelyard.model import CallShape, Invocation, MethodSpec, Outcome, Packed
from steelyard.telemetry import Telemetry

_PASS = Admission.PASS
_SAYS = {Outcome.OK: True, Outcome.FAILED: False, Outcome.IGNORED: None}

# A default stack with one filter more has no short way before this one knows of it.
COVERED = ("tracing", "metrics", "codec", "degrade", "recover")

Call = Callable[..., Awaitable[Any]]
Opener = Callable[[tuple[Any, ...], dict[str, Any], float], Invocation]
"""(arguments by position, by name, now)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortWay:
    """What the default filters of one reference look at. ``cluster`` is what stands behind them."""

    cluster: Invoker
    codecs: Codecs
    telemetry: Telemetry
    protection: Protection | None
    switches: Switches
    dice: Callable[[], float]
    clock: Callable[[], float] = time.monotonic

    def codec(self, service: str, method: MethodSpec) -> MethodCodec | None:
        """The codec of a method that has a short way; None where it has none: streams, and methods whose fallback looks
        at every answer, or whose bodies are compressed."""
        if method.shape is not CallShape.UNARY or method.has_fallback or method.compress:
            return None
        return self.codecs[service, method.name]

    def call(self, open_call: Opener, codec: MethodCodec, long_way: Call) -> Call:
        """The function behind a proxy's method. *open_call* gives the Invocation with its body."""
        cluster, protection, dice, clock = self.cluster, self.protection, self.dice, self.clock
        is_silent, switches, decode = self.telemetry.is_silent, self.switches, codec.decode_result

        async def call(*args: Any, **kwargs: Any) -> Any:
            now_s = clock()
            if switches.are_set or not is_silent(now_s):
                return await long_way(*args, **kwargs)
            invocation = open_call(args, kwargs, now_s)
            if protection is None:
                try:
                    reply = await cluster(invocation)
                except RemoteError as error:
                    raise rebuilt(codec, error) from error.__cause__
                body: Any = reply.body
                if type(body) is Packed:
                    body = await unpacked_reply(body)
                return None if body is None else decode(body)
            method, started_s = invocation.method, clock()
            admission = protection.admit(
                method, invocation.priority, invocation.deadline_at - started_s, started_s, dice
            )
            if admission is not _PASS and not admission.is_sent:
                raise degraded(invocation, admission)
            protection.started(method, started_s)
            is_ok: bool | None = None
            try:
                reply = await cluster(invocation)
                is_ok = True
            except RemoteError as error:
                is_ok = _SAYS[outcome_of(error)]
                raise rebuilt(codec, error) from error.__cause__
            except RpcError as error:
                is_ok = _SAYS[outcome_of(error)]
                raise
            finally:
                now_s = clock()
                protection.ended(method, now_s, is_ok, now_s - started_s)
            body = reply.body
            if type(body) is Packed:  # the provider's contract says so, though this one's does not
                body = await unpacked_reply(body)
            return None if body is None else decode(body)

        return call
