"""Reference: everything that stands behind one ``refer()``: directory, policy, filters and the two loops."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from steelyard.balance import Policy, PolicyStatistics
from steelyard.cluster import (
    ChannelPool,
    ClusterInvoker,
    Directory,
    Failover,
    FailoverStatistics,
    Predicate,
    ProbeStatistics,
    control_loop,
)
from steelyard.errors import NoProvider
from steelyard.filter import (
    Codecs,
    Switches,
    client_bearer,
    client_codec,
    client_metrics,
    client_tracing,
    degrade,
    recover,
)
from steelyard.guard import Protection, ProtectionEvent, ProtectionSettings, ProtectionStatistics
from steelyard.invoke import Invoker, Position, Stack
from steelyard.model import LoadReport, ServiceSpec
from steelyard.telemetry import NodeReading, Telemetry
from steelyard_registry import Node, Registry, ServiceKey, Snapshot

from .short import COVERED, ShortWay
from .shown import shown

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceStatistics:
    """What a reference sees now: the registry's snapshot, the policy's numbers for every node, how many attempts the
    calls took, the probes of a policy that sends any (None: it does not), protection's level and why (None: switched
    off), and the manual switches by method. As text (``print``) it is a table, one line a node; its fields hold
    everything that stands behind that."""

    service: str
    snapshot: Snapshot
    balance: PolicyStatistics
    failover: FailoverStatistics | None = None
    probes: ProbeStatistics | None = None
    protection: ProtectionStatistics | None = None
    switches: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return shown(self)


def default_stack(
    spec: ServiceSpec,
    codecs: Codecs,
    telemetry: Telemetry,
    protection: Protection | None = None,
    switches: Switches | None = None,
    clock: Callable[[], float] = time.monotonic,
    bearer: Callable[[], str | Awaitable[str]] | None = None,
) -> Stack:
    """The filters of a reference, outermost first. Without *protection* there is no ``recover``: it has nothing to
    end."""
    stack = Stack(
        Position("tracing", client_tracing(telemetry), "a span covers all that follows, retries and fallbacks too"),
        Position("metrics", client_metrics(telemetry), "measures what the caller sees"),
        Position("codec", client_codec(codecs), "values outside, bytes inside; a retry never encodes twice"),
        Position(
            "degrade",
            degrade(spec, protection=protection, switches=switches, clock=clock),
            "answers for the whole cluster: before a call is sent, and after failover has given up",
        ),
    )
    if bearer is not None:
        position = Position(
            "bearer", client_bearer(bearer), "only what is sent needs a proof; it is no part of the question"
        )
        stack = stack.insert_after("degrade", position)
    if protection is None:
        return stack
    return stack.insert_after(
        "degrade",
        Position("recover", recover(protection, clock), "judges by what is sent, once a call: so around failover"),
    )


class Reference:
    """Lives as long as its consumer. ``start`` begins the loops; ``close`` ends and awaits them."""

    def __init__(
        self,
        spec: ServiceSpec,
        registry: Registry,
        channels: ChannelPool,
        policy: Policy,
        *,
        build_stack: Callable[[Protection | None, Switches], Stack],
        failover: Failover,
        protection: ProtectionSettings | None,
        predicate: Predicate | None,
        expression: str,
        telemetry: Telemetry,
        codecs: Codecs | None = None,
    ) -> None:
        """*codecs*: given where the stack is the default one, which has a short way."""
        self.spec = spec
        self._policy = policy
        self._nodes_changed = asyncio.Event()
        self._channels = channels
        self._clock = time.monotonic
        self._dice = random.random
        key = ServiceKey(interface=spec.name, version=spec.version, group=spec.group)
        self._directory = Directory(
            registry, key, channels, self._take_nodes, predicate, expression, on_load=self._take_load
        )
        self.switches = Switches(spec)
        self._protection = None if protection is None else Protection(protection, self._tell)
        self._cluster = ClusterInvoker(
            self._directory,
            policy,
            clock=self._clock,
            dice=self._dice,
            failover=failover,
            protection=self._protection,
        )
        self.stack = build_stack(self._protection, self.switches)
        # None: the stack was edited, or somebody gave another one.
        self.short_way: ShortWay | None = None
        if codecs is not None and set(self.stack.names) <= set(COVERED):
            self.short_way = ShortWay(
                cluster=self._cluster,
                codecs=codecs,
                telemetry=telemetry,
                protection=self._protection,
                switches=self.switches,
                dice=self._dice,
            )
        self.invoker: Invoker = self.stack.build(self._cluster)
        self._tasks: list[asyncio.Task[None]] = []
        self._stop_observing = [telemetry.observe(spec.key, self._readings)]
        if self._protection is not None:
            self._stop_observing.append(telemetry.observe_protection(spec.key, self._protection.reading))

    @property
    def directory(self) -> Directory:
        """The nodes it follows, and what is known of their connections."""
        return self._directory

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._directory.run(), name=f"directory {self.spec.key}"),
            loop.create_task(
                control_loop(
                    self._policy,
                    clock=self._clock,
                    dice=self._dice,
                    protection=self._protection,
                    prober=self._cluster.prober,
                ),
                name=f"control {self.spec.key}",
            ),
        ]

    async def ready(self, nodes: int = 1) -> None:
        """Waits until the registry has told of at least *nodes* nodes."""
        while len(self._directory.nodes) < nodes:
            await self._nodes_changed.wait()

    def absent(self, wanted: int = 1) -> NoProvider:
        """Why there are not *wanted* nodes to call."""
        found = len(self._directory.nodes)
        if 0 < found < wanted:
            return NoProvider(f"{found} of the {wanted} wanted nodes of {self.spec.key} are known")
        return self._directory.absent()

    def statistics(self) -> ReferenceStatistics:
        return ReferenceStatistics(
            service=self.spec.key,
            snapshot=self._directory.snapshot,
            balance=self._policy.statistics(self._clock()),
            failover=self._cluster.statistics(),
            probes=self._cluster.probe_statistics(),
            protection=None if self._protection is None else self._protection.statistics(self._clock()),
            switches=self.switches.shown(),
        )

    def _readings(self) -> Iterable[NodeReading]:
        for node in self._policy.statistics(self._clock()).nodes:
            yield NodeReading(
                node=node.identity,
                share=node.share,
                refuse_ratio=node.refuse_ratio,
                availability=node.availability,
                utilization=node.load,
            )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._cluster.close()
        for stop_observing in self._stop_observing:
            stop_observing()
        self._directory.close()

    def _tell(self, event: ProtectionEvent) -> None:
        log.log(
            logging.WARNING if event.level > event.before else logging.INFO,
            "%s: protection %s -> %s: %s",
            self.spec.key,
            event.before.name,
            event.level.name,
            event.reason,
        )

    def _take_nodes(self, nodes: Sequence[Node]) -> None:
        self._policy.set_nodes(nodes, self._clock())
        changed, self._nodes_changed = self._nodes_changed, asyncio.Event()
        changed.set()

    def _take_load(self, address: str, report: LoadReport) -> None:
        self._policy.report(address, report, self._clock())
