"""Hedging: a call that has waited unusually long is sent to a second node as well, and the first answer counts.

A node that was stopped (SIGSTOP, a swapped-out machine, a long collection) keeps its connection and answers nothing. No
error tells of it until the deadline, and then nothing is left to try with. A timeout per attempt would have to be
guessed too long for this or too short for a loaded fleet, and throws away the work of the first attempt. A hedge ("The
Tail at Scale", Dean and Barroso 2013) keeps both: after twice the method's 95th percentile, at the latest after a third
of the call's time, one more attempt goes elsewhere. Only for idempotent methods, only from the retry budget, and not
while protection has stopped retries; so all extra load has one bound.

On the way of a call that is answered in time stand one small object and its place in a wheel of time (a dict for each 5
ms), which it leaves when it is over: there is no task and no timer of its own. Left in the wheel until its moment, it
would keep the future and the reply of every call of the last 10 ms or more, and those would be most of what Python's
garbage collector has to walk through. When a hedge is answered first, its reply is given to the future that the caller
awaits. A caller that still waits for a connection awaits no such future: its task is woken by a cancel that is taken
back (``Task.uncancel``), as ``asyncio.timeout`` does it.

**A beaten attempt stays on its node's account** until the node says anything to anybody, or its deadline passes and it
counts as failed. Were it forgotten at once, a stopped node would look idle, and get its full share of calls for as long
as its silence is not noticed otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any

import msgspec

from steelyard.balance import Candidate
from steelyard.errors import RpcError
from steelyard.guard import Quantile
from steelyard.model import Invocation, Outcome, Reply

# Where nothing is known of a method's latencies, and as the most one waits: this part of the call's time.
LATEST_PART = 1 / 3
# A hedge goes out this late at most, so that a crowd of calls shares a timer.
_GRAIN_S = 0.005
# A beaten attempt without a deadline is given up after this.
_LONGEST_S = 60.0


class Attempt(msgspec.Struct, eq=False):
    """A first attempt under watch, at the node ``first``. ``invocation`` is None when it is over, ``reply`` is set by
    the hedge that beat it, ``rivals`` are the hedges, ``latency`` is what is known of the method's, ``slot`` its place
    in the wheel, ``tried`` the nodes so far where there were others than the first. ``answer`` or ``task`` wakes the
    caller: the future that it awaits, where its call has gone out, and else its task."""

    invocation: Invocation | None
    first: str
    delay_s: float
    latency: Quantile
    context: Context
    slot: dict[Attempt, None] | None = None
    tried: list[str] | None = None
    answer: asyncio.Future[Reply] | None = None
    task: asyncio.Task[Any] | None = None
    rivals: list[asyncio.Task[None]] | None = None
    reply: Reply | None = None
    is_waiting: bool = False

    def is_answered(self) -> bool:
        """Whether the first attempt has its own answer, though its caller may not have heard of it yet."""
        answer = self.answer
        return answer is not None and answer.done() and (answer.cancelled() or answer.exception() is None)

    def win(self, reply: Reply) -> None:
        """A rival has answered first."""
        self.reply = reply
        if self.is_waiting:
            return
        if self.task is not None:
            self.task.cancel()
        elif self.answer is not None and not self.answer.done():
            self.answer.set_result(reply)

    def is_over(self) -> None:
        """It leaves the wheel, and rivals are not wanted any more."""
        self.invocation = None
        if self.slot is not None:
            self.slot.pop(self, None)
        if self.rivals is not None:
            for rival in self.rivals:
                rival.cancel()


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
        self._wheel: dict[int, dict[Attempt, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.hedges = 0
        self.won = 0

    async def run(self, candidate: Candidate, invocation: Invocation, tried: list[str]) -> Reply:
        """One attempt at *candidate*, hedged, whatever it waits for. Raises what that attempt raises when no hedge
        answers."""
        started_s = self._clock()
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        attempt = self.watch(invocation, tried[-1], started_s)
        attempt.tried, attempt.task = tried, task
        try:
            reply = await self._send(candidate, invocation, attempt)
        except asyncio.CancelledError:
            if attempt.reply is None or task.uncancel() > cancelled_before:
                raise  # the caller's own
            return self.beaten(attempt, attempt.reply)
        except RpcError:
            answered = await self.rival_reply(attempt)
            if answered is None:
                raise
            return answered
        finally:
            attempt.is_over()
        attempt.latency.add(self._clock() - started_s)
        return reply

    def watch(self, invocation: Invocation, first: str, now_s: float) -> Attempt:
        """A first attempt is made now, at the node *first*. ``is_over`` when it is; ``latency`` learns how long it took
        to be answered."""
        latency = self._latencies.get(invocation.method)
        if latency is None:
            latency = self._latencies[invocation.method] = Quantile()
        latest_s = (invocation.deadline_at - now_s) * LATEST_PART
        delay_s, usual_s = latest_s, latency.value
        if usual_s is not None:
            delay_s = usual_s * self._after
            if delay_s < self._floor_s:
                delay_s = self._floor_s
            if delay_s > latest_s:
                delay_s = latest_s
        attempt = Attempt(invocation, first, delay_s, latency, copy_context())
        if delay_s <= _LONGEST_S:
            slot = int((now_s + delay_s) / _GRAIN_S) + 1
            waiting = self._wheel.get(slot)
            if waiting is not None:
                waiting[attempt] = None
                attempt.slot = waiting
            else:
                self._put(slot, attempt)
        return attempt

    def beaten(self, attempt: Attempt, reply: Reply) -> Reply:
        """A first attempt was beaten by the hedge that brought *reply*."""
        attempt.latency.add_above()
        self.won += 1
        return reply

    async def close(self) -> None:
        """Ends the hedges under way and awaits them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wheel.clear()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _put(self, slot: int, attempt: Attempt) -> None:
        waiting = self._wheel.get(slot)
        if waiting is not None:
            waiting[attempt] = None
            attempt.slot = waiting
            return
        attempt.slot = self._wheel[slot] = {attempt: None}
        if self._timer is None or slot < self._armed_for:
            self._arm(slot)

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = slot
        # uvloop counts in whole milliseconds, and would come a little early, again and again in the same turn.
        wait_s = max(slot * _GRAIN_S - self._clock(), 0.0) + 0.001
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_s = self._clock()
        slot = int(now_s / _GRAIN_S)
        for due in sorted(found for found in self._wheel if found <= slot):
            waiting = self._wheel.pop(due)
            attempts = tuple(waiting)
            waiting.clear()
            for attempt in attempts:
                if attempt.invocation is not None and attempt.reply is None:
                    self._hedge(attempt, attempt.invocation, now_s)
        if self._wheel:
            # Also where the second moment of one that was just hedged has the timer: others may wait for an earlier.
            self._arm(min(self._wheel))

    def _hedge(self, attempt: Attempt, invocation: Invocation, now_s: float) -> None:
        tried = attempt.tried
        if tried is None:
            tried = attempt.tried = [attempt.first]
        candidate = self._choose(invocation, tried)
        if candidate is None:
            return
        tried.append(candidate.node.identity)
        self.hedges += 1
        loop = asyncio.get_running_loop()
        # In the caller's context, so that the call's span hears of this node too.
        rival = loop.create_task(self._rival(attempt, candidate, invocation), context=attempt.context)
        if attempt.rivals is None:
            attempt.rivals = []
        attempt.rivals.append(rival)
        self._tasks.add(rival)
        rival.add_done_callback(self._tasks.discard)
        # The second node may be stopped as well.
        self._put(int((now_s + attempt.delay_s) / _GRAIN_S) + 1, attempt)

    async def _rival(self, attempt: Attempt, candidate: Candidate, invocation: Invocation) -> None:
        try:
            reply = await self._send(candidate, invocation, None)
        except RpcError:
            return  # the first attempt goes on, and says what is wrong if that fails too
        if attempt.invocation is not None and attempt.reply is None and not attempt.is_answered():
            attempt.win(reply)

    async def rival_reply(self, attempt: Attempt) -> Reply | None:
        """The answer of a hedge that is still under way when the first attempt has failed."""
        attempt.is_waiting = True
        while attempt.reply is None and (pending := [rival for rival in attempt.rivals or () if not rival.done()]):
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        if attempt.reply is not None:
            self.won += 1
        return attempt.reply


