"""Directory: from registry events to the nodes that a reference may call.

It follows one subscription, keeps what passes the reference's ``where``, holds a channel for each address, and
hands the node set to the balancing policy in one call. It never stops on an error: a directory that dies silently
leaves a consumer with yesterday's cluster.

The registry and the connections are two witnesses, and neither is believed alone. A node whose connection is down is
out of picks at once, though the registry still lists it (``reach``). A node that the registry has lost without a
goodbye (``Snapshot.lost``: its session ended) is kept while its connection stands, because being cut off from the
registry is not being dead; the moment the connection goes too, it is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from steelyard.errors import NoProvider
from steelyard.model import Invocation
from steelyard.security import TOKEN_TAG
from steelyard.wire import Channel, ChannelState
from steelyard_registry import Node, Registry, RegistryClosed, RegistryError, ServiceKey, Snapshot, Subscription

from .channels import ChannelPool, OnLoad
from .foreign import is_foreign
from .reach import Reach
from .where import Predicate

log = logging.getLogger(__name__)

# After an unexpected error: long enough not to spin, short enough that nobody waits for it.
RETRY_AFTER_S = 1.0
# A connection that ends is out of picks at once; forgetting its node may wait for others that end in the same moment.
FORGET_AFTER_S = 0.1


class Directory:
    """The live node set of one reference. ``run`` is the loop; whoever starts it awaits it."""

    def __init__(
        self,
        registry: Registry,
        key: ServiceKey,
        channels: ChannelPool,
        on_nodes: Callable[[Sequence[Node]], None],
        predicate: Predicate | None = None,
        expression: str = "",
        on_load: OnLoad | None = None,
    ) -> None:
        """*on_nodes* gets the node set whenever it may have changed, *on_load* the load reports of these nodes."""
        self._registry = registry
        self._key = key
        self._pool = channels
        self._on_nodes = on_nodes
        self._on_load = on_load
        self._predicate = predicate
        self._expression = expression
        self._channels: dict[str, Channel] = {}
        self._nodes: tuple[Node, ...] = ()
        self._known = 0
        self._reach = Reach()
        self._seen: dict[str, Node] = {}  # by identity, what the registry lists or has lost and we keep
        self._refused: set[str] = set()  # those of them that are not within ``where``
        self._lost: set[str] = set()
        self._forgetting: asyncio.TimerHandle | None = None
        self._struck: set[str] = set()  # lost by the registry, and their connections have ended too
        self._first = asyncio.Event()
        self._is_closed = False
        self.snapshot = Snapshot()
        self.tokens: dict[str, str] = {}  # by identity, of nodes that ask for one

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What may be called now: registered, of this key, and within ``where``."""
        return self._nodes

    def channel(self, address: str) -> Channel | None:
        """The channel to a node's address; None when the node has gone in the meantime."""
        return self._channels.get(address)

    def with_token(self, node: Node, invocation: Invocation) -> Invocation:
        """*invocation* as *node* wants it: with the token that it wrote into the registry."""
        token = self.tokens.get(node.identity)
        if token is None:
            return invocation
        return msgspec.structs.replace(invocation, attachments={**invocation.attachments, TOKEN_TAG: token})

    def takes_calls(self, address: str) -> bool:
        """Whether a call may be sent to *address* now: see ``reach``."""
        return self._reach.takes_calls(address)

    @property
    def out(self) -> Collection[str]:
        """Identities that must not be picked now. For use at once, not to keep."""
        return self._reach.out

    @property
    def is_ready(self) -> bool:
        """Whether the registry has answered at least once."""
        return self._first.is_set()

    async def first(self) -> None:
        """Waits for the registry's first answer."""
        await self._first.wait()

    async def run(self) -> None:
        """Follows the registry until cancelled or until the registry is closed."""
        while True:
            try:
                subscription = await self._registry.subscribe(self._key)
                await self._follow(subscription)
            except RegistryClosed:
                return
            except (RegistryError, OSError) as error:
                log.warning("%s: cannot follow %s: %s; trying again", self._key, self._registry.url, error)
            except Exception:
                log.exception("%s: error while following %s; trying again", self._key, self._registry.url)
            await asyncio.sleep(RETRY_AFTER_S)

    def close(self) -> None:
        """Gives all channels back. Call it when ``run`` has ended. Who still waits for a first answer waits no longer,
        and is told why by ``absent``."""
        self._is_closed = True
        self._first.set()
        self._take(Snapshot(version=self.snapshot.version))

    def absent(self) -> NoProvider:
        """Why there is nothing to call, in words that say what to do."""
        at = self._registry.url
        if self._is_closed:
            return NoProvider(f"{self._key}: the consumer is closed; what it referred to calls nobody any more")
        if not self.is_ready:
            return NoProvider(f"{self._key}: the registry {at} has not answered yet")
        if self._known == 0:
            return NoProvider(
                f"no provider of {self._key} is registered at {at}; start one with `steelyard serve`, "
                "or check the service name, version and group"
            )
        if not self._nodes:
            some = "1 node provides" if self._known == 1 else f"{self._known} nodes provide"
            return NoProvider(f"{some} {self._key} at {at}, but none fits where={self._expression!r}")
        states = sorted(f"{node.address} is {node.state.value}, weight {node.weight}" for node in self._nodes)
        return NoProvider(f"no node of {self._key} takes calls now: {'; '.join(states[:8])}")

    async def _follow(self, subscription: Subscription) -> None:
        try:
            snapshot = subscription.snapshot
            while True:
                self._take(snapshot)
                self._first.set()
                snapshot = await subscription.changed(snapshot.version)
        finally:
            await asyncio.shield(subscription.close())

    def _take(self, snapshot: Snapshot) -> None:
        """Follows *snapshot*. A list of ten thousand in which one node changed costs little more than one look at each:
        what is asked of a node is asked of those that are new or other than before."""
        if self._forgetting is not None:
            self._forgetting.cancel()
            self._forgetting = None
        nodes = (*snapshot.nodes, *self._kept(snapshot))
        before, self._seen = self._seen, {node.identity: node for node in nodes}
        changed = [node for identity, node in self._seen.items() if before.get(identity) is not node]
        gone = [node for identity, node in before.items() if identity not in self._seen] if before else []
        come, gone = self._judge(changed, gone, before)
        for node in changed:
            self._pool.advise(node.address, node.tags, is_foreign(node))
        self._hurry(changed, before)
        for node in come:
            if node.address not in self._channels:
                self._channels[node.address] = self._pool.acquire(
                    node.address, self._state, node.tags, is_foreign(node), self._on_load
                )
        left = self._reach.change(come, gone, {node.address: self._channels[node.address].state for node in come})
        self._keep_tokens(changed, gone)
        self.snapshot = snapshot
        self._known = len(snapshot.nodes)
        self._nodes = tuple(node for node in nodes if node.identity not in self._refused) if self._refused else nodes
        self._on_nodes(self._nodes)
        for address in left:
            del self._channels[address]
            self._pool.release(address, self._state, self._on_load)

    def _judge(
        self, changed: Sequence[Node], gone: Sequence[Node], before: Mapping[str, Node]
    ) -> tuple[list[Node], list[Node]]:
        """Which nodes are within ``where`` now and were not before, and the reverse."""
        refused, self._refused = self._refused, self._refused.copy() if self._refused else set()
        come, left = [], [node for node in gone if node.identity not in refused]
        self._refused.difference_update(node.identity for node in gone)
        for node in changed:
            identity = node.identity
            was_in = identity in before and identity not in refused
            is_in = self._predicate is None or self._predicate(node)
            if is_in:
                self._refused.discard(identity)
                if not was_in:
                    come.append(node)
            else:
                self._refused.add(identity)
                if was_in:
                    left.append(node)
        return come, left

    def _keep_tokens(self, changed: Sequence[Node], gone: Sequence[Node]) -> None:
        for node in (*gone, *changed):
            self.tokens.pop(node.identity, None)
        self.tokens.update((node.identity, node.tags[TOKEN_TAG]) for node in changed if TOKEN_TAG in node.tags)

    def _kept(self, snapshot: Snapshot) -> list[Node]:
        """The nodes that the registry has lost, and whose connections stand."""
        if not snapshot.lost:
            self._lost, self._struck = set(), set()
            return []
        listed = {node.address for node in snapshot.nodes}
        self._lost = {node.address for node in snapshot.lost} - listed
        self._struck &= self._lost
        return [node for node in snapshot.lost if self._is_kept(node.address, listed)]

    def _is_kept(self, address: str, listed: Collection[str]) -> bool:
        """Whether a node that the registry has lost is still believed to be there."""
        channel = self._channels.get(address)
        if address in listed or address in self._struck or channel is None:
            return False
        if channel.state is not ChannelState.READY:
            self._struck.add(address)
            return False
        return True

    def _hurry(self, changed: Sequence[Node], was: Mapping[str, Node]) -> None:
        """A node that started anew is worth a try now, however often its address has refused."""
        for node in changed:
            before = was.get(node.identity)
            is_restarted = before is not None and before.started_at_ms != node.started_at_ms
            if is_restarted and not self._reach.takes_calls(node.address):
                self._pool.hurry(node.address)

    def _state(self, address: str, state: ChannelState) -> None:
        self._reach.set_state(address, state)
        if state is not ChannelState.READY and address in self._lost and self._forgetting is None:
            loop = asyncio.get_running_loop()
            self._forgetting = loop.call_later(FORGET_AFTER_S, lambda: self._take(self.snapshot))
