"""What ``nodes`` shows of a survey, as a document and as a table."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from steelyard.balance import Objective, Reason, make_policy
from steelyard.cli.nodes import Asked, document, nothing, table
from steelyard.cli.survey import Load, Reach, ServiceSight, Sight, Survey
from steelyard.model import LoadReport
from steelyard_registry import Hardware, Node, NodeState

GPU = Node(
    interface="ads.Ctr",
    version="1.0.0",
    host="10.0.0.1",
    port=20880,
    zone="a",
    started_at_ms=1_700_000_000_000,
    methods=("predict",),
    tags={"pool": "ads"},
    hardware=Hardware(kind="gpu", accelerators=("H100", "H100"), cores=8.0, quota=0.5, memory_bytes=16 << 30),
)
CPU = Node(interface="ads.Ctr", version="1.0.0", host="fd00::2", port=20880, state=NodeState.DRAINING, weight=50)


def survey(*, is_stale: bool = False, skipped: int = 0) -> Survey:
    policy = make_policy("dual")
    policy.set_nodes([GPU, CPU], 0.0)
    laws = {each.identity: each for each in policy.statistics(0.0).nodes}
    report = LoadReport({"cpu": 0.123, "gpu": 0.95}, in_flight=3, queue_depth=2)
    told = Load(reach=Reach.REPORTED, report=report, age_s=0.25)
    away = Load(reach=Reach.UNREACHABLE, reason="connection refused")
    sights = (
        Sight(node=GPU, load=told, law=laws[GPU.identity]),
        Sight(node=CPU, load=away, law=laws[CPU.identity]),
    )
    service = ServiceSight(service="ads.Ctr:1.0.0", nodes=sights, is_stale=is_stale, skipped=skipped, load_ref=0.5)
    moment = datetime.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=datetime.UTC)
    return Survey(registry="embedded:///x", policy="dual", observed_at=moment, services=(service,))


def drawn(seen: Survey, width: int) -> str:
    console = Console(file=StringIO(), width=width, color_system=None)
    console.print(table(seen, width, Asked(registry=None)))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_document() -> None:
    found = json.loads(json.dumps(document(survey()), allow_nan=False))
    (service,) = found.pop("services")
    note = found["observer"].pop("note")
    assert "each consumer has lists of its own" in note
    assert found == {
        "registry": "embedded:///x",
        "observed_at": "2024-02-29T12:00:00.123+00:00",
        "observer": {"policy": "dual"},
    }
    gpu, cpu = service.pop("nodes")
    assert service == {"service": "ads.Ctr:1.0.0", "is_stale": False, "skipped": 0, "load_ref": 0.5}
    assert gpu == {
        "address": "10.0.0.1:20880",
        "state": "ready",
        "zone": "a",
        "weight": 100,
        "application": "",
        "protocol": "tri",
        "started_at": "2023-11-14T22:13:20.000+00:00",
        "methods": ["predict"],
        "tags": {"pool": "ads"},
        "hardware": {
            "kind": "gpu",
            "model": "",
            "cores": 8.0,
            "quota": 0.5,
            "memory_bytes": 17179869184,
            "accelerators": ["H100", "H100"],
        },
        "load": {
            "status": "reported",
            "reason": "",
            "utilization": {"cpu": 0.123, "gpu": 0.95},
            "in_flight": 3,
            "queue_depth": 2,
            "age_s": 0.25,
        },
        "observer": {
            "list": "neutral",
            "flow_ratio": 1.0,
            "share": 1.0,
            "base_share": 1.0,
            "passes": 1.0,
            "reason": "",
        },
    }
    assert (cpu["address"], cpu["started_at"], cpu["load"]["status"]) == ("[fd00::2]:20880", None, "unreachable")
    assert cpu["load"]["utilization"] is None


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_fits_and_says_everything(width: int) -> None:
    text = drawn(survey(), width)
    assert max(map(len, text.splitlines())) <= width
    plain = " ".join(text.split())
    for fact in (
        "ads.Ctr:1.0.0 2 nodes, mean load 50 %",
        "10.0.0.1:20880",
        "[fd00::2]:20880",
        "gpu 2x H100,",
        "16 GiB",
        "pool=ads",
        "cpu 12 %, gpu",
        "3+2",
        "draining, weight 50",
        "unreachable",
        "[fd00::2]:20880: connection refused",
        "each consumer has lists of its own",
    ):
        assert fact in plain, fact


def test_a_node_that_is_to_drain_is_named_with_what_it_told() -> None:
    seen = survey()
    (service,) = seen.services
    sight = service.nodes[0]
    assert sight.law is not None
    long_queue = Reason(objective=Objective.QUEUE, text="told of 40 calls, 5 being its part: takes 45% of its draws")
    law = replace(sight.law, passes=0.45, long_queue=long_queue)
    full = replace(seen, services=(replace(service, nodes=(replace(sight, law=law), service.nodes[1])),))
    assert f"10.0.0.1:20880: {long_queue.text}" in drawn(full, 140)
    observed = document(full)["services"][0]["nodes"][0]["observer"]
    assert (observed["passes"], observed["reason"]) == (0.45, long_queue.text)


def test_the_table_says_what_the_registry_cannot_vouch_for() -> None:
    text = drawn(survey(is_stale=True, skipped=1), 140)
    assert "stale: the registry does not vouch for this list now" in text
    assert "1 entry could not be read" in text


@pytest.mark.parametrize(
    ("registry", "asked", "message"),
    [
        ("embedded:///x", {}, "nothing is registered at embedded:///x; start a provider with `steelyard serve`"),
        (
            "embedded:///x",
            {"service": "a.B"},
            "no provider of a.B is registered at embedded:///x; without a name, all services are shown",
        ),
        ("embedded:///x", {"expression": "zone == 'q'"}, "fits --where \"zone == 'q'\""),
        ("static://h:1", {}, "does not know what its nodes serve; name it: steelyard nodes SERVICE"),
    ],
)
def test_nothing_to_show_says_why(registry: str, asked: dict[str, str], message: str) -> None:
    empty = Survey(registry=registry, policy="dual", observed_at=datetime.datetime.now(datetime.UTC), services=())
    assert message in nothing(empty, Asked(registry=registry, **asked))
