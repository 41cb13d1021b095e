"""Provider: exports implementations, registers them with this machine's hardware, reports load, drains.

Order matters at both ends. A node is registered only when its port accepts, so nobody is sent to a closed door; on
the way out the connections are told first, then the registry, and then the accepted calls are finished.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, NoReturn, Self

from steelyard.balance import steering_load
from steelyard.cluster import checked_registry, open_at
from steelyard.errors import ConfigError
from steelyard.guard import ConcurrencySettings
from steelyard.hardware import (
    Sampler,
    detect,
    detect_facts,
    detect_zone,
    gpu_source,
    load_nvml,
    split_overrides,
)
from steelyard.invoke import Stack
from steelyard.model import LoadReport
from steelyard.security import TOKEN_TAG, Authenticator, Credentials, Rule, checked_credentials, checked_tokens
from steelyard.service import bind, implemented_spec, service_spec
from steelyard.setting import checked, function, instance, seconds, text, texts, whole_number
from steelyard.telemetry import Telemetry, telemetry_for
from steelyard.wire import WIRE_TAG, WIRE_VERSION, Listener, WireLimits, offer_tags
from steelyard_registry import Hardware, Node, NodeState, Registry

from .admission import MOST_STREAMS
from .announce import hosts, node_for
from .dispatch import Dispatcher
from .exports import Exports
from .guards import Guards
from .hooks import Warm, hooks_for
from .life import Health
from .pool import HandlerPool
from .port import require_free
from .rates import Rates
from .standard import StandardServices
from .statistics import ProviderStatistics, SecurityStatistics
from .workers import parent_pipe

log = logging.getLogger(__name__)

# BALANCING: load reports once a second on every open stream.
REPORT_EVERY_S = 1.0

MOST_WEIGHT = 1_000_000

_NOT_OPEN = "the provider is not open: use `async with Provider(...) as provider:` or `await open()`"
_CLOSED = "this provider has been closed; make a new one"


class Provider:
    """The serving side.

        async with Provider(registry="zookeeper://127.0.0.1:2181") as provider:
            await provider.export(CtrModel())
            await provider.serve()

    ``registry``: a URL, an open Registry, several of these (announced at the first), or None for the one that
    ``$STEELYARD_REGISTRY`` names, or else the embedded one of this user. ``host``: the address to listen on and to
    advertise (None: the one that reaches the registry; 0.0.0.0 or :: listens on all addresses and
    advertises that one); ``port`` 0 takes a free one. ``tags`` are the user's own; ``hardware`` overrides what is
    detected, key by key (kind, model, cores, quota, memory, accelerators, and the tags of ``hardware.FACTS``).
    ``threads`` and ``queue`` bound the pool of handlers that block, and the calls of each method that may wait for it.
    ``limit``: the concurrency limit of methods (None: handlers that block and batches have one; False: none has;
    settings: all but streams). ``streams``: how many streams of one method may be open at once (None: any number).
    ``utilization`` adds named sources of load, each a function that gives a busy share in [0, 1], or None when it
    cannot tell. ``drain_s``: how long accepted calls may take on the way out. ``lane_port``: the port of the fast lane
    beside gRPC (0: any free one; None: no lanes, neither TCP nor a Unix socket).
    ``credentials``: every way in speaks TLS (None: what ``$STEELYARD_TLS_CERTIFICATE`` and its like say).
    ``authenticator``: finds out who calls (``security.JwtVerifier``, or your own). ``access``: who may call what, a
    list of ``allow(...)`` and ``deny(...)``; where there is one, what none allows is refused. ``caller_calls_per_s``:
    what one caller may make on average (None: no bound). See docs/security.md.
    """

    def __init__(
        self,
        registry: str | Registry | Sequence[str | Registry] | None = None,
        *,
        host: str | None = None,
        port: int = 0,
        application: str = "",
        tags: Mapping[str, str] | None = None,
        hardware: Mapping[str, str] | None = None,
        zone: str | None = None,
        weight: int = 100,
        threads: int | None = None,
        queue: int = 1024,
        utilization: Mapping[str, Callable[[], float | None]] | None = None,
        telemetry: Telemetry | str | None = None,
        limits: WireLimits | None = None,
        registry_wait_s: float | None = 10.0,
        drain_s: float = 10.0,
        stack: Callable[[Stack], Stack] | None = None,
        limit: ConcurrencySettings | bool | None = None,
        streams: int | None = MOST_STREAMS,
        lane_port: int | None = 0,
        credentials: Credentials | None = None,
        authenticator: Authenticator | None = None,
        access: Sequence[Rule] = (),
        caller_calls_per_s: float | None = None,
    ) -> None:
        self._credentials = checked_credentials("credentials", credentials)
        if self._credentials is not None:
            self._credentials.check_for_provider()
        self._registry_at = checked_registry("registry", registry)
        self._registry_wait_s = None if registry_wait_s is None else seconds("registry_wait_s", registry_wait_s)
        self._host = (
            None if host is None else checked("host", text("host", host), bool(host), "a name or an address, or None")
        )
        self._port = whole_number("port", port, 0, 65535)
        self._lane_port = None if lane_port is None else whole_number("lane_port", lane_port, 0, 65535)
        self._application = text("application", application)
        self._tags = {} if tags is None else texts("tags", tags)
        fields, facts = split_overrides({} if hardware is None else texts("hardware", hardware))
        nvml = load_nvml()
        self._hardware = detect(fields, nvml=lambda: nvml)
        self._tags = detect_facts(facts, nvml=nvml) | self._tags
        self._zone = detect_zone() if zone is None else text("zone", zone)
        self._weight = _checked_weight(weight)
        self._drain_s = seconds("drain_s", drain_s)
        streams = None if streams is None else whole_number("streams", streams, 1, 1_000_000)
        instance("limit", limit, ConcurrencySettings | bool | None, "ConcurrencySettings, True, False or None")
        self._limits = WireLimits() if limits is None else instance("limits", limits, WireLimits, "a WireLimits")
        if stack is not None:
            function("stack", stack)
        self._telemetry = telemetry_for(telemetry, service_name=application or "steelyard-provider")
        threads = min(32, (os.cpu_count() or 1) + 4) if threads is None else threads
        self._pool = HandlerPool(threads, queue, time.monotonic)
        self._dispatcher = Dispatcher(
            self._telemetry,
            self._pool,
            time.monotonic,
            lambda: self.address,
            stack,
            limit=limit,
            queue=queue,
            streams=streams,
            guards=Guards(authenticator, access, caller_calls_per_s),
        )
        self._sampler = Sampler()
        sources = {} if utilization is None else dict(instance("utilization", utilization, Mapping, "a mapping"))
        sources.setdefault("executor", self._dispatcher.busy_share)
        if nvml is not None:
            sources.setdefault("gpu", gpu_source(nvml))
        for name, source in sources.items():
            self._sampler.add_source(text("utilization", name), function(f"utilization of {name!r}", source))
        self._registry: Registry | None = None
        self._listener: Listener | None = None
        self._exports = Exports(self._dispatcher)
        self._rates = Rates(time.monotonic())
        self._reporting: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._advertised = ""
        self._stopping = asyncio.Event()

    @property
    def address(self) -> str:
        """``host:port`` as registered. Raises ConfigError before the provider is open."""
        host = self._advertised
        if not host:
            raise ConfigError(_NOT_OPEN)
        return f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"

    @property
    def registry(self) -> Registry:
        """The open registry. Raises ConfigError before the provider is open."""
        return self._opened()

    @property
    def hardware(self) -> Hardware:
        """What this machine is, as registered."""
        return self._hardware

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What this provider has registered."""
        return self._exports.nodes

    @property
    def states(self) -> Mapping[str, NodeState]:
        """Where each exported service is in its life, by service key."""
        return self._exports.states

    @property
    def in_flight(self) -> int:
        """Calls that are being served now."""
        return self._listener.in_flight if self._listener is not None else 0

    def statistics(self) -> ProviderStatistics:
        """How this provider is, as a record."""
        sampled_at, dispatcher = self._sampler.sampled_at, self._dispatcher
        return ProviderStatistics(
            states=self._exports.states,
            reasons=self._exports.reasons,
            limits={".".join(key): law.statistics() for key, law in dispatcher.limits.items()},
            batches={".".join(key): batcher.statistics() for key, batcher in dispatcher.batchers.items()},
            in_flight=self.in_flight,
            queue_depth=dispatcher.waiting,
            calls=0 if self._listener is None else self._listener.tally.calls,
            errors=0 if self._listener is None else self._listener.tally.errors,
            utilization=self._sampler.utilization,
            age_s=None if sampled_at is None else time.monotonic() - sampled_at,
            security=SecurityStatistics(
                unauthenticated=dispatcher.refusals.unauthenticated,
                limited=dispatcher.refusals.limited,
                denied=dict(dispatcher.refusals.denied),
            ),
        )

    def report(self, name: str, share: float) -> None:
        """Tells consumers how full something is that only the model knows of, as a share in [0, 1]:
        ``provider.report("kv_cache", 0.7)``. The balancer takes it like a measured one. It holds for ten seconds at
        most, so tell it again. From any thread. Raises ConfigError for a name that is measured already."""
        self._sampler.tell(name, share)

    async def open(self) -> None:
        """Opens the registry, then the port. Raises RegistryUnavailable, ConfigError (a bad URL, or a provider that has
        been closed) or ListenError for a port that is taken."""
        if self._closing is not None:
            raise ConfigError(_CLOSED)
        if self._listener is not None:
            return
        self._registry = await open_at(self._registry_at, self._registry_wait_s)
        listen_at, self._advertised = await asyncio.to_thread(hosts, self._host, self._registry.url)
        listener = Listener(
            self._dispatcher,
            host=listen_at,
            port=self._port,
            limits=self._limits,
            lanes=() if self._lane_port is None else ("tcp", "uds"),
            lane_port=self._lane_port or 0,
            credentials=self._credentials,
            handlers=StandardServices(
                self._exports, lambda: listener.load_trailer, describes=not self._dispatcher.is_guarded
            ).handlers,
            takes_stream=self._dispatcher.takes_stream,
        )
        try:
            if self._port:
                await asyncio.to_thread(require_free, listen_at, self._port)
            self._port = await listener.start()
            listener.identity = self.address
        except BaseException:
            await self._close_registry()
            raise
        self._listener = listener
        self._rates = Rates(time.monotonic())
        self._sampler.start()
        self._telemetry.observe_utilization(lambda: self._sampler.utilization)
        self._reporting = asyncio.get_running_loop().create_task(self._report(), name="load reports")

    async def export(
        self,
        implementation: Any,
        *,
        contract: type | None = None,
        weight: int | None = None,
        load: Callable[[], Any] | None = None,
        warm_up: Warm | Callable[[], Any] | None = None,
        health: Health | Callable[[], Any] | None = None,
        token: str | Sequence[str] | bool | None = None,
    ) -> Node:
        """Serves an instance, and registers it; returns when it is ready. *contract* names the declared service when
        the implementation fulfils more than one.

        With a *load* or a *warm_up* it is registered first, in a state that nobody picks, and becomes ready when these
        are done: *load* brings the model into memory, *warm_up* is ``Warm(n=..., args=...)`` for real calls or a
        function of its own. *health* is asked from time to time; when it fails, or a call fails in a way that says that
        the device has (``life``), the service is failed and takes no calls until it is well again. Without them the
        implementation's own methods ``warm_up()`` and ``health()`` are taken, if it has any. Plain functions may block.

        *token* (Dubbo's): calls must bring it, and consumers find it in the registry. True makes one up; of several the
        first is published and all are accepted.

        Raises ContractError naming both signatures when a method is missing or does not match,
        ConfigError for a service that this provider exports already, and RegistryUnavailable when the registry refuses;
        what is not registered is not served either."""
        registry = self._opened()
        tokens = checked_tokens("token", token)
        spec = service_spec(contract) if contract is not None else implemented_spec(implementation)
        methods = bind(spec, implementation)
        hooks = hooks_for(
            methods,
            implementation,
            lambda method, args: self._dispatcher.run_inside(spec, method, args),
            load=load,
            warm_up=warm_up,
            health=health,
        )

        def node(state: NodeState) -> Node:
            return node_for(
                spec,
                host=self._advertised,
                port=self._port,
                application=self._application,
                hardware=self._hardware,
                zone=self._zone,
                weight=self._weight if weight is None else _checked_weight(weight),
                tags={**self._lanes(), **self._tags, **({TOKEN_TAG: tokens[0]} if tokens else {})},
                state=state,
            )

        exported = await self._exports.add(registry, spec, methods, hooks, node, tokens)
        if self._closing is not None:  # in the meantime
            await self._exports.leave()
            self._opened()
        log.info("%s is %s at %s and registered at %s", spec.key, exported.state, exported.address, registry.url)
        return exported

    def _lanes(self) -> dict[str, str]:
        """The tags that tell consumers that we speak our wire, of the fast lanes, and that TLS is spoken."""
        offer = {} if self._listener is None else offer_tags(self._listener.offer)
        return {WIRE_TAG: str(WIRE_VERSION), **offer}

    async def serve(self) -> None:
        """Waits until ``stop``, SIGTERM or SIGINT, or for a worker until its parent ends (``workers``); leaving
        ``async with`` then drains. Raises ConfigError when the provider is not open."""
        self._opened()
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
        for number in signals:
            loop.add_signal_handler(number, self.stop)
        pipe = parent_pipe()
        if pipe is not None:
            loop.add_reader(pipe, self.stop)
        try:
            await self._stopping.wait()
        finally:
            if pipe is not None:
                loop.remove_reader(pipe)
            for number in signals:
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        """Lets ``serve`` return. Safe to call from signal handlers and more than once."""
        self._stopping.set()

    async def close(self) -> None:
        """Drains and closes: connections are told, nodes withdrawn, accepted calls finished (``drain_s``).

        Closing happens once, and everybody who asks for it waits for it; cancelling one who waits does not stop it."""
        if self._closing is None:
            if self._listener is None:
                await self._telemetry.aclose()  # made with the provider, and has threads where it sends
                return
            self._stopping.set()
            closing = self._close(self._listener)
            self._closing = asyncio.get_running_loop().create_task(closing, name="closing a provider")
        await asyncio.shield(self._closing)

    async def _close(self, listener: Listener) -> None:
        async with AsyncExitStack() as last:  # from the bottom up, each step whatever became of the one before
            last.push_async_callback(self._telemetry.aclose)
            last.callback(self._pool.close)
            last.push_async_callback(asyncio.to_thread, self._sampler.stop)
            last.push_async_callback(self._close_registry)
            last.push_async_callback(self._dispatcher.close)
            last.push_async_callback(listener.close)
            last.push_async_callback(self._end_reports)
            async with asyncio.TaskGroup() as group:
                draining = group.create_task(listener.drain(self._drain_s))
                await asyncio.sleep(0)  # DRAIN is on its way before the registry hears of it
                group.create_task(self._exports.leave())
            if not draining.result():
                log.warning("%d calls still run after %g s and are cancelled", listener.in_flight, self._drain_s)

    async def _end_reports(self) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)

    def _opened(self) -> Registry:
        """The registry of a provider that is open and not closing. Raises ConfigError."""
        if self._closing is not None:
            raise ConfigError(_CLOSED)
        if self._listener is None or self._registry is None:
            raise ConfigError(_NOT_OPEN)
        return self._registry

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            listener = self._listener
            if listener is None:
                return
            try:
                report = self._load(listener)
                listener.publish_load(report, steering_load(report))
            except Exception:
                log.exception("a load report could not be sent; the next one follows")

    def _load(self, listener: Listener) -> LoadReport:
        tally = listener.tally
        calls_per_s, errors_per_s = self._rates.since(tally.calls, tally.errors, time.monotonic()) or (None, None)
        return self._sampler.report(
            in_flight=listener.in_flight,
            queue_depth=self._dispatcher.waiting,
            calls_per_s=calls_per_s,
            errors_per_s=errors_per_s,
        )

    async def _close_registry(self) -> None:
        registry, self._registry = self._registry, None
        if registry is not None and registry is not self._registry_at:
            await registry.close()

    def __enter__(self) -> NoReturn:
        raise TypeError("a Provider works on an event loop: write `async with Provider(...)`")

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _checked_weight(weight: int) -> int:
    return whole_number("weight", weight, 0, MOST_WEIGHT, "100 is normal")
