"""Recorder: what happened in a run, raw, by second; what it means is said in ``measure``."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from .call import Call, Ending
from .kernel import Kernel
from .server import Server

WATCHED = 1 << 12


class Recorder:
    """Columns per call (when it was over, how long its caller waited, how it ended, whether a watched node answered),
    and per second and node (attempts sent, those that a process took, busy seconds, in flight)."""

    def __init__(self, kernel: Kernel, servers: Sequence[Server]) -> None:
        self.servers = servers
        self.over_at_s = array("d")
        self.latency_s = array("d")
        self.code = array("h")  # ending, priority and whether a watched node answered: bits 0-3, 4-11, 12
        self.sent: list[array[int]] = []
        self.taken: list[array[int]] = []
        self.busy: list[array[float]] = []
        self.in_flight: list[array[int]] = []
        self.lookups: list[tuple[int, int]] = []
        self.retries = 0
        self.retried: list[int] = []
        self.places: dict[int, dict[Server, int]] = {}
        self.placed_before: dict[int, dict[Server, int]] = {}
        self.is_placing = False
        self._kernel = kernel
        self._last_sent = [0] * len(servers)
        self._last_taken = [0] * len(servers)
        self._last_busy = [0.0] * len(servers)
        self._last_lookups = (0, 0)
        self._last_retries = 0
        self._watched = frozenset(server.node.identity for server in servers if server.watched)
        self._add_over, self._add_latency, self._add_code = (
            self.over_at_s.append,
            self.latency_s.append,
            self.code.append,
        )
        kernel.every(1.0, 1.0, self._second)

    def over(self, call: Call, now_s: float, ending: Ending) -> None:
        self._add_over(now_s)
        self._add_latency(now_s - call.began_at_s)
        code = ending + call.priority * 16
        if self._watched and call.candidate is not None and call.candidate.identity in self._watched:
            code += WATCHED
        self._add_code(code)

    def placed(self, key: int, server: Server) -> None:
        """A first attempt of a call with *key* went to *server*."""
        if self.is_placing:
            counts = self.places.setdefault(key, {})
            counts[server] = counts.get(server, 0) + 1

    def start_placing(self, _: object = None) -> None:
        """From now on, remember where each key goes."""
        self.is_placing, self.places = True, {}

    def stop_placing(self, _: object = None) -> None:
        self.is_placing = False
        self.placed_before, self.places = self.places, {}

    def moved(self) -> tuple[int, int]:
        """(keys whose home in the second stretch is not the one in the first, keys seen in both). A key's home is the
        node that got most of its calls: a call that passes by a full node for once does not move the key."""
        both = [key for key in self.placed_before if key in self.places]
        return sum(_home(self.placed_before[key]) is not _home(self.places[key]) for key in both), len(both)

    def _second(self) -> None:
        servers = self.servers
        sent = [server.sent for server in servers]
        taken = [server.taken for server in servers]
        busy = [server.busy_until_now() for server in servers]
        self.sent.append(array("l", [new - old for new, old in zip(sent, self._last_sent, strict=True)]))
        self.taken.append(array("l", [new - old for new, old in zip(taken, self._last_taken, strict=True)]))
        self.busy.append(array("d", [new - old for new, old in zip(busy, self._last_busy, strict=True)]))
        self.in_flight.append(array("l", [server.in_flight for server in servers]))
        lookups = (sum(server.hits for server in servers), sum(server.misses for server in servers))
        self.lookups.append((lookups[0] - self._last_lookups[0], lookups[1] - self._last_lookups[1]))
        self.retried.append(self.retries - self._last_retries)
        self._last_sent, self._last_taken, self._last_busy, self._last_lookups = sent, taken, busy, lookups
        self._last_retries = self.retries


def _home(counts: dict[Server, int]) -> Server:
    return max(counts, key=lambda server: counts[server])
