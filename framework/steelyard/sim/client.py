"""Client: one consumer process, with its own policy object, view of the fleet, budget and distance.

It does what the cluster room does with real connections: pick, send, account, fail over within the budget. The policy
and the budget are the product's own objects; only clock and network are simulated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from steelyard.balance import Candidate, Policy
from steelyard.guard import Protection, RetryBudget, backoff_s
from steelyard.model import Outcome

from .call import Call, Ending
from .kernel import Kernel
from .recorder import Recorder
from .scenario import Consumers
from .server import Server

_OK, _FAILED = Outcome.OK, Outcome.FAILED
_ANSWER = Ending.OK
_METHOD = "call"


class Client:
    """``begin`` starts a call. ``answered(call, ending, in_flight)`` is called by servers at the moment when they are
    through with *call*; the answer then takes its way back."""

    def __init__(
        self,
        kernel: Kernel,
        policy: Policy,
        servers: Mapping[str, Server],
        recorder: Recorder,
        settings: Consumers,
        chance: Random,
    ) -> None:
        self.policy = policy
        self._open: deque[Call] = deque()
        self._pick, self._started, self._ended = policy.pick, policy.started, policy.ended
        self.on_over: Callable[[Call], None] | None = None
        self._kernel = kernel
        self._servers = servers
        self._recorder = recorder
        self._settings = settings
        self._record_over = recorder.over
        self._add_open = self._open.append
        self._timeout_s = settings.timeout_s
        self._delay_s = settings.delay_s * (0.5 + chance.random())
        self.answered: Callable[[Call, Ending, int | None], None] = self._answer_later if self._delay_s else self._take
        self._dice = chance.random
        self._budget = RetryBudget(settings.retry_ratio, settings.retry_per_s)
        self._deposit = self._budget.deposit if settings.retries else None
        self._is_sweeping = False
        self._protection = Protection() if settings.protection else None
        self._hold: Any = getattr(policy, "hold_diversion", None)
        self._probes: Any = getattr(policy, "probes", None)

    def begin(self, call: Call) -> None:
        if self._protection is not None and not self._is_admitted(self._protection, call):
            self._record(call, Ending.DEGRADED)
            return
        now_s = call.began_at_s
        if self._deposit is not None:
            self._deposit(now_s)
        self._add_open(call)
        if not self._is_sweeping:
            self._is_sweeping = True
            self._kernel.at(now_s + self._timeout_s, self._sweep)
        # ``_send`` written out: this runs for every call, and retries are few.
        candidate = self._pick(now_s, self._dice, call.hash)
        if candidate is None:
            self._over(call, Ending.NO_NODE)
        else:
            self._started(candidate, now_s)
            call.candidate = candidate
            server = self._servers[candidate.identity]
            if self._recorder.is_placing and call.key >= 0:
                self._recorder.placed(call.key, server)
            if self._delay_s:
                self._kernel.at(now_s + self._delay_s, server.accept, call)
            else:
                server.accept(call)
        if self._probes is not None:
            self._probe()

    def _is_admitted(self, protection: Protection, call: Call) -> bool:
        now_s = call.began_at_s
        if not protection.admit(_METHOD, call.priority, self._timeout_s, now_s, self._dice).is_sent:
            return False
        protection.started(_METHOD, now_s)
        return True

    def _send(self, call: Call) -> None:
        """Another attempt."""
        now_s = self._kernel.now_s
        candidate = self._pick(now_s, self._dice, call.hash, call.excluded)
        if candidate is None:
            self._over(call, Ending.NO_NODE)
            return
        self._started(candidate, now_s)
        call.candidate = candidate
        call.sent_at_s = now_s
        server = self._servers[candidate.identity]
        if self._delay_s:
            self._kernel.at(now_s + self._delay_s, server.accept, call)
        else:
            server.accept(call)

    def _answer_later(self, call: Call, ending: Ending, in_flight: int | None) -> None:
        self._kernel.at(self._kernel.now_s + self._delay_s, self._late_answer, (call, ending, in_flight))

    def _late_answer(self, answer: tuple[Call, Ending, int | None]) -> None:
        if not answer[0].is_over:
            self._take(*answer)

    def _take(self, call: Call, ending: Ending, in_flight: int | None) -> None:
        now_s = self._kernel.now_s
        candidate = call.candidate
        assert candidate is not None
        latency_s = now_s - call.sent_at_s
        if ending is _ANSWER:
            self._ended(candidate, _OK, now_s, latency_s=latency_s, in_flight=in_flight)
            if self._protection is not None:
                self._protection.node_ended(candidate.identity, True)
                self._over(call, ending)
                return
            call.is_over = True
            self._record_over(call, now_s, ending)
            if self.on_over is not None:
                self.on_over(call)
            return
        self._ended(candidate, _FAILED, now_s, latency_s=latency_s, is_transport=ending is Ending.TRANSPORT)
        call.excluded = (*call.excluded, candidate.identity)
        tried = len(call.excluded)
        if self._protection is not None:
            self._protection.node_ended(candidate.identity, False)
        if tried > self._settings.retries or not self._may_retry(now_s):
            self._over(call, ending)
            return
        call.fails = False
        self._recorder.retries += 1
        # The first retry goes elsewhere and need not wait, as in cluster.Failover.
        wait_s = backoff_s(tried - 1, self._dice) if tried > 1 else 0.0
        self._kernel.at(now_s + wait_s, self._retry, call)

    def _may_retry(self, now_s: float) -> bool:
        is_stopped = self._protection is not None and not self._protection.may_retry
        return not is_stopped and self._budget.try_withdraw(now_s)

    def _retry(self, call: Call) -> None:
        if not call.is_over:
            self._send(call)

    def _over(self, call: Call, ending: Ending) -> None:
        if self._protection is not None:
            now_s = self._kernel.now_s
            self._protection.ended(_METHOD, now_s, is_ok=ending is Ending.OK, latency_s=now_s - call.began_at_s)
        self._record(call, ending)

    def _record(self, call: Call, ending: Ending) -> None:
        call.is_over = True
        self._record_over(call, self._kernel.now_s, ending)
        if self.on_over is not None:
            self.on_over(call)

    def _sweep(self, _: object) -> None:
        """Deadlines, in the order of the calls: all have the same timeout, so a queue does for a heap."""
        calls, now_s = self._open, self._kernel.now_s
        while calls and (calls[0].is_over or calls[0].began_at_s + self._timeout_s <= now_s + 1e-12):
            call = calls.popleft()
            if not call.is_over:
                self._expire(call, now_s)
        self._is_sweeping = bool(calls)
        if calls:
            self._kernel.at(calls[0].began_at_s + self._timeout_s, self._sweep)

    def _expire(self, call: Call, now_s: float) -> None:
        candidate = call.candidate
        # Between a failed attempt and its retry there is nothing to end.
        if candidate is not None and candidate.identity not in call.excluded:
            self._ended(candidate, _FAILED, now_s, latency_s=now_s - call.sent_at_s)
            if self._protection is not None:
                self._protection.node_ended(candidate.identity, False)
        self._over(call, Ending.DEADLINE)

    # --- what else a consumer hears -----------------------------------------------------------------------------

    def tick(self) -> None:
        """One period, in the order of cluster.control_loop."""
        if self._protection is not None:
            self._protection.tick(self._kernel.now_s)
            if self._hold is not None:
                self._hold(self._protection.diversion)
        if self._probes is not None:
            self._probe()
        self.policy.tick(self._kernel.now_s)

    def _probe(self) -> None:
        """Prequal's own probes: asked beside a call, answered a round trip later from the server's own memory."""
        now_s = self._kernel.now_s
        asked = self._probes(now_s, self._dice)
        if asked:
            self._kernel.at(now_s + self._delay_s, self._probes_arrive, asked)

    def _probes_arrive(self, asked: Sequence[Candidate]) -> None:
        """All that were sent at one moment, in one event: nothing could come between them."""
        answers = []
        for candidate in asked:
            server = self._servers[candidate.identity]
            if not server.is_down and not server.is_paused:
                assert server.latencies is not None
                in_flight = server.in_flight
                answers.append((candidate, in_flight, server.latencies.estimate(in_flight)))
        if answers:
            self._kernel.at(self._kernel.now_s + self._delay_s, self._probes_answered, answers)

    def _probes_answered(self, answers: Sequence[tuple[Candidate, int, float]]) -> None:
        policy: Any = self.policy
        now_s = self._kernel.now_s
        for candidate, in_flight, latency_s in answers:
            policy.probed(candidate, now_s, in_flight=in_flight, latency_s=latency_s)
