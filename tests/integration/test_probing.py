"""Policies that ask the providers: probes over real connections, and rates in real load reports."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from support.wires import until

from steelyard import RpcError, method, service
from steelyard.balance import Candidate, ProbingPolicy, make_policy, policy_names
from steelyard.model import LoadReport
from steelyard.testing import LocalCluster
from steelyard.wire import Channel


@service("test.Pace")
class Pace:
    """Takes *seconds* a call, and fails every *fails*-th."""

    def __init__(self, seconds: float, fails: int = 0) -> None:
        self.seconds = seconds
        self.fails = fails
        self.calls = 0

    @method(idempotent=True)
    async def step(self) -> bytes:
        self.calls = number = self.calls + 1
        await asyncio.sleep(self.seconds)
        if self.fails and number % self.fails == 0:
            raise ValueError("broken")
        return b""


async def run(pace: Any, calls: int, every_s: float = 0.002) -> None:
    """An open arrival of *calls*."""
    async with asyncio.TaskGroup() as group:
        for _ in range(calls):
            group.create_task(pace.step())
            await asyncio.sleep(every_s)


async def test_prequal_finds_the_slow_node_by_its_probes() -> None:
    async with LocalCluster() as cluster:
        nodes = [Pace(0.15), Pace(0.005), Pace(0.005), Pace(0.005)]
        for node in nodes:
            await cluster.provide(node)
        pace = cluster.consumer.refer(Pace, policy="prequal", hedging=False)
        await cluster.consumer.ready(pace, nodes=4)
        await run(pace, 600)
        statistics = cluster.consumer.statistics(pace)
        assert statistics.probes is not None
        probes = statistics.probes
        # Three a call are wanted; those to a node that owes an answer wait for that one.
        assert 3 * 600 <= probes.asked <= 3 * 600 + 60
        assert 0.1 * probes.asked < probes.sent <= probes.asked
        await until(lambda: _under_way(cluster, pace) == 0)
        after = cluster.consumer.statistics(pace).probes
        assert after is not None
        assert after.answered == after.sent
        assert f"{after.answered} answered" in str(cluster.consumer.statistics(pace))
        assert sum(node.calls for node in nodes) == 600
        assert nodes[0].calls < 0.5 * 600 / 4, f"calls by node: {[node.calls for node in nodes]}"


def _under_way(cluster: LocalCluster, pace: Any) -> int:
    probes = cluster.consumer.statistics(pace).probes
    assert probes is not None
    return probes.under_way


async def test_an_idle_consumer_still_probes_once_a_second_and_stops_with_its_reference() -> None:
    async with LocalCluster() as cluster:
        for _ in range(2):
            await cluster.provide(Pace(0.0))
        pace = cluster.consumer.refer(Pace, policy="prequal")
        await cluster.consumer.ready(pace, nodes=2)

        def answered() -> int:
            probes = cluster.consumer.statistics(pace).probes
            return 0 if probes is None else probes.answered

        await until(lambda: answered() >= 2)
        before = asyncio.all_tasks()
        await pace.step()
        await until(lambda: answered() >= 4)
        assert asyncio.all_tasks() - before == set(), "a probe is no task"


def test_who_wants_probes_is_asked_by_what_it_does_and_not_by_its_name() -> None:
    assert [name for name in policy_names() if isinstance(make_policy(name), ProbingPolicy)] == ["prequal"]


async def test_a_policy_that_breaks_on_an_answer_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with LocalCluster() as cluster:
        await cluster.provide(Pace(0.0))
        pace = cluster.consumer.refer(Pace, policy="prequal")
        await cluster.consumer.ready(pace)
        policy = cluster.consumer._references[0]._policy

        def break_down(candidate: Candidate, now_s: float, **facts: Any) -> None:
            raise ValueError("broken law")

        policy.probed = break_down  # type: ignore[attr-defined]
        await pace.step()
        await until(lambda: "could not be taken" in caplog.text)
        await pace.step()
        assert next(iter(cluster.consumer._channels.states().values())).value == "ready"  # type: ignore[union-attr]


async def test_a_report_tells_the_providers_own_rates_and_the_policy_weighs_by_them() -> None:
    async with LocalCluster() as cluster:
        busy, failing = Pace(0.0), Pace(0.0, fails=2)
        for node in (busy, failing):
            await cluster.provide(node, utilization={"model": lambda: 0.5})
        callers = [cluster.consumer.refer(Pace, policy="round_robin", retries=0, protection=None) for _ in range(2)]
        for pace in callers:
            await cluster.consumer.ready(pace, nodes=2)
        reports: dict[str, LoadReport] = {}
        watches = [
            Channel(provider.address, on_load=lambda report, at=provider.address: reports.__setitem__(at, report))
            for provider in cluster.providers
        ]
        for watch in watches:
            await watch.connect()

        async def drive() -> None:
            while True:
                await asyncio.gather(*(pace.step() for pace in callers), return_exceptions=True)
                await asyncio.sleep(0.01)

        driving = asyncio.ensure_future(drive())
        try:
            await until(lambda: len([one for one in reports.values() if one.calls_per_s and one.utilization]) == 2)
            reports.clear()  # a full period each
            await until(lambda: len(reports) == 2)
        finally:
            driving.cancel()
            for watch in watches:
                await watch.close()
        well, sick = (reports[provider.address] for provider in cluster.providers)
        assert well.errors_per_s == 0.0
        assert well.calls_per_s
        assert sick.calls_per_s
        assert sick.errors_per_s
        assert sick.errors_per_s / sick.calls_per_s == pytest.approx(0.5, abs=0.1)
        statistics = cluster.providers[1].statistics()
        assert statistics.errors == pytest.approx(statistics.calls / 2, abs=1)
        policy = make_policy("weighted_round_robin", blackout_s=0.0)
        policy.set_nodes([provider.nodes[0] for provider in cluster.providers], 0.0)
        for provider in cluster.providers:
            policy.report(provider.address, reports[provider.address], 1.0)
        policy.tick(1.0)
        picked = [policy.pick(1.0, random.Random(1).random) for _ in range(300)]
        sick_share = sum(one is not None and one.node.address == cluster.providers[1].address for one in picked) / 300
        load = [
            max(report.utilization[name] for name in ("model", "cpu") if name in report.utilization)
            for report in (well, sick)
        ]
        weights = [well.calls_per_s / load[0], sick.calls_per_s / (load[1] + sick.errors_per_s / sick.calls_per_s)]
        assert sick_share == pytest.approx(weights[1] / sum(weights), abs=0.05)
        assert sick_share < 0.45


async def test_a_call_that_fails_is_an_error_of_the_node_only_where_it_is_not_an_answer() -> None:
    async with LocalCluster() as cluster:
        provider = await cluster.provide(Pace(0.0, fails=1))
        pace = cluster.consumer.refer(Pace, retries=0)
        await cluster.consumer.ready(pace)
        for _ in range(3):
            with pytest.raises(RpcError):
                await pace.step()
        assert (provider.statistics().calls, provider.statistics().errors) == (3, 3)
