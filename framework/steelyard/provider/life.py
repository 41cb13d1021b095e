"""Where an exported service is in its life: starting, loading, warming, ready, draining, failed.

Registered is not ready: a node that still loads its model would get the calls of a node that serves, and fail them. So
a service that has something to do first is registered at once, in a state that is not picked, and becomes ready when
the work is done. A failing device turns it to failed in the same way, and back, without ending the process: its other
services go on, and so does the model that took minutes to load.

What this process does changes at once, with the state; the registry hears of it a moment later and at its own bounded
rate. The stay in ``failed`` doubles each time up to a minute, so a device that comes and goes costs a few updates a
minute.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from steelyard.errors import ConfigError, Unavailable
from steelyard.filter import ends_the_task
from steelyard.setting import function, timeout
from steelyard_registry import NodeState, Registration, RegistryClosed

from .device import Trouble, trouble_of
from .threads import DaemonThreads

log = logging.getLogger(__name__)

# The first stay in "failed": long enough for an allocator to give back what one large batch took. The longest: a
# minute, after which nobody notices that a node came back a little later.
SHORTEST_STAY_S = 1.0
LONGEST_STAY_S = 60.0
TOLD_WITHIN_S = 5.0
RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class Health:
    """A check that the user declares. It is well when it returns nothing or something true, and failing when it returns
    something false, raises, or takes longer than ``timeout_s``. A plain function runs in a thread of its own, so a
    driver call that hangs stops neither the calls nor the end of the process. Asked every ``every_s`` seconds."""

    check: Callable[[], Any]
    every_s: float = 5.0
    timeout_s: float = 5.0

    def __post_init__(self) -> None:
        function("Health.check", self.check)
        timeout("Health.every_s", self.every_s)
        timeout("Health.timeout_s", self.timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What is done before ready, and how it is known that it still is. ``warm_up`` makes real calls."""

    load: Callable[[], Any] | None = None
    warm_up: Callable[[], Any] | None = None
    health: Health | None = None


