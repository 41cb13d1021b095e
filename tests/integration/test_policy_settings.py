"""A policy's own settings reach it through ``refer``."""

from __future__ import annotations

from typing import Any, Protocol

import pytest

from steelyard import ConfigError, method, service
from steelyard.testing import LocalCluster


@service("test.Where")
class Where(Protocol):
    @method(idempotent=True)
    async def zone(self) -> str: ...


class Here(Where):
    def __init__(self, zone: str) -> None:
        self._zone = zone

    async def zone(self) -> str:
        return self._zone


async def test_zone_aware_stays_in_the_zone_that_it_is_told() -> None:
    async with LocalCluster() as cluster:
        for zone in ("a", "b"):
            await cluster.provide(Here(zone), zone=zone)
        where = cluster.consumer.refer(Where, policy="zone_aware", policy_settings={"zone": "b"})
        await cluster.consumer.ready(where, nodes=2)
        assert [await where.zone() for _ in range(20)] == ["b"] * 20


async def test_zone_aware_stays_where_its_machine_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEELYARD_ZONE", "a")
    async with LocalCluster() as cluster:
        for zone in ("a", "b"):
            await cluster.provide(Here(zone), zone=zone)
        where = cluster.consumer.refer(Where, policy="zone_aware")
        await cluster.consumer.ready(where, nodes=2)
        assert [await where.zone() for _ in range(20)] == ["a"] * 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gian": 0.1}, "policy 'dual' has no setting 'gian'; its settings: .*gain"),
        ({"name": "p2c"}, "policy 'dual' has no setting 'name'"),
        ({"gain": 7}, "gain must be a number in"),
        ({1: 2}, "refer: policy_settings: text, not 1"),
        ("gain=1", "refer: policy_settings: a mapping, or None, not 'gain=1'"),
    ],
)
async def test_wrong_settings_are_refused_at_once(settings: Any, message: str) -> None:
    async with LocalCluster() as cluster:
        with pytest.raises(ConfigError, match=message):
            cluster.consumer.refer(Where, policy_settings=settings)
