"""Load reports: what a sampler on each node says once a period, as late, noisy or wrong as the scenario wants."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from random import Random

from steelyard.model import LoadReport

from .client import Client
from .kernel import Kernel
from .sampling import gauss
from .scenario import Reports
from .server import Server


class Reporter:
    """Reports of one server to all clients, from a phase of its own."""

    def __init__(
        self, kernel: Kernel, server: Server, clients: Sequence[Client], settings: Reports, chance: Random
    ) -> None:
        self._kernel = kernel
        self._server = server
        self._heard = [client.policy.report for client in clients]
        self._settings = settings
        self._dice = chance.random
        self._distortion: str | None = None
        self._last: LoadReport | None = None
        self._busy_s = 0.0
        self._served = 0
        self._at_s = 0.0
        kernel.every(settings.period_s, settings.period_s * chance.random(), self._report)

    def distort(self, kind: str | None) -> None:
        """``silent``, ``zero``, ``nan``, ``frozen``; None: right again."""
        self._distortion = kind

    def _report(self) -> None:
        server, now_s = self._server, self._kernel.now_s
        busy_s, before_s = server.busy_until_now(), self._busy_s
        level = server.utilization(busy_s - before_s, now_s - self._at_s)
        elapsed_s = now_s - self._at_s
        calls_per_s = (server.served - self._served) / elapsed_s if elapsed_s > 0 else 0.0
        self._served = server.served
        self._busy_s, self._at_s = busy_s, now_s
        if server.is_down or server.is_paused or self._distortion == "silent":
            return
        level = max(0.0, level * (1.0 + self._settings.noise * gauss(self._dice)))
        report = self._said(level, calls_per_s)
        self._last = report
        self._kernel.at(now_s + self._settings.lag_s, self._deliver, report)

    def _said(self, level: float, calls_per_s: float) -> LoadReport:
        match self._distortion:
            case "zero":
                level = 0.0
            case "nan":
                level = nan
            case "frozen" if self._last is not None:
                return self._last
        return LoadReport(
            utilization={self._server.resource: level}, in_flight=self._server.in_flight, calls_per_s=calls_per_s
        )

    def _deliver(self, report: LoadReport) -> None:
        address, now_s = self._server.node.address, self._kernel.now_s
        for hear in self._heard:
            hear(address, report, now_s)