class Life:
    """The life of one exported service. ``state`` and ``reason`` are for anybody; ``tell`` hears each change."""

    def __init__(self, name: str, hooks: Hooks, tell: Callable[[NodeState], None]) -> None:
        self.name = name
        self._hooks = hooks
        # With nothing to do before, it is ready when the registry shows it, which may be before that has answered.
        self.state = NodeState.READY if self.first_state is NodeState.READY else NodeState.STARTING
        self.reason = ""
        self._tell = tell
        self._stay_s = SHORTEST_STAY_S
        self._ready_at_s = 0.0
        self._trouble: Trouble | None = None
        self._news = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._asking: asyncio.Future[Any] | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._is_closed = False
        self._threads = DaemonThreads(1, f"steelyard-life-{name}")

    @property
    def first_state(self) -> NodeState:
        """As what the service is registered: ready when there is nothing to do before."""
        if self._hooks.load is not None:
            return NodeState.LOADING
        return NodeState.READY if self._hooks.warm_up is None and self._hooks.health is None else NodeState.WARMING

    @property
    def is_open(self) -> bool:
        """Whether calls are served. A draining service finishes those that were on their way to it."""
        return self.state is NodeState.READY or self.state is NodeState.DRAINING

    def refusal(self) -> Unavailable:
        """What a call is told while the service is not open."""
        reason = f": {self.reason}" if self.reason else ""
        return Unavailable(f"{self.name} is {self.state.value} here{reason}", may_have_run=False)

    async def begin(self) -> None:
        """Loads, warms up and asks for health. Raises what the first two raise; a failing check makes it failed. Raises
        ConfigError when it is closed before: a hook may take minutes, or for ever."""
        self._beginning = asyncio.get_running_loop().create_task(self._begin(), name=f"start of {self.name}")
        try:
            await self._beginning
        except asyncio.CancelledError as error:
            if not self._is_closed or ends_the_task(error):
                raise
            raise ConfigError(f"{self.name} was closed while it was {self.state.value}") from None
        finally:
            self._beginning = None

    async def _begin(self) -> None:
        hooks = self._hooks
        if hooks.load is not None:
            self._turn(NodeState.LOADING)
            await self._called(hooks.load)
        if hooks.warm_up is not None:
            self._turn(NodeState.WARMING)
            await self._called(hooks.warm_up)
        complaint = await self._complaint()
        if complaint is None:
            self._turn(NodeState.READY)
        else:
            self._fail(Trouble.FATAL, complaint)
        if hooks.health is not None:
            self._watch()

    def note(self, error: BaseException) -> None:
        """A handler raised *error*: does it say that the device has failed?"""
        if self.state is not NodeState.READY:
            return
        trouble = trouble_of(error)
        if trouble is not None:
            self._fail(trouble, f"{trouble.value} ({type(error).__name__})")
            self._watch()

    def drain(self) -> None:
        """No new calls are wanted; those under way are finished. A failed service stays failed for its calls."""
        if self.is_open:
            self.state = NodeState.DRAINING

    async def close(self) -> None:
        """Ends the start and the watch. Idempotent."""
        self._is_closed = True
        watching, self._watching = self._watching, None
        tasks = [task for task in (self._beginning, watching, self._asking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._threads.close()

    def _turn(self, state: NodeState, reason: str = "") -> None:
        self.reason = reason
        if state is self.state:
            return
        before, self.state = self.state, state
        if state is NodeState.READY:
            self._ready_at_s = asyncio.get_running_loop().time()
            if before is NodeState.FAILED:
                log.warning("%s is ready again", self.name)
        self._news.set()
        self._tell(state)

    def _fail(self, trouble: Trouble, reason: str) -> None:
        since_ready_s = asyncio.get_running_loop().time() - self._ready_at_s
        if since_ready_s > LONGEST_STAY_S or self.state is not NodeState.READY:
            self._stay_s = SHORTEST_STAY_S
        self._trouble = trouble
        log.error("%s takes no calls: %s; %s", self.name, reason, self._outlook())
        self._turn(NodeState.FAILED, reason)

    def _outlook(self) -> str:
        if self._hooks.health is not None:
            return "until its health check passes"
        if self._hooks.warm_up is not None:
            return "until its warm-up passes"
        if self._trouble is Trouble.OUT_OF_MEMORY:
            return f"for {self._stay_s:g} s"
        return "until the process is restarted (declare a health check or a warm-up to let it come back by itself)"

    def _watch(self) -> None:
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._run(), name=f"life of {self.name}")

    async def _run(self) -> None:
        while True:
            try:
                if self.state is NodeState.FAILED:
                    await self._heal()
                else:
                    await self._look()
            except Exception:
                log.exception("the watch over %s failed; it goes on", self.name)
                await asyncio.sleep(RETRY_AFTER_S)

    async def _look(self) -> None:
        """Waits for news, or for the next check."""
        self._news.clear()
        health = self._hooks.health
        try:
            async with asyncio.timeout(None if health is None else health.every_s):
                await self._news.wait()
        except TimeoutError:
            complaint = await self._complaint()
            if complaint is not None and self.state is NodeState.READY:
                self._fail(Trouble.FATAL, complaint)

    async def _heal(self) -> None:
        await asyncio.sleep(self._stay_s)
        self._stay_s = min(LONGEST_STAY_S, 2 * self._stay_s)
        complaint = await self._complaint()
        if self._hooks.health is None:
            if self._hooks.warm_up is not None:
                complaint = await self._tried(self._hooks.warm_up)
            elif self._trouble is Trouble.FATAL:
                complaint = self.reason  # nothing can tell that it is well
        if self.state is not NodeState.FAILED:
            return
        if complaint is None:
            self._turn(NodeState.READY)
        else:
            self.reason = complaint

    async def _tried(self, warm_up: Callable[[], Any]) -> str | None:
        try:
            await self._called(warm_up)
        except Exception as error:
            return f"the warm-up raised {type(error).__name__}: {error}"
        return None

    async def _complaint(self) -> str | None:
        """What the health check says against this service; None: it is well, or there is none."""
        health = self._hooks.health
        if health is None:
            return None
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._called(health.check))
        done, _ = await asyncio.wait({self._asking}, timeout=health.timeout_s)
        if not done:  # kept: a hanging check is asked again only when it has answered
            return f"its health check has not answered within {health.timeout_s:g} s"
        asked, self._asking = self._asking, None
        error = asked.exception()
        if error is not None:
            return f"its health check raised {type(error).__name__}: {error}"
        answer = asked.result()
        return None if answer is None or answer else f"its health check says {answer!r}"

    async def _called(self, hook: Callable[[], Any]) -> Any:
        """A hook's answer; a plain function runs in a thread, for it may take minutes."""
        try:
            answer = (
                hook()
                if inspect.iscoroutinefunction(hook)
                else await asyncio.wrap_future(self._threads.submit(lambda: _answer(hook)))
            )
            return await answer if inspect.isawaitable(answer) else answer
        except BaseException as error:
            if isinstance(error, Exception) or ends_the_task(error):
                raise
            raise RuntimeError(f"it raised {type(error).__name__}") from error  # as a handler's: it ends no provider


def _answer(hook: Callable[[], Any]) -> Any:
    try:
        return hook()
    except StopIteration as error:  # a future cannot carry it: whoever waits would wait for ever
        raise RuntimeError("it raised StopIteration") from error


class Announcement:
    """Carries a service's state to the registry: the newest, one update at a time, at the registry's own bounded rate
    (``Registration.update``). Never in the way of whoever tells."""

    def __init__(self, registration: Registration) -> None:
        self.registration = registration
        self._wanted = registration.node.state
        self._told = registration.node.state
        self._carrying: asyncio.Task[None] | None = None

    def tell(self, state: NodeState) -> None:
        self._wanted = state
        if state is not self._told and self._carrying is None:
            self._carrying = asyncio.get_running_loop().create_task(self._carry(), name="announcement")

    async def told(self) -> None:
        """Waits until the registry knows, at most TOLD_WITHIN_S: it may be away, and then hears of it later."""
        if self._carrying is not None:
            await asyncio.wait({self._carrying}, timeout=TOLD_WITHIN_S)

    async def close(self) -> None:
        carrying, self._carrying = self._carrying, None
        if carrying is not None:
            carrying.cancel()
            await asyncio.gather(carrying, return_exceptions=True)

    async def _carry(self) -> None:
        try:
            while self._told is not self._wanted:
                state = self._wanted
                try:
                    await self.registration.update(replace(self.registration.node, state=state))
                except RegistryClosed:
                    return
                except Exception as error:
                    log.warning("the registry did not take that %s is %s: %s", self.registration.node, state, error)
                    await asyncio.sleep(RETRY_AFTER_S)
                else:
                    self._told = state
        finally:
            self._carrying = None
