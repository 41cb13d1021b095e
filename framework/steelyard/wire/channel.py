"""Channel: an Invoker over the one connection to an address.

It connects when first called, and by itself again after a loss. While it is unreachable it fails calls at once instead
of making them wait: the caller has other nodes, and a call that waits for a dead one is the slowest way to learn that.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from enum import Enum
from typing import Any

from steelyard.errors import DeadlineExceeded, Unavailable
from steelyard.model import Invocation, LoadReport, Reply

from .attempts import attempts_of_this_loop
from .carrier import CarrierLost, Connector
from .consuming import ConsumerConnection, OnProbed
from .grpc_carrier import connect as connect_grpc
from .limits import WireLimits
from .plain import PlainConnection, PlainPeer

log = logging.getLogger(__name__)

_GROWTH = 1.6
_JITTER = 0.2


class ChannelState(Enum):
    """IDLE: no connection, the next call makes one. CONNECTING: calls wait for the first attempt. READY.
    DRAINING: the provider takes no new calls; what is under way is finished. UNREACHABLE: calls fail at once,
    attempts go on behind them. CLOSED: for good."""

    IDLE = "idle"
    CONNECTING = "connecting"
    READY = "ready"
    DRAINING = "draining"
    UNREACHABLE = "unreachable"
    CLOSED = "closed"


class Channel:
    """``await channel(invocation) -> Reply`` over a connection shared by all services of *address* (``host:port``).

    Where the server there does not speak our wire, the connector gives a PlainPeer, and calls are plain gRPC calls.

    Raises DeadlineExceeded, Overloaded (a bound of *limits*; nothing was sent), Unavailable (``may_have_run`` is False
    when the call certainly did not leave), and whatever the provider answered (``is_remote``). *on_load* gets every
    load report of the provider, *on_state* every change of state; both run on the loop and must not block.
    Belongs to the event loop that uses it first.
    """

    def __init__(
        self,
        address: str,
        *,
        limits: WireLimits | None = None,
        identity: str = "",
        on_load: Callable[[LoadReport], None] | None = None,
        on_state: Callable[[ChannelState], None] | None = None,
        connector: Connector = connect_grpc,
    ) -> None:
        self.address = address
        self.limits = limits or WireLimits()
        self._identity = identity
        self._on_load = on_load
        self._on_state = on_state
        self._connector = connector
        self._state = ChannelState.IDLE
        self._reason = "not connected yet"
        self._connection: ConsumerConnection | PlainConnection | None = None
        self.ready: ConsumerConnection | None = None
        """Our own wire's connection, where a call can go out on it at once, unless it ``has_ended`` just now; None:
        await the channel itself, which connects or says why it cannot. For whoever sends many calls and needs no
        coroutine around each."""
        self._keeper: asyncio.Task[None] | None = None
        self._waiters: dict[asyncio.Future[None], None] = {}  # in the order in which they came
        self._hurry: asyncio.Event | None = None
        self._is_again = False  # what the keeper attempts is not the first connection

    @property
    def state(self) -> ChannelState:
        return self._state

    @property
    def reason(self) -> str:
        """Why the channel is not ready, in words."""
        return self._reason

    @property
    def open_calls(self) -> int:
        return self._connection.open_calls if self._connection is not None else 0

    async def __call__(self, invocation: Invocation) -> Reply:
        connection = self._connection
        if connection is None or connection.has_ended:
            connection = await self._connected(invocation.deadline_at)
        spec = invocation.spec
        if spec is not None and spec.compress and isinstance(connection, ConsumerConnection):
            invocation = await connection.packed(invocation, spec.compress)
            if connection.has_ended:
                raise Unavailable(f"unreachable: {self._reason}", node=self.address)
        call: Any = connection.submit(invocation, time.monotonic())
        try:
            return await call.token  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            connection.abandon(call)
            raise

    def probe(self, asker: object, on_probed: OnProbed) -> bool:
        """Asks the provider for its calls in flight and for the seconds that one takes, without waiting: *on_probed* is
        called with the answer, on the loop, and never when there is none. False: nothing was sent, because there is no
        connection, or the provider drains, or *asker*'s last probe here is still unanswered."""
        connection = self._connection
        if self._state is not ChannelState.READY or not isinstance(connection, ConsumerConnection):
            return False
        return not connection.has_ended and connection.probe(asker, on_probed)

    def is_probed(self, asker: object) -> bool:
        """Whether *asker* waits for the answer to a probe."""
        connection = self._connection
        return isinstance(connection, ConsumerConnection) and connection.is_probed(asker)

    async def connect(self) -> None:
        """Returns when the channel is ready; raises Unavailable when the attempt under way (or the one that this
        starts) fails. Attempts go on behind that."""
        if self._state in (ChannelState.READY, ChannelState.DRAINING):
            return
        self._refuse_if_closed()
        if self._hurry is not None:
            self._hurry.set()
        await self._attempt()

    async def close(self) -> None:
        """Closes the connection; calls under way fail with Unavailable."""
        self._change(ChannelState.CLOSED, "the channel was closed")
        keeper, self._keeper = self._keeper, None
        if self._connection is not None:
            self._connection.stop("the channel was closed")
        elif keeper is not None:
            keeper.cancel()
        if keeper is not None:
            await asyncio.wait((keeper,))
        self._release(Unavailable("the channel was closed", node=self.address))

    async def __aenter__(self) -> Channel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address} {self._state.value}, {self.open_calls} open calls>"

    async def _connected(self, deadline_at: float) -> ConsumerConnection | PlainConnection:
        self._refuse_if_closed()
        if self._state is ChannelState.UNREACHABLE:
            raise Unavailable(f"unreachable: {self._reason}", node=self.address)
        remaining_s = deadline_at - time.monotonic()
        try:
            async with asyncio.timeout(min(remaining_s, 1e9)):
                await self._attempt()
        except TimeoutError as error:
            if isinstance(error, DeadlineExceeded):
                raise
            raise DeadlineExceeded("the deadline passed before there was a connection", node=self.address) from None
        connection = self._connection
        if connection is None or connection.has_ended:
            raise Unavailable(f"unreachable: {self._reason}", node=self.address)
        return connection

    async def _attempt(self) -> None:
        """Waits for the outcome of an attempt; starts the keeper where there is none."""
        loop = asyncio.get_running_loop()
        if self._keeper is None or self._keeper.done():
            self._change(ChannelState.CONNECTING, "connecting")
            self._keeper = loop.create_task(self._keep(), name=f"channel {self.address}")
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)

    async def _keep(self) -> None:
        """Connects, serves and connects again, until the channel is closed or the provider has drained."""
        failures = 0
        self._hurry = asyncio.Event()
        self._is_again = False
        while not self._is_closed():
            started_at = time.monotonic()
            was_draining = await self._once()
            if self._is_closed():
                return
            if was_draining:
                self._change(ChannelState.IDLE, "the provider has drained")
                return
            # A provider that accepts and then drops the connection is as good as one that refuses it.
            lasted_s = time.monotonic() - started_at
            failures = 0 if lasted_s > self.limits.backoff_max_s + self.limits.connect_timeout_s else failures + 1
            await self._pause(failures)
            self._is_again = True

    async def _pause(self, failures: int) -> None:
        assert self._hurry is not None
        limits = self.limits
        wait_s = min(limits.backoff_base_s * _GROWTH ** min(failures - 1, 60), limits.backoff_max_s)
        wait_s *= 1 + random.uniform(-_JITTER, _JITTER)
        try:
            async with asyncio.timeout(wait_s):
                await self._hurry.wait()
        except TimeoutError:
            pass

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Attempts to connect again stand in one line with those of all other channels; see ``attempts``."""
        assert self._hurry is not None
        turn = attempts_of_this_loop().turn(self._hurry) if self._is_again else nullcontext()
        async with turn:
            self._hurry.clear()
            yield

    async def _once(self) -> bool:
        """One connection from beginning to end. True: it ended because the provider drained."""
        try:
            async with self._turn(), asyncio.timeout(self.limits.connect_timeout_s):
                carrier = await self._connector(self.address, self.limits)
        except CarrierLost as error:
            self._fail(str(error))
            return False
        except TimeoutError:
            self._fail(f"no connection within {self.limits.connect_timeout_s:g} s")
            return False
        except Exception as error:
            log.exception("%s: the connector failed", self.address)
            self._fail(f"{type(error).__name__}: {error}")
            return False
        kind: Any = PlainConnection if isinstance(carrier, PlainPeer) else ConsumerConnection
        connection: ConsumerConnection | PlainConnection = kind(
            carrier,
            self.limits,
            node=self.address,
            identity=self._identity,
            on_load=self._loaded,
            on_draining=lambda: self._change(ChannelState.DRAINING, "the provider is draining"),
            on_ended=lambda reason: self._ended(connection, reason),
        )
        running = asyncio.ensure_future(connection.run())
        try:
            await self._welcome(connection)
            await running
        finally:
            connection.stop("the channel was closed")
            await asyncio.wait((running,))
        return connection.is_draining

    async def _welcome(self, connection: ConsumerConnection | PlainConnection) -> None:
        try:
            async with asyncio.timeout(self.limits.connect_timeout_s):
                await connection.welcomed()
        except TimeoutError:
            connection.stop(f"the provider said nothing within {self.limits.connect_timeout_s:g} s")
            return
        if connection.has_ended or self._state is ChannelState.CLOSED:
            return
        self._connection = connection
        if not connection.is_draining:
            self._change(ChannelState.READY, "ready")
        self._release(None)

    def _ended(self, connection: ConsumerConnection | PlainConnection, reason: str) -> None:
        """The connection's last act, before its clean-up: from here on calls fail at once."""
        self._connection = None
        if not connection.is_draining:
            self._fail(reason)

    def _fail(self, reason: str) -> None:
        log.info("%s: %s", self.address, reason)
        self._change(ChannelState.UNREACHABLE, reason)
        self._release(Unavailable(f"unreachable: {reason}", node=self.address))

    def _release(self, error: Unavailable | None) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(Unavailable(error.message, node=error.node))

    def _loaded(self, report: LoadReport) -> None:
        if self._on_load is not None:
            try:
                self._on_load(report)
            except Exception:
                log.exception("%s: on_load raised", self.address)

    def _is_closed(self) -> bool:
        return self._state is ChannelState.CLOSED

    def _refuse_if_closed(self) -> None:
        if self._state is ChannelState.CLOSED:
            raise Unavailable("the channel was closed", node=self.address)

    def _change(self, state: ChannelState, reason: str) -> None:
        self._reason = reason
        if state is self._state or self._state is ChannelState.CLOSED:
            return
        self._state = state
        connection = self._connection if state is ChannelState.READY else None
        self.ready = connection if isinstance(connection, ConsumerConnection) else None
        if self._on_state is not None:
            try:
                self._on_state(state)
            except Exception:
                log.exception("%s: on_state raised", self.address)
