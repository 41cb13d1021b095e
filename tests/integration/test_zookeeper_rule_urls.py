"""Rules as dubbo-admin wrote them up to 2.6: read from a real ZooKeeper, taken apart, and followed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest
from kazoo.client import KazooClient
from support.zookeeper import shared_zookeeper, zookeeper_root

from steelyard_registry import MalformedUrl, RuleUrls, RuleUrlsView, open_registry

pytestmark = pytest.mark.zookeeper
LIVENESS_S = 30.0

OVERRIDE = "override://10.20.153.10:20880/com.foo.BarService?category=configurators&dynamic=false&weight=200&sayHello.timeout=500"
DISABLE = (
    "override://10.20.153.10/com.foo.BarService?category=configurators&dynamic=false&disabled=true&application=foo"
)
CONDITION = "condition://0.0.0.0/com.foo.BarService?category=routers&dynamic=false&force=true&priority=2&rule=" + quote(
    "host = 10.20.153.10 => host = 10.20.153.11", safe=""
)
ROUTE = "route://0.0.0.0/com.foo.BarService?category=routers&router=condition&enabled=false&rule=" + quote(
    "=> zone = a"
)


@pytest.fixture
def url() -> Iterator[str]:
    with zookeeper_root(own_session=True) as url:
        yield url


@pytest.fixture
def operator() -> Iterator[KazooClient]:
    with shared_zookeeper().client() as client:
        yield client


async def until(view: RuleUrlsView, wanted: Callable[[RuleUrls], object]) -> RuleUrls:
    async with asyncio.timeout(LIVENESS_S):
        while not wanted(view.rules):
            await view.changed(view.rules.version)
    return view.rules


async def test_overrides_and_routes_are_read_and_followed(url: str, operator: KazooClient) -> None:
    root = "/" + url.rpartition("/")[2].partition("?")[0]
    folders = {category: f"{root}/com.foo.BarService/{category}" for category in ("configurators", "routers")}
    async with open_registry(url) as registry:
        overrides = await registry.rule_urls("com.foo.BarService", "configurators")
        routers = await registry.rule_urls("com.foo.BarService", "routers")
        assert (overrides.rules.urls, overrides.rules.is_stale) == ((), False)
        for each in (OVERRIDE, DISABLE):
            operator.create(f"{folders['configurators']}/{quote(each, safe='')}", makepath=True)
        for each in (CONDITION, ROUTE):
            operator.create(f"{folders['routers']}/{quote(each, safe='')}", makepath=True)
        found = (await until(overrides, lambda rules: len(rules.urls) == 2)).urls
        by_port = {rule.port: rule for rule in found}
        assert dict(by_port[20880].values) == {"weight": "200", "sayHello.timeout": "500"}
        assert (by_port[20880].host, by_port[20880].interface) == ("10.20.153.10", "com.foo.BarService")
        assert dict(by_port[0].values) == {"disabled": "true"}
        assert by_port[0].application == "foo"
        route, condition = (await until(routers, lambda rules: len(rules.urls) == 2)).urls
        assert (condition.rule, condition.is_forced, condition.priority) == (
            "host = 10.20.153.10 => host = 10.20.153.11",
            True,
            2,
        )
        assert (route.kind, route.rule, route.is_enabled) == ("condition", "=> zone = a", False)

        broken = [
            "%zz",
            "override%3A%2F%2Fa%20b%2Fx.Y",
            quote("condition://0.0.0.0/x.Y?category=routers"),
            "x" * 100_000,
        ]
        broken += [quote("override://0.0.0.0/x.Y?enabled=perhaps", safe=""), quote("override://0.0.0.0", safe="")]
        for name in broken:
            operator.create(f"{folders['configurators']}/{quote(name, safe='%')}")
        await until(overrides, lambda rules: rules.skipped == len(broken) and len(rules.urls) == 2)
        operator.delete(f"{folders['configurators']}", recursive=True)
        await until(overrides, lambda rules: not rules.urls and not rules.skipped)
        with pytest.raises(MalformedUrl, match="configurators and routers"):
            await registry.rule_urls("com.foo.BarService", "providers")
