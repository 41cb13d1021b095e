"""Consumer: refers to services and calls them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, cast

from steelyard.balance import Policy, make_policy
from steelyard.cluster import ChannelPool, Failover, checked_registry, open_at, where
from steelyard.codec import MethodCodec, codec_for, generic_codec
from steelyard.errors import ConfigError
from steelyard.filter import OWN_FALLBACK, Codecs, Mode, Switches
from steelyard.guard import Protection, ProtectionSettings
from steelyard.hardware import detect_zone
from steelyard.invoke import Stack
from steelyard.model import MethodSpec, ServiceSpec
from steelyard.security import Bearer, Credentials, Tls, checked_credentials
from steelyard.service import service_spec
from steelyard.setting import checked, function, instance, seconds, text, timeout, whole_number
from steelyard.telemetry import Telemetry, telemetry_for
from steelyard.wire import WireLimits, checked_carrier
from steelyard_registry import Registry, ServiceKey

from .proxy import CallOptions, Proxy, reference_of
from .reference import Reference, ReferenceStatistics, default_stack

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_NODES = 1_000_000
# Proxies of one service in one consumer: more than anybody has use for (a few `where`s and policies), and few enough
# that a program that refers for each call hears of it at once.
MANY_REFERENCES = 32
DEFAULT_PROTECTION = ProtectionSettings()


class Consumer:
    """The calling side.

        async with Consumer(registry="zookeeper://127.0.0.1:2181") as consumer:
            ctr = consumer.refer(Ctr)
            y = await ctr.predict(7, x)

    ``registry``: a URL, an open Registry, several of these (their lists are merged), or None for the one that
    ``$STEELYARD_REGISTRY`` names, or else the embedded one of this user. ``timeout_s``: the deadline of methods that
    declare none [3 s]. ``registry_wait_s``: how long opening waits for the registry [10 s; None: for ever].
    ``telemetry``: None (whatever OpenTelemetry SDK the application has set up), or a Telemetry. ``carrier``: what
    connections are made over, ``auto`` (a provider's fast lane where it has one and can be reached by it, and gRPC
    otherwise), or ``grpc``, ``tcp`` or ``uds`` and nothing else. ``credentials``: connections speak TLS (None: what
    ``$STEELYARD_TLS_CA`` and its like say). ``bearer``: the token that goes with each call (None: the one in the file
    that ``$STEELYARD_BEARER_FILE`` names).
    """

    def __init__(
        self,
        registry: str | Registry | Sequence[str | Registry] | None = None,
        *,
        application: str = "",
        timeout_s: float = 3.0,
        registry_wait_s: float | None = 10.0,
        limits: WireLimits | None = None,
        telemetry: Telemetry | str | None = None,
        carrier: str = "auto",
        credentials: Credentials | None = None,
        bearer: Bearer | None = None,
    ) -> None:
        self._credentials = checked_credentials("credentials", credentials)
        if self._credentials is not None:
            self._credentials.check_for_consumer()
        self._bearer = _checked_bearer(bearer, self._credentials)
        self._registry_at = checked_registry("registry", registry)
        self._application = text("application", application)
        self._timeout_s = timeout("timeout_s", timeout_s)
        self._registry_wait_s = None if registry_wait_s is None else seconds("registry_wait_s", registry_wait_s)
        self._limits = None if limits is None else instance("limits", limits, WireLimits, "a WireLimits")
        self._telemetry = telemetry_for(telemetry, service_name=application or "steelyard-consumer")
        self._carrier = checked_carrier("carrier", carrier)
        self._registry: Registry | None = None
        self._channels: ChannelPool | None = None
        self._references: list[Reference] = []
        self._closing: asyncio.Task[None] | None = None

    @property
    def registry(self) -> Registry:
        """The open registry."""
        return self._opened()[0]

    async def open(self) -> None:
        """Opens the registry. Raises RegistryUnavailable after ``registry_wait_s``, ConfigError for a bad URL and for
        credentials that cannot be used."""
        if self._registry is None:
            tls = None if self._credentials is None else Tls(self._credentials)
            self._registry = await open_at(self._registry_at, self._registry_wait_s, from_cache=True)
            self._channels = ChannelPool(self._limits, self._application, self._carrier, tls)

    def refer(
        self,
        contract: Callable[..., T],
        *,
        where: str | None = None,
        policy: str = "dual",
        policy_settings: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        retries: int = 2,
        hedging: bool = True,
        protection: ProtectionSettings | None = DEFAULT_PROTECTION,
        version: str | None = None,
        group: str | None = None,
        stack: Callable[[Stack], Stack] | None = None,
    ) -> T:
        """An object with the contract's methods, each of which calls the cluster. Refer once and keep it: every
        reference has loops and statistics of its own until the consumer is closed.

        ``where`` picks nodes by their facts (``hw.kind == 'gpu' and zone == 'a'``). ``policy`` names the balancing
        policy [dual], and ``policy_settings`` are its own (``{"gain": 0.15}``). ``retries``: further attempts on other
        nodes (0: none at all); ``hedging``: idempotent calls that take unusually long are one of them. ``protection``:
        the numbers of active protection (None: off). ``version`` and ``group`` override the contract's; ``*`` takes
        any. ``stack`` edits the filters: ``stack=lambda s: s.insert_before("codec", Position("mine", my_filter,
        "why"))``.

        ``timeout_s`` is the deadline of methods that declare none, in place of the consumer's; ``with_options`` sets it
        for every method. Raises ContractError for what is no service, and ConfigError for a bad setting and for a
        consumer that is not open.
        """
        # Typed as a callable: type checkers refuse an abstract class or a protocol as type[T], and not as this.
        spec = service_spec(cast("type", contract))
        spec = _with_key(spec, version, group)
        codecs = {(spec.key, name): codec_for(method) for name, method in spec.methods.items()}
        failover = _failover(retries, hedging)
        law = _policy(policy, policy_settings)
        return cast(T, self._refer(spec, codecs, where, law, timeout_s, failover, protection, stack))

    def generic(
        self,
        service: str,
        methods: Sequence[MethodSpec],
        *,
        where: str | None = None,
        policy: str = "dual",
        policy_settings: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        retries: int = 2,
        hedging: bool = True,
        protection: ProtectionSettings | None = DEFAULT_PROTECTION,
        codec: MethodCodec | None = None,
        stack: Callable[[Stack], Stack] | None = None,
    ) -> Any:
        """A proxy for a service whose contract is not at hand: *service* is its key, arguments and replies are plain
        values, and they are checked by the provider. *codec* writes the bodies [``generic_codec()``]; *stack* edits the
        filters as in ``refer``."""
        key = ServiceKey.parse(text("generic: service", service))
        for method in instance("generic: methods", methods, Sequence, "a sequence of MethodSpec"):
            instance("generic: methods", method, MethodSpec, "a sequence of MethodSpec")
            is_public = bool(method.name) and not method.name.startswith("_")
            checked("generic: methods", method.name, is_public, "names that do not start with an underscore")
        spec = ServiceSpec(
            name=key.interface,
            version=key.version,
            group=key.group,
            methods={method.name: method for method in methods},
        )
        codecs = {(spec.key, method.name): codec or generic_codec() for method in methods}
        failover = _failover(retries, hedging)
        law = _policy(policy, policy_settings)
        return self._refer(spec, codecs, where, law, timeout_s, failover, protection, stack)

    def _refer(
        self,
        spec: ServiceSpec,
        codecs: Codecs,
        expression: str | None,
        policy: Policy,
        timeout_s: float | None,
        failover: Failover,
        protection: ProtectionSettings | None,
        edit: Callable[[Stack], Stack] | None,
    ) -> Proxy:
        registry, channels = self._opened()
        expression = "" if expression is None else text("refer: where", expression)
        timeout_s = self._timeout_s if timeout_s is None else timeout("refer: timeout_s", timeout_s)
        if edit is not None:
            function("refer: stack", edit)

        bearer = None if self._bearer is None else self._bearer.opened()

        def build_stack(law: Protection | None, switches: Switches) -> Stack:
            own = default_stack(spec, codecs, self._telemetry, law, switches, bearer=bearer)
            return edit(own) if edit is not None else own

        reference = Reference(
            spec,
            registry,
            channels,
            policy,
            build_stack=build_stack,
            failover=failover,
            protection=protection,
            predicate=where(expression) if expression else None,
            expression=expression,
            telemetry=self._telemetry,
            codecs=codecs if edit is None else None,
        )
        proxy = Proxy(reference, timeout_s, CallOptions())
        reference.start()
        self._references.append(reference)
        self._note_many(spec)
        return proxy

    def _note_many(self, spec: ServiceSpec) -> None:
        """A proxy for each call would be a leak that shows only as slowness."""
        count = sum(reference.spec.key == spec.key for reference in self._references)
        if count == MANY_REFERENCES:
            log.warning(
                "%s is referred to for the %dth time by this consumer: each has a directory and a policy of its own, "
                "and two tasks, until the consumer closes; refer to it once and keep the proxy (with_options changes "
                "what calls need)",
                spec.key,
                count,
            )

    async def ready(self, proxy: object, *, nodes: int = 1, wait_s: float | None = 10.0) -> None:
        """Waits until at least *nodes* nodes are known for *proxy*. Raises NoProvider after *wait_s* seconds."""
        reference = reference_of(proxy)
        whole_number("ready: nodes", nodes, 0, MOST_NODES)
        try:
            async with asyncio.timeout(None if wait_s is None else seconds("ready: wait_s", wait_s)):
                await reference.ready(nodes)
        except TimeoutError:
            raise reference.absent(nodes) from None

    def statistics(self, proxy: object) -> ReferenceStatistics:
        """What the consumer knows of the nodes behind *proxy*, and why it treats them as it does."""
        return reference_of(proxy).statistics()

    def switch(
        self, proxy: object, mode: Mode | str | None, method: str | None = None, *, answer: Any = OWN_FALLBACK
    ) -> None:
        """An operator's word on a service (*method* None) or one method, at once and until taken back (*mode* None).

        ``force``: never call, the fallback answers. ``fail``: call, the fallback answers after a failure (what a method
        with a fallback does anyway). ``off``: call, and neither fallback nor protection steps in. *answer* takes the
        place of the contract's fallback: a value, or a function of the call's arguments. Raises ConfigError.
        """
        reference = reference_of(proxy)
        reference.switches.set(mode, method, answer=answer)
        log.warning("%s.%s: switched to %s", reference.spec.key, method or "*", mode or "what the contract says")

    async def close(self) -> None:
        """Ends the references and their connections, and the registry if this consumer opened it. Calls under way fail
        with Unavailable.

        Closing happens once, and everybody who asks for it waits for it; cancelling one who waits does not stop it."""
        if self._closing is None or self._closing.done():
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="closing a consumer")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        references, self._references = self._references, []
        channels, self._channels = self._channels, None
        registry, self._registry = self._registry, None
        async with AsyncExitStack() as last:  # from the bottom up, each step whatever became of the one before
            last.push_async_callback(self._telemetry.aclose)
            if registry is not None and registry is not self._registry_at:
                last.push_async_callback(registry.close)
            if channels is not None:
                last.push_async_callback(channels.close)
            for reference in references:
                last.push_async_callback(reference.close)

    def _opened(self) -> tuple[Registry, ChannelPool]:
        if self._registry is None or self._channels is None:
            raise ConfigError("the consumer is not open: use `async with Consumer(...) as consumer:` or `await open()`")
        return self._registry, self._channels

    def __enter__(self) -> NoReturn:
        raise TypeError(
            "a Consumer works on an event loop: write `async with Consumer(...)`, or `with BlockingConsumer(...)`"
        )

    def __exit__(self, *_: object) -> None: ...

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _checked_bearer(bearer: Bearer | None, credentials: Credentials | None) -> Bearer | None:
    """A token that may be read on its way is anybody's. Raises ConfigError."""
    found = Bearer.from_environment() if bearer is None else instance("bearer", bearer, Bearer, "a Bearer, or None")
    if found is not None and not found.allow_plaintext and (credentials is None or credentials.allow_plaintext):
        raise ConfigError(
            "bearer: without TLS whoever listens could call with this token; give credentials=Credentials(ca=...) "
            "(without allow_plaintext), or say Bearer(..., allow_plaintext=True)"
        )
    return found


def _policy(name: str, settings: Mapping[str, Any] | None) -> Policy:
    """A new one for each reference: a policy learns from its own calls."""
    given = instance("refer: policy_settings", {} if settings is None else settings, Mapping, "a mapping, or None")
    for key in given:
        text("refer: policy_settings", key)
    if name == "zone_aware":
        given = {"zone": detect_zone(), **given}
    return make_policy(text("refer: policy", name), **given)


def _failover(retries: int, hedging: bool) -> Failover:
    whole_number("refer: retries", retries, 0, 16)
    return Failover(retries=retries) if hedging else Failover(retries=retries, hedge_after=0)


def _with_key(spec: ServiceSpec, version: str | None, group: str | None) -> ServiceSpec:
    if version is None and group is None:
        return spec
    return ServiceSpec(
        name=spec.name,
        version=spec.version if version is None else text("refer: version", version),
        group=spec.group if group is None else text("refer: group", group),
        methods=spec.methods,
        contract=spec.contract,
    )
