"""A fixed list: what its URL says about each address, and that announcing is a documented nothing."""

from __future__ import annotations

import logging

import pytest

from steelyard_registry import Node, ServiceKey, open_registry

URL = "static://10.0.0.1:20880;hw.kind=gpu;weight=200,[fd00::2]:20880;pool=a%2Cb?hw.cores=8&pool=ads"


async def test_facts_of_the_list_and_of_one_address() -> None:
    async with open_registry(URL) as registry:
        view = await registry.subscribe(ServiceKey(interface="ads.Ctr", version="2.0", group="*"))
        first, second = view.snapshot.nodes
    assert (first.address, first.hardware.kind, first.hardware.cores, first.weight) == ("10.0.0.1:20880", "gpu", 8, 200)
    assert (second.address, second.hardware.kind, second.hardware.cores, second.weight) == (
        "[fd00::2]:20880",
        "cpu",
        8,
        100,
    )
    assert (first.tags["pool"], second.tags["pool"]) == ("ads", "a,b")
    assert (first.interface, first.version, first.group) == ("ads.Ctr", "2.0", "")


async def test_it_answers_any_service() -> None:
    async with open_registry("static://h:1") as registry:
        for service in (ServiceKey(interface="a.B"), ServiceKey(interface="c.D", version="*", group="g")):
            view = await registry.subscribe(service)
            assert [node.address for node in view.snapshot.nodes] == ["h:1"]
            assert all(service.accepts(node) for node in view.snapshot.nodes)
        assert await registry.services() == ()


async def test_registering_announces_nothing_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(interface="ads.Ctr", host="10.0.0.9", port=1)
    with caplog.at_level(logging.WARNING):
        async with open_registry("static://h:1") as registry:
            view = await registry.subscribe(ServiceKey(interface="ads.Ctr"))
            entry = await registry.register(node)
            await registry.register(Node(interface="ads.Other", host="10.0.0.9", port=1))
            assert entry.node == node
            assert [found.address for found in view.snapshot.nodes] == ["h:1"]
    assert [record.message for record in caplog.records] == [
        "static:// announces nobody: 10.0.0.9:1 is found only by consumers that list its address"
    ]
