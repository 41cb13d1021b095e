"""Hedging: a call that has waited unusually long is sent to a second node as well, and the first answer counts.

A node that was stopped (SIGSTOP, a swapped-out machine, a long collection) keeps its connection and answers nothing. No
error tells of it until the deadline, and then nothing is left to try with. A timeout per attempt would have to be
guessed too long for this or too short for a loaded fleet, and throws away the work of the first attempt. A hedge ("The
Tail at Scale", Dean and Barroso 2013) keeps both: after twice the method's 95th percentile, at the latest after a third
of the call's time, one more attempt goes elsewhere. Only for idempotent methods, only from the retry budget, and not
while protection has stopped retries; so all extra load has one bound.

On the way of a call that is answered in time stand a heap entry and an object, some 2 us: there is no task and no timer
of its own. When a hedge is answered first, the caller's task is woken by a cancel that is taken back
(``Task.uncancel``), as ``asyncio.timeout`` does it.

**A beaten attempt stays on its node's account** until the node says anything to anybody, or its deadline passes and it
counts as failed. Were it forgotten at once, a stopped node would look idle, and get its full share of calls for as long
as its silence is not noticed otherwise.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from steelyard.balance import Candidate
from steelyard.errors import RpcError
from steelyard.guard import Quantile
from steelyard.model import Invocation, Outcome, Reply

# Where nothing is known of a method's latencies, and as the most one waits: this part of the call's time.
LATEST_PART = 1 / 3
# The timer goes off this late at most, so that a crowd of calls shares one.
_GRAIN_S = 0.001
# A beaten attempt without a deadline is given up after this.
_LONGEST_S = 60.0


class Attempt:
    """A first attempt under watch. ``reply`` is set by the hedge that beat it."""

    __slots__ = ("context", "delay_s", "invocation", "is_over", "is_waiting", "reply", "rivals", "task", "tried")

    def __init__(self, invocation: Invocation, tried: list[str], task: asyncio.Task[Any], delay_s: float) -> None:
        self.invocation: Invocation | None = invocation
        self.tried = tried
        self.task = task
        self.delay_s = delay_s
        self.context = contextvars.copy_context()
        self.rivals: list[asyncio.Task[None]] = []
        self.reply: Reply | None = None
        self.is_waiting = False
        self.is_over = False


Send = Callable[[Candidate, Invocation, "Attempt | None"], Coroutine[Any, Any, Reply]]
Choose = Callable[[Invocation, list[str]], Candidate | None]


class Hedging:
    """*send* makes one attempt; *choose* gives the node of a hedge and pays for it, or None when there shall be
    none."""

    def __init__(self, send: Send, choose: Choose, *, clock: Callable[[], float], after: float, floor_s: float) -> None:
        self._send = send
        self._choose = choose
        self._clock = clock
        self._after = after
        self._floor_s = floor_s
        self._latencies: dict[str, Quantile] = {}
        self._due: list[tuple[float, int, Attempt]] = []
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self.hedges = 0
        self.won = 0

    async def run(self, candidate: Candidate, invocation: Invocation, tried: list[str]) -> Reply:
        """One attempt at *candidate*, hedged. Raises what that attempt raises when no hedge answers."""
        latency = self._latencies.get(invocation.method)
        if latency is None:
            latency = self._latencies[invocation.method] = Quantile()
        started_s = self._clock()
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        attempt = Attempt(invocation, tried, task, self._delay_s(latency, invocation.deadline_at - started_s))
        self._watch(attempt, started_s)
        try:
            reply = await self._send(candidate, invocation, attempt)
        except asyncio.CancelledError:
            if attempt.reply is None or task.uncancel() > cancelled_before:
                raise  # the caller's own
            latency.add_above()
            self.won += 1
            return attempt.reply
        except RpcError:
            answered = await self._rival_reply(attempt)
            if answered is None:
                raise
            self.won += 1
            return answered
        finally:
            self._unwatch(attempt)
        latency.add(self._clock() - started_s)
        return reply

    async def close(self) -> None:
        """Ends the hedges under way and awaits them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _delay_s(self, latency: Quantile, remaining_s: float) -> float:
        latest_s = remaining_s * LATEST_PART
        usual_s = latency.value
        return latest_s if usual_s is None else min(latest_s, max(self._floor_s, usual_s * self._after))

    def _watch(self, attempt: Attempt, now_s: float) -> None:
        due_at = now_s + attempt.delay_s
        if due_at > now_s + _LONGEST_S:
            return
        heapq.heappush(self._due, (due_at, next(self._order), attempt))
        if self._timer is None or due_at < self._armed_at - _GRAIN_S:
            self._arm(due_at, now_s)

    def _arm(self, due_at: float, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_at = due_at
        self._timer = asyncio.get_running_loop().call_later(max(due_at - now_s, _GRAIN_S), self._ring)

    def _unwatch(self, attempt: Attempt) -> None:
        attempt.is_over = True
        attempt.invocation = None  # the heap keeps the attempt until its moment, and need not keep the body
        for rival in attempt.rivals:
            rival.cancel()

    def _ring(self) -> None:
        self._timer = None
        now_s = self._clock()
        due = self._due
        while due and (due[0][2].is_over or due[0][0] <= now_s):
            attempt = heapq.heappop(due)[2]
            if attempt.invocation is not None and attempt.reply is None:
                self._hedge(attempt, attempt.invocation, now_s)
        if due and self._timer is None:
            self._arm(due[0][0], now_s)

    def _hedge(self, attempt: Attempt, invocation: Invocation, now_s: float) -> None:
        candidate = self._choose(invocation, attempt.tried)
        if candidate is None:
            return
        attempt.tried.append(candidate.node.identity)
        self.hedges += 1
        loop = asyncio.get_running_loop()
        # In the caller's context, so that the call's span hears of this node too.
        rival = loop.create_task(self._rival(attempt, candidate, invocation), context=attempt.context)
        attempt.rivals.append(rival)
        self._tasks.add(rival)
        rival.add_done_callback(self._tasks.discard)
        self._watch(attempt, now_s)  # the second node may be stopped as well

    async def _rival(self, attempt: Attempt, candidate: Candidate, invocation: Invocation) -> None:
        try:
            reply = await self._send(candidate, invocation, None)
        except RpcError:
            return  # the first attempt goes on, and says what is wrong if that fails too
        if attempt.is_over or attempt.reply is not None:
            return
        attempt.reply = reply
        if not attempt.is_waiting:
            attempt.task.cancel()

    async def _rival_reply(self, attempt: Attempt) -> Reply | None:
        """The answer of a hedge that is still under way when the first attempt has failed."""
        attempt.is_waiting = True
        while attempt.reply is None and (pending := [rival for rival in attempt.rivals if not rival.done()]):
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        return attempt.reply


class BeatenAttempts:
    """Attempts that a hedge has beaten, until their node speaks or their time is over. *end* accounts one."""

    def __init__(self, end: Callable[[Candidate, Outcome, float], None], *, clock: Callable[[], float]) -> None:
        self._end = end
        self._clock = clock
        self._silent: dict[str, dict[asyncio.TimerHandle, tuple[Candidate, float]]] = {}

    def __bool__(self) -> bool:
        return bool(self._silent)

    def is_silent(self, identity: str) -> bool:
        """Whether the node has said nothing since a hedge beat it."""
        return identity in self._silent

    def add(self, candidate: Candidate, started_s: float, deadline_at: float) -> None:
        wait_s = min(max(deadline_at - self._clock(), 0.0), _LONGEST_S)
        identity = candidate.node.identity
        kept = self._silent.setdefault(identity, {})

        def expire() -> None:
            waiting = self._silent.get(identity)
            if waiting is not None and waiting.pop(handle, None) is not None:
                if not waiting:
                    del self._silent[identity]
                self._end(candidate, Outcome.FAILED, started_s)

        handle = asyncio.get_running_loop().call_later(wait_s, expire)
        kept[handle] = (candidate, started_s)

    def heard(self, identity: str) -> None:
        """The node has answered somebody: it is slow, but not gone. Its beaten attempts say nothing any more."""
        for handle, (candidate, started_s) in self._silent.pop(identity, {}).items():
            handle.cancel()
            self._end(candidate, Outcome.IGNORED, started_s)

    def close(self) -> None:
        """Accounts all that is left."""
        for identity in tuple(self._silent):
            self.heard(identity)
