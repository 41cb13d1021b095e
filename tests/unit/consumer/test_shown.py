"""Statistics as text: a table that fits a terminal, in which every node has its reason."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from support.shop import Shop, ShopModel

from steelyard.balance import NodeList, Reason
from steelyard.consumer import ReferenceStatistics
from steelyard.guard import Level
from steelyard.testing import LocalCluster


@pytest.fixture
async def statistics() -> AsyncIterator[ReferenceStatistics]:
    async with LocalCluster() as cluster:
        for _ in range(3):
            await cluster.provide(ShopModel())
        shop = cluster.consumer.refer(Shop)
        await cluster.consumer.ready(shop, nodes=3)
        for key in range(9):
            await shop.echo(key, b"")
        cluster.consumer.switch(shop, "off", "echo")
        yield cluster.consumer.statistics(shop)


def test_one_line_a_node(statistics: ReferenceStatistics) -> None:
    text = str(statistics)
    first, *lines = text.splitlines()
    assert first.startswith("test.Shop:1.0.0: 3 nodes, policy dual")
    assert lines[0].startswith("9 calls took 9 attempts: 0 retries")
    assert lines[1] == "switched by hand: echo at off"
    assert lines[2].split() == ["node", "list", "share", "flow", "avail.", "load", "in", "flight", "because"]
    addresses = {line.split()[0] for line in lines[3:]}
    assert addresses == {node.address for node in statistics.snapshot.nodes}
    assert all(len(line) < 160 and line == line.rstrip() for line in text.splitlines())
    assert repr(statistics).startswith("ReferenceStatistics(service='test.Shop:1.0.0', snapshot=Snapshot(")


def test_what_is_wrong_is_said(statistics: ReferenceStatistics) -> None:
    node = replace(
        statistics.balance.nodes[0],
        list=NodeList.REFUSE,
        share=0.01,
        flow_ratio=0.03,
        availability=0.5,
        load=0.87,
        resource="cpu",
        in_flight=4,
        reason=Reason(text="half its calls fail"),
    )
    text = str(
        replace(
            statistics,
            snapshot=replace(statistics.snapshot, is_stale=True, skipped=2, lost=(node.node,)),
            balance=replace(statistics.balance, nodes=(node,), availability=0.5, is_panic=True, diverted_fraction=0.25),
            protection=replace(statistics.protection, level=list(Level)[-1], reason="queues outgrow deadlines"),
        )
    )
    for words in (
        "1 node, policy dual; the registry does not vouch for the list; 1 lost by the registry; 2 entries",
        "availability 50.00%",
        "25.0% of the calls diverted",
        "panic",
        ": queues outgrow deadlines; 0.0% of the calls degraded",
    ):
        assert words in text
    assert text.splitlines()[-1].split() == [
        node.node.address, "refuse", "1.0%", "0.03", "50.0%", "cpu", "87%", "4", "half", "its", "calls", "fail",
    ]  # fmt: skip


def test_without_nodes_there_is_no_table(statistics: ReferenceStatistics) -> None:
    text = str(replace(statistics, balance=replace(statistics.balance, nodes=())))
    assert text.splitlines()[-1] == "no node is known"
