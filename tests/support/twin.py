"""One trace twice: through the simulator, and through a real cluster on loopback sockets.

``simulated`` runs the trace in virtual time and writes down everything that the policy heard and chose. ``replayed``
does it again with everything real but time: registry feed, directory, connections, wire, load reports, failover and
accounts are the product's own, the nodes are listeners that hold each call until its moment has come in the script.
What that policy hears and chooses must then be the same, to the last bit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from support.wires import until

from steelyard.balance import Candidate, Dice, Policy
from steelyard.cluster import ChannelPool, ClusterInvoker, Directory, Failover
from steelyard.errors import RemoteError
from steelyard.guard import RetryBudget
from steelyard.model import Invocation, LoadReport, MethodSpec, Outcome, Reply
from steelyard.sim import Arrivals, Scenario, World, stream
from steelyard.wire import Channel, Listener
from steelyard_registry import Feed, Node, Registry, ServiceKey

KEY = ServiceKey(interface="sim.Service")
STEP = MethodSpec(name="step", is_idempotent=True)


@dataclass(frozen=True, slots=True)
class Heard:
    """One thing that a policy was told or asked, and what it answered."""

    kind: str
    at_s: float
    what: tuple[Any, ...] = ()


class Watched:
    """A policy that writes down what it hears."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.log: list[Heard] = []

    def set_nodes(self, nodes: Sequence[Node], now_s: float) -> None:
        self.log.append(Heard("nodes", now_s, tuple(nodes)))
        self._policy.set_nodes(nodes, now_s)

    def pick(
        self, now_s: float, dice: Dice, key: int | None = None, excluded: Collection[str] = ()
    ) -> Candidate | None:
        picked = self._policy.pick(now_s, dice, key, excluded)
        what = (key, tuple(sorted(excluded)), None if picked is None else picked.identity)
        self.log.append(Heard("pick", now_s, what))
        return picked

    def started(self, candidate: Candidate, now_s: float) -> None:
        self._policy.started(candidate, now_s)

    def ended(self, candidate: Candidate, outcome: Outcome, now_s: float, **facts: Any) -> None:
        what = (candidate.identity, outcome, facts["latency_s"], facts.get("in_flight"))
        self.log.append(Heard("end", now_s, what))
        self._policy.ended(candidate, outcome, now_s, **facts)

    def report(self, address: str, report: LoadReport, now_s: float) -> None:
        self.log.append(Heard("report", now_s, (address, report)))
        self._policy.report(address, report, now_s)

    def tick(self, now_s: float) -> None:
        self.log.append(Heard("tick", now_s))
        self._policy.tick(now_s)

    def statistics(self, now_s: float) -> Any:
        return self._policy.statistics(now_s)


def simulated(scenario: Scenario, arrivals: Arrivals, make: Callable[[], Policy], seed: int) -> list[Heard]:
    """What the policy of the simulator's only consumer hears."""
    assert scenario.consumers.count == 1
    assert all(group.discipline == "fifo" and group.cores == 1 for group in scenario.nodes), "calls end in their order"
    watched = Watched(make())
    World(scenario, arrivals, lambda: watched, seed).run()
    return watched.log


def dice_of(seed: int) -> Dice:
    """The simulator's dice of its first consumer, of which one number goes into its distance."""
    dice = stream(seed, "client", 0).random
    dice()
    return dice


