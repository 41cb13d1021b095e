"""Dispatch: from a received invocation to the method that serves it.

The service and the method are looked up before the filters, because the filters need the method's facts; what is
unknown is refused with a list of what there is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from steelyard.codec import MethodCodec, codec_for
from steelyard.errors import ConfigError, RpcError, Unimplemented
from steelyard.filter import (
    server_codec,
    server_deadline,
    server_limit,
    server_metrics,
    server_readiness,
    server_tracing,
)
from steelyard.guard import ConcurrencyLimit
from steelyard.invoke import Invoker, Position, Stack, serving
from steelyard.model import Codec, Invocation, MethodSpec, Packed, Reply, ServiceSpec
from steelyard.service import BoundMethod
from steelyard.telemetry import Telemetry, WatchedStream
from steelyard.wire import Streamed
from steelyard_registry.node import ServiceKey

from .admission import MOST_STREAMS, Limit, limit_for
from .batching import Batcher
from .guards import Guards
from .life import Life
from .pool import HandlerPool
from .short import COVERED, ShortMethod, has_short_way


class Dispatcher:
    """An Invoker over everything that a provider exports."""

    def __init__(
        self,
        telemetry: Telemetry,
        pool: HandlerPool,
        clock: Callable[[], float],
        address: Callable[[], str],
        edit: Callable[[Stack], Stack] | None = None,
        *,
        limit: Limit = None,
        queue: int = 1024,
        streams: int | None = MOST_STREAMS,
        guards: Guards | None = None,
    ) -> None:
        guards = guards or Guards()
        self.refusals = guards.refusals
        self._tokens: dict[str, Sequence[str]] = {}
        # To whom nobody has asked who they are, a list of what there is would be a map.
        self.is_guarded = guards.asks_who
        self._services: dict[str, ServiceSpec] = {}
        self._keys: dict[str, list[str]] = {}
        self._methods: dict[tuple[str, str], BoundMethod] = {}
        self._codecs: dict[tuple[str, str], MethodCodec] = {}
        self._lives: dict[str, Life] = {}
        self._retired: list[Batcher] = []
        self.batchers: dict[tuple[str, str], Batcher] = {}
        self.limits: dict[tuple[str, str], ConcurrencyLimit] = {}
        self._pool = pool
        self._telemetry = telemetry
        self._clock = clock
        self._limit = limit
        self._streams = streams
        self._queue = queue
        self._uses_pool = False
        tracing = server_tracing(telemetry, address)
        own = Stack(
            Position("tracing", tracing, "the server's span covers all that follows"),
            Position("metrics", server_metrics(telemetry), "measures what the provider spends on a call"),
            *guards.positions(self._tokens, clock),
            Position("readiness", server_readiness(self._refusal), "what is not ready refuses at once, and is counted"),
            Position("deadline", server_deadline(clock), "an expired call is not even decoded"),
            Position(
                "limit", server_limit(self.limits, clock), "sheds before a body is decoded; what expired is no load"
            ),
            Position("codec", server_codec(self._codecs), "bytes outside, values inside"),
        )
        self.stack = edit(own) if edit else own
        # What is unknown comes to no filter, and is seen in a trace all the same. It is not counted: a stranger's names
        # would make a series each.
        self._tracing = tracing if "tracing" in self.stack.names else None
        self._invoke: Invoker = self.stack.build(self._run)
        self._has_short_ways = edit is None and set(self.stack.names) <= set(COVERED)
        self._short_ways: dict[tuple[str, str], ShortMethod] = {}

    def add(
        self,
        spec: ServiceSpec,
        methods: Mapping[str, BoundMethod],
        life: Life | None = None,
        tokens: Sequence[str] = (),
    ) -> None:
        """Makes a service callable, as far as its *life* allows; with *tokens*, for those who bring one. Raises
        ConfigError when its key is taken, and ContractError for a type that cannot be carried."""
        key = spec.key
        if key in self._services:
            raise ConfigError(f"{key} is exported already by this provider; give one of the two another group")
        codecs = {name: codec_for(method.spec) for name, method in methods.items()}  # all of them, or nothing is added
        for name, method in methods.items():
            self._methods[key, name] = method
            self._codecs[key, name] = codecs[name]
            self._uses_pool |= not method.is_async
            limit = limit_for(method, self._limit, self._pool.threads, self._streams)
            if limit is not None:
                self.limits[key, name] = limit
            elif self._has_short_ways and has_short_way(method):
                self._short_ways[key, name] = ShortMethod(method, codecs[name], life, self._note)
            if method.batch is not None:
                self.batchers[key, name] = Batcher(method, self._pool, self._queue, self._clock, self._telemetry)
        if life is not None:
            self._lives[key] = life
        if tokens:
            self._tokens[key] = tuple(tokens)
            self._invoke = self.stack.build(self._run)
        self._services[key] = spec
        self._keys.setdefault(spec.name, []).append(key)

    def remove(self, spec: ServiceSpec) -> None:
        """Takes a service back that was added; its calls under way are finished."""
        del self._services[spec.key]
        self._keys[spec.name].remove(spec.key)
        self._lives.pop(spec.key, None)
        self._tokens.pop(spec.key, None)
        for name in spec.methods:
            self._short_ways.pop((spec.key, name), None)
            self.limits.pop((spec.key, name), None)
            batcher = self.batchers.pop((spec.key, name), None)
            if batcher is not None:
                self._retired.append(batcher)

    def takes_stream(self, service: str, method: str) -> Streamed:
        """How a plain caller sends the arguments of a method."""
        try:
            spec = (self._services.get(service) or self._resolve(service)).methods.get(method)
        except Unimplemented:
            return Streamed.NOTHING
        if spec is None or spec.stream_at is None:
            return Streamed.NOTHING
        return Streamed.ALL if spec.codec is Codec.PROTOBUF else Streamed.AFTER_BODY

    @property
    def waiting(self) -> int:
        """Calls that wait for a thread or for a batch."""
        return self._pool.queue_depth + sum(batcher.waiting for batcher in self.batchers.values())

    def busy_share(self) -> float | None:
        """The busy share of the fullest executor (the pool's threads, each method's batches) since the last question,
        in [0, 1]. None while nothing that they run is exported: the loop's own coroutines show in the CPU's share."""
        shares = [batcher.busy.share() for batcher in list(self.batchers.values())]
        if self._uses_pool:
            shares.append(self._pool.busy.share())
        return max(shares, default=None)

    async def run_inside(self, spec: ServiceSpec, method: str, args: tuple[Any, ...]) -> None:
        """One call from within, through everything that runs a handler and past everything that guards it."""
        reply = await self._run(Invocation(spec.key, method, args, spec=spec.methods[method]))
        if reply.stream is not None:
            async for _ in reply.stream:
                pass

    async def close(self) -> None:
        """Ends batches. Idempotent."""
        for batcher in (*self.batchers.values(), *self._retired):
            await batcher.close()

    def __call__(self, invocation: Invocation) -> Awaitable[Reply]:
        short = self._short_ways.get((invocation.service, invocation.method))
        body: Any = invocation.body
        if short is not None and not self._tokens and type(body) is not Packed:
            now_s = self._clock()
            if self._telemetry.is_silent(now_s):
                return short.serve(_known(invocation, invocation.service, short.method.spec), now_s)
        try:
            spec = self._services.get(invocation.service) or self._resolve(invocation.service)
            method = spec.methods.get(invocation.method)
            if method is None:
                has = "" if self.is_guarded else f"; it has: {', '.join(sorted(spec.methods))}"
                raise Unimplemented(f"{spec.key} has no method {invocation.method!r}{has}")
        except Unimplemented as refusal:
            if self._tracing is None:
                raise
            return self._tracing(invocation, _raiser(refusal))
        return self._invoke(_known(invocation, spec.key, method))

    def _resolve(self, service: str) -> ServiceSpec:
        """A plain gRPC path names the interface alone; that is enough while only one version and group is exported. A
        consumer that takes any version or group (``*``) gets the first that fits."""
        asked = ServiceKey.parse(service)
        specs = [self._services[key] for key in self._keys.get(asked.interface, ())]
        if service == asked.interface and len(specs) > 1:
            keys = ", ".join(spec.key for spec in specs)
            raise Unimplemented(f"{service!r} is exported as {keys}; name the version and group")
        for spec in specs:
            fits = asked.version in (spec.version, "*") and asked.group in (spec.group, "*")
            if fits or service == asked.interface:
                return spec
        if self.is_guarded:
            raise Unimplemented(f"no service {service!r} here")
        known = ", ".join(sorted(self._services)) or "nothing"
        raise Unimplemented(f"no service {service!r} here; exported: {known}")

    def _refusal(self, service: str) -> RpcError | None:
        life = self._lives.get(service)
        return None if life is None or life.is_open else life.refusal()

    async def _run(self, invocation: Invocation) -> Reply:
        method = self._methods[invocation.service, invocation.method]
        try:
            reply = await self._answer(invocation, method)
        except Exception as error:
            self._note(invocation.service, method, error)
            raise
        if reply.stream is None:
            return reply
        served = serving.get()

        def ended(error: BaseException | None) -> None:
            self._note(invocation.service, method, error)
            if served is not None:
                served.is_over = True

        return Reply(stream=WatchedStream(reply.stream, ended))

    def _note(self, service: str, method: BoundMethod, error: BaseException | None) -> None:
        """Whether the device has failed is the life's to say; what the contract declares is an answer."""
        life = self._lives.get(service)
        if error is not None and life is not None and not isinstance(error, method.spec.raises):
            life.note(error)

    async def _answer(self, invocation: Invocation, method: BoundMethod) -> Reply:
        function, args = method.function, invocation.args
        if method.batch is not None:
            return Reply(value=await self.batchers[invocation.service, invocation.method](invocation))
        if not method.is_async:
            pool, at, priority = self._pool, invocation.deadline_at, invocation.priority
            line = method.spec.qualified_name
            if method.is_stream:
                return Reply(stream=pool.iterate(function, args, at, priority=priority, line=line))
            value = await pool.run(function, args, at, priority=priority, line=line)
            # A plain wrapper around a coroutine function does not look asynchronous until it has been called.
            if not hasattr(value, "__await__"):
                return Reply(value=value)
        try:
            if method.is_stream:
                return Reply(stream=await _opened(function(*args)))
            return Reply(value=await (function(*args) if method.is_async else value))
        except RpcError as error:
            # It speaks of a call that the handler has made; this one has begun.
            error.may_have_run = True
            raise


def _known(invocation: Invocation, service: str, method: MethodSpec) -> Invocation:
    """What came, with the service's full key and the method's facts."""
    return Invocation(
        service,
        method.name,
        (),
        invocation.body,
        invocation.deadline_at,
        invocation.attachments,
        invocation.priority,
        invocation.key,
        method,
        invocation.stream,
        invocation.caller,
    )


async def _opened(stream: Any) -> AsyncIterator[Any]:
    """``async def f() -> AsyncIterator`` may be a generator function, or a coroutine that gives an iterator."""
    if hasattr(stream, "__await__"):
        stream = await stream
    return aiter(stream)


def _raiser(error: RpcError) -> Invoker:
    async def refuse(_: Invocation) -> Reply:
        raise error

    return refuse
