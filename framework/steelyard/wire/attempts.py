"""How many attempts to connect again a loop makes, whatever the number of nodes that are dead.

Each channel's back-off is bounded, so that a node that is back is found within seconds; three thousand dead nodes in
a registry are then 1,300 attempts a second, and a core. So the attempts of all channels of a loop stand in one line,
first come first served: everybody's turn comes as soon as the rate allows. Who has news of a node (``Channel.connect``:
a call, or the registry) does not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

PER_S = 250.0
"""An attempt that is refused costs 0.5 to 0.7 ms: an eighth to a sixth of a core. A thousand dead nodes are each tried
every 4 s, which is what their own back-off comes to; with fewer nobody notices this."""
AT_ONCE = 512
"""Attempts at a host that swallows packets take their full time, and cost nothing but a socket."""
_BURST = 25
"""So many may begin in one moment: a provider with a few connections is not to be spread over a second."""


class Attempts:
    """At most *at_once* under way and *per_s* begun a second. Belongs to one loop."""

    def __init__(self, per_s: float = PER_S, at_once: int = AT_ONCE) -> None:
        self._loop = asyncio.get_running_loop()
        self._gap_s = 1.0 / per_s
        self._at_once = at_once
        self._line: dict[asyncio.Future[None], None] = {}  # in the order in which they came
        self._next_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.under_way = 0

    @property
    def waiting(self) -> int:
        """How many stand in the line."""
        return len(self._line)

    @asynccontextmanager
    async def turn(self, hurry: asyncio.Event) -> AsyncIterator[None]:
        """For the length of one attempt; entered when its turn has come, or when *hurry* is set."""
        mine: asyncio.Future[None] = self._loop.create_future()
        self._line[mine] = None
        self._call()
        if not mine.done():
            hurried = asyncio.ensure_future(hurry.wait())
            try:
                await asyncio.wait((mine, hurried), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                if mine.done():
                    self._leave()
                raise
            finally:
                hurried.cancel()
                self._line.pop(mine, None)
            if not mine.done():
                self.under_way += 1
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        self.under_way -= 1
        self._call()

    def _call(self) -> None:
        """Those whose turn it is."""
        now_s = self._loop.time()
        self._next_at_s = max(self._next_at_s, now_s - _BURST * self._gap_s)
        while self._line and self.under_way < self._at_once and self._next_at_s <= now_s:
            mine = next(iter(self._line))
            del self._line[mine]
            self._next_at_s += self._gap_s
            self.under_way += 1
            mine.set_result(None)
        if self._line and self._timer is None and self.under_way < self._at_once:
            self._timer = self._loop.call_at(self._next_at_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._call()


_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, Attempts] = WeakKeyDictionary()


def attempts_of_this_loop() -> Attempts:
    """One line for all channels of the running loop, whoever owns them."""
    loop = asyncio.get_running_loop()
    found = _OF_LOOPS.get(loop)
    if found is None:
        found = _OF_LOOPS[loop] = Attempts()
    return found
