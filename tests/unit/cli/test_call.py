"""A call without the contract: its target, its arguments, and how the answer is shown."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.shop import ShopModel

from steelyard import service
from steelyard.cli.call import Call, Show, run, split_target
from steelyard.cli.failure import Failure, called
from steelyard.errors import InvalidArgument, NoProvider, RemoteError, Unimplemented
from steelyard.testing import LocalCluster


@pytest.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster() as cluster:
        await cluster.provide(ShopModel(), tags={"pool": "ads"})
        yield cluster


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("ads.Ctr.predict", ("ads.Ctr", "predict")),
        ("Ctr.predict", ("Ctr", "predict")),
        ("blue/ads.Ctr:1.0.0.predict", ("blue/ads.Ctr:1.0.0", "predict")),
    ],
)
def test_targets(target: str, parts: tuple[str, str]) -> None:
    assert split_target(target) == parts


@pytest.mark.parametrize("target", ["predict", "", ".predict", "ads.Ctr.", "ads.Ctr:1.0.0"])
def test_targets_that_name_no_method(target: str) -> None:
    with pytest.raises(Failure, match="does not name a method") as caught:
        split_target(target)
    assert caught.value.exit_code == 2


async def answer(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], method: str, arguments: Any, **settings: Any
) -> Any:
    """The JSON document that a call prints."""
    show = Show(is_json=True, width=80)
    asked = {"service": "test.Shop", "registry": cluster.registry_url, "method": method, "arguments": arguments}
    await run(Call(**{**asked, **settings}), show)
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    return json.loads(out)


async def test_values_by_list_and_by_name(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert await answer(cluster, capsys, "scale", [[1, 2.5]]) == [2.0, 5.0]
    assert await answer(cluster, capsys, "scale", {"by": 3, "features": [[1], [2]]}) == [[3.0], [6.0]]
    assert await answer(cluster, capsys, "echo", {"key": 7, "body": "aGVsbG8="}) == "aGVsbG8="
    item = {"name": "lamp", "price": "12.50", "colour": "red", "tags": []}
    number = "12345678123456781234567812345678"
    assert await answer(cluster, capsys, "order", [item, "2024-02-29T12:00:00Z", number]) == {
        "name": "LAMP",
        "price": "25.00",
        "colour": "blue",
        "tags": [],
    }


async def test_streams_are_found_out(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert await answer(cluster, capsys, "count", [4]) == [0, 1, 2, 3]
    assert await answer(cluster, capsys, "blocking_count", [2]) == [0, 1]
    assert await answer(cluster, capsys, "count", [0]) == []


async def test_attachments_and_where(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    got = await answer(cluster, capsys, "attachments", [], attachments={"tenant": "blue"})
    assert got["tenant"] == "blue"
    assert await answer(cluster, capsys, "blocking", [0], expression="tag.pool == 'ads'") == "shop"
    with pytest.raises(NoProvider, match="none fits where"):
        await answer(cluster, capsys, "blocking", [0], expression="tag.pool == 'other'", timeout_s=1.0)


@pytest.mark.parametrize(
    ("method", "arguments", "error", "message"),
    [
        ("nothing", [], Unimplemented, "has no method 'nothing'; it has: attachments, "),
        ("echo", [7], InvalidArgument, r"'body' is missing; it takes \(key, body\)"),
        ("echo", ["7", ""], InvalidArgument, "argument 'key': expected int, got str"),
        ("echo", {"key": 7, "bodi": ""}, InvalidArgument, "'body' is missing"),
        ("broken", [], RemoteError, "ValueError: boom"),
        ("user", [8], RemoteError, "NoSuchUser: 8"),
    ],
)
async def test_what_the_provider_refuses(
    cluster: LocalCluster, method: str, arguments: Any, error: type[Exception], message: str
) -> None:
    call = Call(service="test.Shop", method=method, arguments=arguments, registry=cluster.registry_url)
    with pytest.raises(error, match=message):
        await run(call, Show(is_json=True, width=80))


async def test_an_exception_that_the_service_declares_goes_by_its_own_name(cluster: LocalCluster) -> None:
    call = Call(service="test.Shop", method="user", arguments=[8], registry=cluster.registry_url)
    with pytest.raises(RemoteError) as caught:
        await run(call, Show(is_json=True, width=80))
    node = cluster.providers[0].nodes[0].identity
    assert called(caught.value) == f"NoSuchUser: 8 (declared by the service; node {node})"


async def test_a_bare_name_stands_for_the_only_key(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("test.Shop", "test.Shop:1.0.0"):
        assert await answer(cluster, capsys, "blocking", [0], service=key) == "shop"
    with pytest.raises(NoProvider, match=r"no provider of test\.Shop:2\.0\.0"):
        await answer(cluster, capsys, "blocking", [0], service="test.Shop:2.0.0", timeout_s=1.0)


async def test_a_bare_name_of_two_keys_asks_which(cluster: LocalCluster) -> None:
    twin = service("test.Shop", version="2.0.0")(type("Twin", (ShopModel,), {}))
    await cluster.provide(twin())
    call = Call(service="test.Shop", method="blocking", arguments=[0], registry=cluster.registry_url)
    with pytest.raises(Failure, match=r"registered as test\.Shop:1\.0\.0, test\.Shop:2\.0\.0; say which") as caught:
        await run(call, Show(is_json=True, width=80))
    assert caught.value.exit_code == 2


async def test_nobody_at_all() -> None:
    call = Call(service="no.Such", method="f", arguments=[], registry=f"memory://{uuid.uuid4().hex}")
    with pytest.raises(NoProvider, match=r"no provider of no\.Such is registered"):
        await run(call, Show(is_json=True, width=80))


def test_text_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(is_json=False, width=40)
    show.value({"words": ["a", "b"], "raw": b"x"})
    show.value("two\nlines")
    out, err = capsys.readouterr()
    assert out == '{"words": ["a", "b"], "raw": "eA=="}\ntwo\nlines\n'
    assert "bytes are shown as base64" in err


def test_a_stream_as_text_comes_item_by_item(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(is_json=False, width=80)
    show.open_stream()
    show.item([1])
    assert capsys.readouterr().out == "[1]\n"
    show.close_stream()
    assert capsys.readouterr().out == ""


def test_a_broken_stream_keeps_what_came(capsys: pytest.CaptureFixture[str]) -> None:
    show = Show(is_json=True, width=80)
    show.open_stream()
    show.item(1)
    assert capsys.readouterr().out == ""
    show.failed(RemoteError("boom", node="n"))
    assert json.loads(capsys.readouterr().out) == {
        "status": "UNKNOWN",
        "message": "boom",
        "node": "n",
        "is_remote": False,
        "is_declared": False,
        "items": [1],
    }
