"""Dispatch: from a received invocation to the method that serves it.

The service and the method are looked up before the filters, because the filters need the method's facts; what is
unknown is refused with a list of what there is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from steelyard.codec import MethodCodec, codec_for
from steelyard.errors import ConfigError, RpcError, Unimplemented
from steelyard.filter import server_codec, server_deadline, server_metrics, server_tracing
from steelyard.invoke import Invoker, Position, Stack
from steelyard.model import Invocation, Reply, ServiceSpec
from steelyard.service import BoundMethod
from steelyard.telemetry import Telemetry
from steelyard_registry.node import ServiceKey

from .pool import HandlerPool


class Dispatcher:
    """An Invoker over everything that a provider exports."""

    def __init__(
        self,
        telemetry: Telemetry,
        pool: HandlerPool,
        clock: Callable[[], float],
        address: Callable[[], str],
        edit: Callable[[Stack], Stack] | None = None,
    ) -> None:
        self._services: dict[str, ServiceSpec] = {}
        self._keys: dict[str, list[str]] = {}
        self._methods: dict[tuple[str, str], BoundMethod] = {}
        self._codecs: dict[tuple[str, str], MethodCodec] = {}
        self._pool = pool
        own = Stack(
            Position("tracing", server_tracing(telemetry, address), "the server's span covers all that follows"),
            Position("metrics", server_metrics(telemetry), "measures what the provider spends on a call"),
            Position("deadline", server_deadline(clock), "an expired call is not even decoded"),
            Position("codec", server_codec(self._codecs), "bytes outside, values inside"),
        )
        self.stack = edit(own) if edit else own
        self._invoke: Invoker = self.stack.build(self._run)

    def add(self, spec: ServiceSpec, methods: Mapping[str, BoundMethod]) -> None:
        """Makes a service callable. Raises ConfigError when its key is taken, and ContractError for a type that
        cannot be carried."""
        key = spec.key
        if key in self._services:
            raise ConfigError(f"{key} is exported already by this provider; give one of the two another group")
        codecs = {name: codec_for(method.spec) for name, method in methods.items()}  # all of them, or nothing is added
        for name, method in methods.items():
            self._methods[key, name] = method
            self._codecs[key, name] = codecs[name]
        self._services[key] = spec
        self._keys.setdefault(spec.name, []).append(key)

    def remove(self, spec: ServiceSpec) -> None:
        """Takes a service back that was added; its calls under way are finished."""
        del self._services[spec.key]
        self._keys[spec.name].remove(spec.key)

    async def __call__(self, invocation: Invocation) -> Reply:
        spec = self._services.get(invocation.service) or self._resolve(invocation.service)
        method = spec.methods.get(invocation.method)
        if method is None:
            raise Unimplemented(
                f"{spec.key} has no method {invocation.method!r}; it has: {', '.join(sorted(spec.methods))}"
            )
        return await self._invoke(
            Invocation(
                spec.key,
                method.name,
                (),
                invocation.body,
                invocation.deadline_at,
                invocation.attachments,
                invocation.priority,
                invocation.key,
                method,
            )
        )

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
        known = ", ".join(sorted(self._services)) or "nothing"
        raise Unimplemented(f"no service {service!r} here; exported: {known}")

    async def _run(self, invocation: Invocation) -> Reply:
        method = self._methods[invocation.service, invocation.method]
        function, args = method.function, invocation.args
        if not method.is_async:
            if method.is_stream:
                return Reply(stream=self._pool.iterate(function, args))
            value = await self._pool.run(function, args, invocation.deadline_at)
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


async def _opened(stream: Any) -> AsyncIterator[Any]:
    """``async def f() -> AsyncIterator`` may be a generator function, or a coroutine that gives an iterator."""
    if hasattr(stream, "__await__"):
        stream = await stream
    return aiter(stream)
