"""ClusterInvoker: a whole cluster as one Invoker. Pick, send, account, and on failure another node (failover).

Failover is Dubbo's default strategy with three bounds that Dubbo lacks: only what certainly did not run or is declared
idempotent is repeated, a retry budget keeps retries and hedges (``hedging``) to a fifth of the calls, and the deadline
is the whole call's, not each attempt's. Every started attempt is ended exactly once, whatever happens to it, so that
in-flight counts return to zero.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from steelyard.balance import Candidate, Policy, ProbingPolicy
from steelyard.errors import ConfigError, DeadlineExceeded, RpcError
from steelyard.guard import Protection, RetryBudget, backoff_s
from steelyard.model import CallShape, Invocation, Outcome, Reply
from steelyard.telemetry import note_attempt
from steelyard.wire import ChannelState, OpenCall

from .directory import Directory
from .hedging import Attempt, BeatenAttempts, Hedging
from .probing import Prober, ProbeStatistics
from .stream import AccountedStream
from .verdict import is_transport, may_repeat, outcome_for_node

log = logging.getLogger(__name__)

# When retries eat the budget up, the balancer is asked to plan at once, but not more often than this.
HURRY_EVERY_S = 0.2
# The part of the retry budget's savings that hedges leave for calls that have failed.
HEDGES_LEAVE = 0.5


@dataclass(frozen=True, slots=True)
class Failover:
    """``retries``: further attempts on other nodes [2, Dubbo's default; 0 means none]. The first retry goes out at
    once, since it goes elsewhere; later ones wait with full jitter, from ``base_backoff_s``. ``hedge_after``: an
    idempotent call that has taken so many times its method's 95th percentile is sent to a second node as well [2; 0:
    never], but not before ``hedge_floor_s``: below 10 ms it is the event loop that is late, and not the node."""

    retries: int = 2
    base_backoff_s: float = 0.01
    hedge_after: float = 2.0
    hedge_floor_s: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.retries <= 16:
            raise ConfigError(f"Failover.retries: 0 to 16, not {self.retries!r}")
        if not 0 <= self.base_backoff_s <= 10:
            raise ConfigError(f"Failover.base_backoff_s: 0 to 10 seconds, not {self.base_backoff_s!r}")
        if self.hedge_after != 0 and not 1 <= self.hedge_after <= 1000:
            raise ConfigError(f"Failover.hedge_after: 0 (never) or 1 to 1000, not {self.hedge_after!r}")
        if not 0 <= self.hedge_floor_s <= 10:
            raise ConfigError(f"Failover.hedge_floor_s: 0 to 10 seconds, not {self.hedge_floor_s!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverStatistics:
    """Since the start: ``calls``; ``attempts`` at nodes; ``retries`` and ``hedges`` among them; ``hedges_won``, that
    answered first; ``denied``, retries and hedges that the budget refused."""

    calls: int
    attempts: int
    retries: int
    hedges: int
    hedges_won: int
    denied: int


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
        protection: Protection | None = None,
    ) -> None:
        self._directory = directory
        self._policy = policy
        self._clock = clock
        self._dice = dice
        self._failover = failover or Failover()
        self._budget = budget or RetryBudget()
        self._protection = protection
        self._calls = self._attempts = self._retries = 0
        self._hurried_at_s = -math.inf
        self._beaten = BeatenAttempts(self._end_beaten, clock=clock)
        self.prober: Prober | None = None
        if isinstance(policy, ProbingPolicy):
            self.prober = Prober(policy, directory, clock=clock, dice=dice)
        self._hedging: Hedging | None = None
        if self._failover.retries and self._failover.hedge_after:
            self._hedging = Hedging(
                self._send,
                self._choose_rival,
                clock=clock,
                after=self._failover.hedge_after,
                floor_s=self._failover.hedge_floor_s,
            )

    async def __call__(self, invocation: Invocation) -> Reply:
        """The first attempt, where it can go out at once and nothing goes wrong: nearly every call, and so without a
        coroutine, a clock or a question that is not needed. ``_attempts_of`` is the long way of the same."""
        now_s = self._clock()
        if now_s >= invocation.deadline_at:
            _remaining(invocation, now_s)  # a call that is over already must not become a node's failure
        self._calls += 1
        self._budget.deposit(now_s)
        policy, spec, hedging = self._policy, invocation.spec, self._hedging
        candidate = policy.pick(now_s, self._dice, invocation.key)
        channel = None if candidate is None else self._directory.channel(candidate.node.address)
        connection = None if channel is None else channel.ready
        if (
            candidate is None
            or connection is None
            or connection.has_ended
            or self._directory.tokens
            or (spec is not None and spec.compress)
        ):
            return await self._attempts_of(invocation, [], None, candidate)
        if spec is None or not spec.is_idempotent or spec.shape is not CallShape.UNARY:
            hedging = None
        policy.started(candidate, now_s)
        self._attempts += 1
        if self.prober is not None:
            self.prober.ask()
        note_attempt(candidate.node)
        call: OpenCall | None = None
        attempt: Attempt | None = None
        try:
            if hedging is not None:
                attempt = hedging.watch(invocation, candidate.identity, now_s)
            call = connection.submit(invocation, now_s)
            if attempt is not None:
                attempt.answer = call.token
            reply: Reply = await call.token
        except RpcError as error:
            failure = error
        except BaseException:
            if call is not None:
                connection.abandon(call)
            self._left(candidate, now_s, invocation, attempt)
            if attempt is not None:
                attempt.is_over()
            raise
        else:
            ended_s = self._clock()
            if attempt is None or hedging is None:
                return self._answered(candidate, reply, now_s, ended_s)
            attempt.is_over()
            if attempt.reply is None:
                attempt.latency.add(ended_s - now_s)
                return self._answered(candidate, reply, now_s, ended_s)
            connection.abandon(call)
            self._left(candidate, now_s, invocation, attempt)
            return hedging.beaten(attempt, reply)
        return await self._after_failure(failure, candidate, invocation, attempt, now_s)

    async def _after_failure(
        self,
        error: RpcError,
        candidate: Candidate,
        invocation: Invocation,
        attempt: Attempt | None,
        started_s: float,
    ) -> Reply:
        """The first attempt has failed: a hedge that is under way may still answer, and else other nodes."""
        self._failed(candidate, error, started_s)
        if attempt is not None and self._hedging is not None:
            try:
                answered = await self._hedging.rival_reply(attempt)
            finally:
                attempt.is_over()
            if answered is not None:
                return answered
        tried = (attempt.tried if attempt is not None else None) or [candidate.identity]
        if not await self._goes_on(error, invocation, len(tried)):
            raise error
        return await self._attempts_of(invocation, tried, error)

    async def _attempts_of(
        self, invocation: Invocation, tried: list[str], failure: RpcError | None, picked: Candidate | None = None
    ) -> Reply:
        """As many attempts as it takes, after those at *tried* that ended with *failure*. *picked*: the policy's choice
        for the first of these. To ask it again would turn a round robin by two, and past every node that takes the
        long way."""
        hedging = self._hedging if _is_hedged(invocation) else None
        while True:
            candidate = self._pick(invocation, tried, picked)
            picked = None
            if candidate is None:
                if failure is not None:
                    raise failure
                candidate = await self._first_candidate(invocation)
            tried.append(candidate.node.identity)
            try:
                if hedging is not None:
                    return await hedging.run(candidate, invocation, tried)
                return await self._send(candidate, invocation, None)
            except RpcError as error:
                if not await self._goes_on(error, invocation, len(tried)):
                    raise
                failure = error

    def _pick(self, invocation: Invocation, tried: list[str], picked: Candidate | None = None) -> Candidate | None:
        """A node that takes calls now. Those whose connection is down or draining are passed over without being blamed;
        the policy is asked without regard to them first, because exclusions cost it more than a second question."""
        now_s, pick, directory = self._clock(), self._policy.pick, self._directory
        candidate = picked or pick(now_s, self._dice, invocation.key, tried)
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

    async def _send(self, candidate: Candidate, invocation: Invocation, attempt: Attempt | None) -> Reply:
        node = candidate.node
        channel = self._directory.channel(node.address)
        if channel is None:
            raise self._directory.absent()
        if self._directory.tokens:
            invocation = self._directory.with_token(node, invocation)
        started_s = self._clock()
        self._policy.started(candidate, started_s)
        self._attempts += 1
        if self.prober is not None:
            self.prober.ask()
        note_attempt(node)
        try:
            reply = await channel(invocation)
        except RpcError as error:
            self._failed(candidate, error, started_s)
            raise
        except BaseException:
            self._left(candidate, started_s, invocation, attempt)
            raise
        return self._answered(candidate, reply, started_s, self._clock())

    def _answered(self, candidate: Candidate, reply: Reply, started_s: float, now_s: float) -> Reply:
        """An attempt succeeded, or a stream opened, which is accounted when it ends."""
        if self._beaten.silent:
            self._beaten.heard(candidate.identity)
        if reply.stream is not None:
            return Reply(
                stream=AccountedStream(reply.stream, self._end, candidate, started_s), attachments=reply.attachments
            )
        self._policy.ended(candidate, Outcome.OK, now_s, latency_s=now_s - started_s, in_flight=reply.in_flight)
        if self._protection is not None:
            self._protection.node_ended(candidate.identity, True)
        return reply

    def _failed(self, candidate: Candidate, error: RpcError, started_s: float) -> None:
        error.node = candidate.identity
        self._end(candidate, outcome_for_node(error), started_s, is_transport=is_transport(error))
        if error.is_remote and self._beaten.silent:
            self._beaten.heard(candidate.identity)

    def _left(self, candidate: Candidate, started_s: float, invocation: Invocation, attempt: Attempt | None) -> None:
        """Nobody waits for this attempt any more: its caller has gone, or a hedge has beaten it."""
        if attempt is not None and attempt.reply is not None:
            self._beaten.add(candidate, started_s, invocation.deadline_at)
        else:
            self._end(candidate, Outcome.IGNORED, started_s)

    def _end(
        self,
        candidate: Candidate,
        outcome: Outcome,
        started_s: float,
        *,
        is_transport: bool = False,
        in_flight: int | None = None,
    ) -> None:
        """Where an attempt is accounted: to the balancer, and to protection. What succeeds is, in ``_send``, without
        the detour."""
        now_s = self._clock()
        self._policy.ended(
            candidate, outcome, now_s, latency_s=now_s - started_s, in_flight=in_flight, is_transport=is_transport
        )
        if self._protection is not None and outcome is not Outcome.IGNORED:
            self._protection.node_ended(candidate.node.identity, outcome is Outcome.OK)

    def _end_beaten(self, candidate: Candidate, outcome: Outcome, started_s: float) -> None:
        self._end(candidate, outcome, started_s)

    def _choose_rival(self, invocation: Invocation, tried: list[str]) -> Candidate | None:
        """The node for a hedge, paid from the budget; None when there shall be none."""
        now_s = self._clock()
        if len(tried) > self._failover.retries or now_s >= invocation.deadline_at:
            return None
        # A node that is known to be silent is as good as one that has failed: leaving it is a retry, and no gamble.
        is_silent = self._beaten.is_silent(tried[-1])
        if not (self._may_retry() if is_silent else self._may_hedge(invocation.method)):
            return None
        candidate = self._pick(invocation, tried)
        reserve = 0.0 if is_silent else HEDGES_LEAVE
        if candidate is None or not self._budget.try_withdraw(now_s, reserve=reserve):
            return None
        return candidate

    def _may_retry(self) -> bool:
        return self._protection is None or self._protection.may_retry

    def _may_hedge(self, method: str) -> bool:
        return self._protection is None or self._protection.may_hedge(method)

    async def _goes_on(self, error: RpcError, invocation: Invocation, attempts: int) -> bool:
        """Whether to try another node after *error*; waits the back-off when so."""
        is_idempotent = invocation.spec is not None and invocation.spec.is_idempotent
        if invocation.stream is not None and getattr(invocation.stream, "is_started", True):
            return False  # what was taken of the caller's stream cannot be taken again
        if attempts > self._failover.retries or not may_repeat(error, is_idempotent) or not self._may_retry():
            return False
        now_s = self._clock()
        wait_s = 0.0
        if attempts > 1:
            wait_s = backoff_s(attempts - 1, self._dice, base_s=self._failover.base_backoff_s)
        if now_s + wait_s >= invocation.deadline_at or not self._budget.try_withdraw(now_s):
            return False
        log.debug("%s.%s: attempt %d failed (%s)", invocation.service, invocation.method, attempts, error)
        self._hurry(now_s)
        if wait_s:
            await asyncio.sleep(wait_s)
        self._retries += 1
        return True

    def _hurry(self, now_s: float) -> None:
        """Plans before the period is over when the budget would not last until then. Chaos fleet, spike x4 with two of
        eight nodes failing at once: waiting for the period cost 0 to 2 % of the calls, by its phase."""
        if now_s >= self._hurried_at_s + HURRY_EVERY_S and self._budget.is_low(now_s):
            self._hurried_at_s = now_s
            self._policy.tick(now_s)

    def statistics(self) -> FailoverStatistics:
        """How many attempts the calls took."""
        hedging = self._hedging
        return FailoverStatistics(
            calls=self._calls,
            attempts=self._attempts,
            retries=self._retries,
            hedges=hedging.hedges if hedging is not None else 0,
            hedges_won=hedging.won if hedging is not None else 0,
            denied=self._budget.denied,
        )

    def probe_statistics(self) -> ProbeStatistics | None:
        """None: the policy does not probe."""
        return None if self.prober is None else self.prober.statistics()

    async def close(self) -> None:
        """Ends the hedges under way. Call it when no more calls come."""
        if self.prober is not None:
            self.prober.close()
        if self._hedging is not None:
            await self._hedging.close()
        self._beaten.close()


def _is_hedged(invocation: Invocation) -> bool:
    spec = invocation.spec
    return spec is not None and spec.is_idempotent and spec.shape is CallShape.UNARY


def _remaining(invocation: Invocation, now_s: float) -> float | None:
    remaining_s = invocation.deadline_at - now_s
    if remaining_s <= 0:
        raise DeadlineExceeded(
            f"{invocation.service}.{invocation.method}: the deadline was over before the call was sent"
        )
    return remaining_s if remaining_s < 1e9 else None