class BeatenAttempts:
    """Attempts that a hedge has beaten, until their node speaks or their time is over. *end* accounts one. ``silent``
    has them, by node."""

    def __init__(self, end: Callable[[Candidate, Outcome, float], None], *, clock: Callable[[], float]) -> None:
        self._end = end
        self._clock = clock
        self.silent: dict[str, dict[asyncio.TimerHandle, tuple[Candidate, float]]] = {}

    def is_silent(self, identity: str) -> bool:
        """Whether the node has said nothing since a hedge beat it."""
        return identity in self.silent

    def add(self, candidate: Candidate, started_s: float, deadline_at: float) -> None:
        wait_s = min(max(deadline_at - self._clock(), 0.0), _LONGEST_S)
        identity = candidate.node.identity
        kept = self.silent.setdefault(identity, {})

        def expire() -> None:
            waiting = self.silent.get(identity)
            if waiting is not None and waiting.pop(handle, None) is not None:
                if not waiting:
                    del self.silent[identity]
                self._end(candidate, Outcome.FAILED, started_s)

        handle = asyncio.get_running_loop().call_later(wait_s, expire)
        kept[handle] = (candidate, started_s)

    def heard(self, identity: str) -> None:
        """The node has answered somebody: it is slow, but not gone. Its beaten attempts say nothing any more."""
        for handle, (candidate, started_s) in self.silent.pop(identity, {}).items():
            handle.cancel()
            self._end(candidate, Outcome.IGNORED, started_s)

    def close(self) -> None:
        """Accounts all that is left."""
        for identity in tuple(self.silent):
            self.heard(identity)
