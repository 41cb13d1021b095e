"""ClusterInvoker: a whole cluster as one Invoker. Pick, send, account, and on failure another node (failover).

Failover is Dubbo's default strategy with three bounds that Dubbo lacks: only what certainly did not run or is declared
idempotent is repeated, a retry budget keeps retries to a fifth of the calls, and the deadline is the whole call's, not
each attempt's. Every started call is ended exactly once, whatever happens to it, so that in-flight counts return to
zero.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from steelyard.balance import Candidate, Policy
from steelyard.errors import ConfigError, DeadlineExceeded, RpcError
from steelyard.guard import RetryBudget, backoff_s
from steelyard.model import Invocation, Outcome, Reply
from steelyard.telemetry import note_attempt
from steelyard.wire import ChannelState

from .directory import Directory
from .stream import AccountedStream
from .verdict import is_transport, may_repeat, outcome_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failover:
    """``retries``: further attempts on other nodes [2, Dubbo's default; 0 means none]. The first retry goes out at
    once, since it goes elsewhere; later ones wait with full jitter, from ``base_backoff_s``."""

    retries: int = 2
    base_backoff_s: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.retries <= 16:
            raise ConfigError(f"Failover.retries: 0 to 16, not {self.retries!r}")
        if not 0 <= self.base_backoff_s <= 10:
            raise ConfigError(f"Failover.base_backoff_s: 0 to 10 seconds, not {self.base_backoff_s!r}")


class ClusterInvoker:
    """``await invoker(invocation)``. ``clock`` gives seconds (monotonic), ``dice`` numbers in [0, 1)."""

    def __init__(
        self,
        directory: Directory,
        policy: Policy,
        *,
        clock: Callable[[], float],
        dice: Callable[[], float],
        failover: Failover | None = None,
        budget: RetryBudget | None = None,
    ) -> None:
        self._directory = directory
        self._policy = policy
        self._clock = clock
        self._dice = dice
        self._failover = failover or Failover()
        self._budget = budget or RetryBudget()

    async def __call__(self, invocation: Invocation) -> Reply:
        tried: list[str] = []
        failure: RpcError | None = None
        self._budget.deposit(self._clock())
        while True:
            candidate = self._pick(invocation, tried)
            if candidate is None:
                if failure is not None:
                    raise failure
                candidate = await self._first_candidate(invocation)
            tried.append(candidate.node.identity)
            try:
                return await self._send(candidate, invocation)
            except RpcError as error:
                if not await self._goes_on(error, invocation, len(tried)):
                    raise
                failure = error

    def _pick(self, invocation: Invocation, tried: list[str]) -> Candidate | None:
        """A node that takes calls now. Those whose connection is down or draining are passed over without being blamed;
        the policy is asked without regard to them first, because exclusions cost it more than a second question."""
        now_s, pick, directory = self._clock(), self._policy.pick, self._directory
        candidate = pick(now_s, self._dice, invocation.key, tried)
        if candidate is None or directory.takes_calls(candidate.node.address):
            return candidate
        out = directory.out
        return pick(now_s, self._dice, invocation.key, {*tried, *out} if tried else out) or self._last_resort(
            candidate, tried
        )

    def _last_resort(self, candidate: Candidate, tried: list[str]) -> Candidate | None:
        """Nothing that takes calls is left. A retry ends here with its first failure; a first attempt goes to a node
        all the same, whose error says what is wrong, unless that one drains and has told so."""
        channel = self._directory.channel(candidate.node.address)
        if tried or channel is None or channel.state is ChannelState.DRAINING:
            return None
        return candidate

    async def _first_candidate(self, invocation: Invocation) -> Candidate:
        """Waits, within the deadline, for a registry that has not answered yet; an answered one is believed at once."""
        if not self._directory.is_ready:
            try:
                async with asyncio.timeout(_remaining(invocation, self._clock())):
                    await self._directory.first()
            except TimeoutError:
                raise self._directory.absent() from None
        candidate = self._pick(invocation, [])
        if candidate is None:
            raise self._directory.absent()
        return candidate

    async def _send(self, candidate: Candidate, invocation: Invocation) -> Reply:
        policy, node = self._policy, candidate.node
        channel = self._directory.channel(node.address)
        if channel is None:
            raise self._directory.absent()
        started_s = self._clock()
        policy.started(candidate, started_s)
        note_attempt(node)
        try:
            reply = await channel(invocation)
        except RpcError as error:
            now_s = self._clock()
            error.node = node.identity
            policy.ended(
                candidate,
                outcome_of(error),
                now_s,
                latency_s=now_s - started_s,
                is_transport=is_transport(error),
            )
            raise
        except BaseException:
            now_s = self._clock()
            policy.ended(candidate, Outcome.IGNORED, now_s, latency_s=now_s - started_s)
            raise
        if reply.stream is not None:
            return Reply(
                stream=AccountedStream(reply.stream, policy, candidate, self._clock, started_s),
                attachments=reply.attachments,
            )
        now_s = self._clock()
        policy.ended(candidate, Outcome.OK, now_s, latency_s=now_s - started_s, in_flight=reply.in_flight)
        return reply

    async def _goes_on(self, error: RpcError, invocation: Invocation, attempts: int) -> bool:
        """Whether to try another node after *error*; waits the back-off when so."""
        is_idempotent = invocation.spec is not None and invocation.spec.is_idempotent
        if attempts > self._failover.retries or not may_repeat(error, is_idempotent):
            return False
        now_s = self._clock()
        wait_s = 0.0
        if attempts > 1:
            wait_s = backoff_s(attempts - 1, self._dice, base_s=self._failover.base_backoff_s)
        if now_s + wait_s >= invocation.deadline_at or not self._budget.try_withdraw(now_s):
            return False
        log.debug("%s.%s: attempt %d failed (%s)", invocation.service, invocation.method, attempts, error)
        if wait_s:
            await asyncio.sleep(wait_s)
        return True


def _remaining(invocation: Invocation, now_s: float) -> float | None:
    remaining_s = invocation.deadline_at - now_s
    if remaining_s <= 0:
        raise DeadlineExceeded(
            f"{invocation.service}.{invocation.method}: the deadline was over before the call was sent"
        )
    return remaining_s if remaining_s < 1e9 else None
