"""Dynamic batching: calls from whoever they come, served by one call of the implementation.

While a batch runs, the calls that arrive wait and are the next one: under load batches fill by themselves, and no timer
adds to anybody's latency. The timer is for the moment after: callers whose answers came together ask again together,
and the first of them to arrive should not run alone. So the first call waits up to ``max_wait_s``, but no longer than
until as many are there as came last time; a single caller, whose last batch held one, does not wait at all.

Calls of a batch share their handler and nothing else: each has its own deadline, leaves alone, is refused alone, and an
implementation may answer one of them with an exception.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from steelyard.errors import DeadlineExceeded, Overloaded, RpcError, Unavailable
from steelyard.filter import RunTime, run_time
from steelyard.model import Invocation
from steelyard.service import BoundMethod
from steelyard.telemetry import Telemetry, conventions

from .busy import BusyMeter
from .line import Line, Place
from .pool import HandlerPool
from .stacking import Form, form_of, ragged, split, stacked

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatistics:
    """Since the start: ``batches``, the ``calls`` in them, ``full`` batches, ``refused`` calls (no room, or another
    shape), ``expired`` ones that were dropped before they ran. ``waiting`` and ``running``: calls, and batches, now."""

    batches: int
    calls: int
    full: int
    refused: int
    expired: int
    waiting: int
    running: int


class _Call:
    """One call in the line, at ``place``. ``future`` is its answer."""

    __slots__ = ("args", "deadline_at", "form", "future", "joined_s", "place", "priority", "ran")

    def __init__(self, invocation: Invocation, joined_s: float, form: Form) -> None:
        self.args = invocation.args
        self.deadline_at = invocation.deadline_at
        self.priority = invocation.priority
        self.form = form
        self.joined_s = joined_s
        self.place: Place
        self.ran: RunTime | None = run_time.get()
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()


class Batcher:
    """``await batcher(invocation)`` is one call's result. ``queue`` bounds the calls that may wait."""

    def __init__(
        self, method: BoundMethod, pool: HandlerPool, queue: int, clock: Callable[[], float], telemetry: Telemetry
    ) -> None:
        assert method.batch is not None
        self._method = method
        self._spec = method.spec
        self._settings = method.batch
        self._pool = pool
        self._queue = queue
        self._clock = clock
        self._telemetry = telemetry
        self._line = Line()
        self._since_s = 0.0
        self._expected = 1
        self._usual: Form | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_considering = False
        self._is_closed = False
        self._batches = self._calls = self._full = self._refused = self._expired = 0
        self.busy = BusyMeter(self._settings.at_once, clock)

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def __call__(self, invocation: Invocation) -> Any:
        """Raises Overloaded when the line is full, InvalidArgument for arrays that cannot be stacked with the others,
        DeadlineExceeded when no batch began in time (it has not run), and what the implementation raises."""
        if self._is_closed:
            raise Unavailable(f"{self._spec.qualified_name}: the provider has closed")
        now_s = self._clock()
        call = _Call(invocation, now_s, form_of(invocation.args))
        if self._usual is not None and call.form != self._usual:
            self._refused += 1
            raise ragged(self._spec, call.form, self._usual)
        self._make_room(invocation.priority)
        if not len(self._line):
            self._since_s = now_s
        call.place = self._joined(call)
        if not self._is_considering:
            # In the next turn of the loop: calls that came in one packet are in one batch.
            self._is_considering = True
            asyncio.get_running_loop().call_soon(self._due)
        try:
            return await call.future
        finally:
            self._line.leave(call.place)

    def statistics(self) -> BatchStatistics:
        return BatchStatistics(
            batches=self._batches,
            calls=self._calls,
            full=self._full,
            refused=self._refused,
            expired=self._expired,
            waiting=len(self._line),
            running=len(self._tasks),
        )

    async def close(self) -> None:
        """Refuses who waits and ends what runs. Idempotent."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for call in self._line.clear():
            _fail(call, Unavailable(f"{self._spec.qualified_name}: the provider has closed"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _joined(self, call: _Call) -> Place:
        return self._line.join(call, priority=call.priority, deadline_at=call.deadline_at, now_s=call.joined_s)

    def _make_room(self, priority: int) -> None:
        # Those that the next batches of an idle method will take in a moment are at an open door, and in no line.
        free = self._settings.max_size * (self._settings.at_once - len(self._tasks))
        if len(self._line) < self._queue + free:
            return
        self._refused += 1
        batches = math.ceil(len(self._line) / self._settings.max_size)
        error = Overloaded(
            f"{self._spec.qualified_name}: {len(self._line)} calls wait for a batch already",
            retry_after_s=self.busy.clears_in_s(batches),
        )
        loser = self._line.worse_than(priority)
        if loser is None:
            raise error
        _fail(loser, error)

    def _consider(self) -> None:
        """Starts a batch when it is time for one."""
        while len(self._line) and len(self._tasks) < self._settings.at_once and not self._is_closed:
            left_s = self._since_s + self._settings.max_wait_s - self._clock()
            if len(self._line) < self._expected and left_s > 0:
                if self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(left_s, self._late)
                return
            self._start()

    def _due(self) -> None:
        self._is_considering = False
        self._consider()

    def _late(self) -> None:
        self._timer = None
        self._consider()

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        calls = self._take()
        self._expected = min(self._settings.max_size, max(1, len(calls) + len(self._line)))
        if not calls:
            return
        # A context of its own: a batch is nobody's call, and its handler must not find the first caller's deadline.
        task = asyncio.get_running_loop().create_task(
            self._run(calls), name=f"batch of {self._spec.qualified_name}", context=contextvars.Context()
        )
        self._tasks.add(task)

    def _take(self) -> list[_Call]:
        """The next batch: the first in line, and those behind it that can be stacked with it."""
        now_s = self._clock()
        calls: list[_Call] = []
        others: list[_Call] = []
        while len(calls) < self._settings.max_size:
            call: _Call | None = self._line.next()
            if call is None:
                break
            if call.future.done():
                continue
            if call.deadline_at <= now_s:
                self._expired += 1
                _fail(call, DeadlineExceeded("the deadline was over before a batch could begin", may_have_run=False))
            elif self._usual is not None and call.form != self._usual:
                self._refused += 1
                _fail(call, ragged(self._spec, call.form, self._usual))
            elif calls and call.form != calls[0].form:
                others.append(call)
            else:
                calls.append(call)
        for call in others:
            call.place = self._joined(call)
        return calls

    async def _run(self, calls: Sequence[_Call]) -> None:
        began_s = self._clock()
        try:
            with self.busy:
                results = await self._results(calls)
            for call, result in zip(calls, split(self._spec, results, len(calls)), strict=True):
                _answer(call, result)
            if self._settings.ragged == "reject":
                self._usual = calls[0].form
        except BaseException as error:
            task = asyncio.current_task()
            is_ended = isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
            failure: BaseException = error
            if is_ended:
                failure = Unavailable(f"{self._spec.qualified_name}: the provider has closed", may_have_run=True)
            for call in calls:
                _fail(call, failure)
        finally:
            self._ended(calls, began_s)

    async def _results(self, calls: Sequence[_Call]) -> Any:
        args = stacked([call.args for call in calls], calls[0].form)
        if self._method.is_async:
            try:
                return await self._method.function(*args)
            except RpcError as error:
                error.may_have_run = True  # as in the dispatcher: it speaks of a call that the handler has made
                raise
        deadline_at = max(call.deadline_at for call in calls)
        priority = min(call.priority for call in calls)
        name = self._spec.qualified_name

        def work() -> Any:
            # It may have waited for a thread, and its callers may have left in the meantime.
            if all(call.future.done() for call in calls):
                raise RuntimeError("all callers of this batch have left")
            return self._method.function(*args)

        value = await self._pool.run(work, (), deadline_at, priority=priority, line=name)
        return await value if hasattr(value, "__await__") else value

    def _ended(self, calls: Sequence[_Call], began_s: float) -> None:
        took_s = self._clock() - began_s
        for call in calls:
            if call.ran is not None:
                call.ran.seconds = took_s
        self._batches += 1
        self._calls += len(calls)
        self._full += len(calls) == self._settings.max_size
        instruments = self._telemetry.batches
        if instruments is not None:
            labels = {conventions.RPC_METHOD: self._spec.qualified_name}
            instruments.calls.record(len(calls), labels)
            instruments.wait.record(max(0.0, began_s - min(call.joined_s for call in calls)), labels)
            instruments.duration.record(took_s, labels)
        task = asyncio.current_task()
        if task is not None:
            self._tasks.discard(task)
        self._consider()


def _answer(call: _Call, result: Any) -> None:
    if isinstance(result, BaseException):
        _fail(call, result)
    elif not call.future.done():
        call.future.set_result(result)


def _fail(call: _Call, error: BaseException) -> None:
    if isinstance(error, asyncio.CancelledError | StopIteration | StopAsyncIteration):
        # A future cannot carry the second, and the others would look like the caller's own end, or a stream's.
        error = RuntimeError(f"the handler raised {type(error).__name__}")
    if not call.future.done():
        call.future.set_exception(error)