async def replayed(script: Sequence[Heard], make: Callable[[], Policy], dice: Dice) -> list[Heard]:
    """What the policy hears in the real cluster; ends early where that is no longer what the script says."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(_Cluster(script, Watched(make()), dice))
        await cluster.play()
        return list(cluster.policy.log)  # and not what closing adds


class _Held:
    """A real node that answers when it is told to, and the oldest call first."""

    def __init__(self) -> None:
        self.listener = Listener(self)
        self.calls: deque[asyncio.Future[Outcome]] = deque()
        self.arrived = 0

    async def __call__(self, invocation: Invocation) -> Reply:
        self.arrived += 1
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.calls.append(answer)
        if await answer is not Outcome.OK:
            raise RemoteError("sick", may_have_run=True)
        return Reply(body=b"")


class Told(Registry):
    """A registry that says what the script says."""

    def __init__(self) -> None:
        self.feed = Feed(KEY)

    @property
    def url(self) -> str:
        return "told://"

    async def open(self, wait_s: float | None = 10.0, *, from_cache: bool = False) -> None: ...
    async def register(self, node: Node) -> None:  # type: ignore[override]
        raise NotImplementedError

    async def subscribe(self, service: ServiceKey) -> Feed:
        return self.feed

    async def services(self) -> tuple[str, ...]:
        return ()

    async def close(self) -> None: ...


class _Exchange(ChannelPool):
    """Connections to the real ports under the names of the simulated nodes."""

    def __init__(self, real: dict[str, str], on_load: Callable[[str, LoadReport], None]) -> None:
        super().__init__()
        self._real = real
        self._on_load = on_load
        self.made: dict[str, Channel] = {}

    def acquire(self, address: str, *_: Any, **__: Any) -> Channel:
        channel = self.made.get(address)
        if channel is None:
            channel = self.made[address] = Channel(
                self._real[address], on_load=lambda report: self._on_load(address, report)
            )
        return channel

    def release(self, address: str, *_: Any) -> None:
        """Kept until the end: a node may come back, and calls to it may still be under way."""

    def advise(self, address: str, *_: Any) -> None: ...
    def hurry(self, address: str) -> None: ...

    async def close(self) -> None:
        for channel in self.made.values():
            await channel.close()


class _Cluster:
    def __init__(self, script: Sequence[Heard], policy: Watched, dice: Dice) -> None:
        self.policy = policy
        self._script = script
        self._now_s = 0.0
        first = next(heard for heard in script if heard.kind == "nodes")
        self._nodes = {node.identity: _Held() for node in first.what}
        self._addresses = {node.address: node.identity for node in first.what}
        self._dice = dice
        self._calls: list[asyncio.Task[Reply]] = []

    async def __aenter__(self) -> _Cluster:
        for node in self._nodes.values():
            await node.listener.start()
        real = {address: self._nodes[identity].listener.address for address, identity in self._addresses.items()}
        self._exchange = _Exchange(real, self._loaded)
        for address in real:
            await self._exchange.acquire(address).connect()
        self._registry = Told()
        self._directory = Directory(self._registry, KEY, self._exchange, self._listed)
        self._following = asyncio.ensure_future(self._directory.run())
        self._invoker = ClusterInvoker(
            self._directory,
            self.policy,
            clock=lambda: self._now_s,
            dice=self._dice,
            failover=Failover(retries=1, hedge_after=0),
            budget=RetryBudget(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        self._following.cancel()
        await asyncio.gather(self._following, return_exceptions=True)
        await self._invoker.close()
        await self._exchange.close()
        for node in self._nodes.values():
            await node.listener.close()

    async def play(self) -> None:
        log = self.policy.log
        for place, heard in enumerate(self._script):
            self._now_s = heard.at_s
            if len(log) <= place:
                self._act(heard)
                await until(lambda place=place: len(log) > place)
            if log[place] != heard:
                return
            if heard.kind == "pick":
                await until(lambda: sum(node.arrived for node in self._nodes.values()) == self._picked())

    def _picked(self) -> int:
        return sum(heard.kind == "pick" for heard in self.policy.log)

    def _act(self, heard: Heard) -> None:
        if heard.kind == "nodes":
            self._registry.feed.publish(heard.what)
        elif heard.kind == "tick":
            self.policy.tick(self._now_s)
        elif heard.kind == "report":
            address, report = heard.what
            self._nodes[self._addresses[address]].listener.publish_load(report)
        elif heard.kind == "end":
            self._nodes[heard.what[0]].calls.popleft().set_result(heard.what[1])
        else:
            call = self._invoker(Invocation(str(KEY), "step", body=b"", key=heard.what[0], spec=STEP))
            self._calls.append(asyncio.ensure_future(call))

    def _listed(self, nodes: Sequence[Node]) -> None:
        self.policy.set_nodes(nodes, self._now_s)

    def _loaded(self, address: str, report: LoadReport) -> None:
        self.policy.report(address, report, self._now_s)
