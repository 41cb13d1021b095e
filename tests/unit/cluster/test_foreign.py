"""Who is called plainly from the start, who is asked first."""

from __future__ import annotations

from typing import Any

import pytest

from steelyard.cluster.foreign import is_foreign
from steelyard_registry import Node

OURS = {"wire": "1"}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, False),  # a list of addresses, a name server's answer: nothing is known
        ({"tags": {"pool": "ads"}}, False),
        ({"protocol": "grpc"}, True),
        ({"protocol": "grpc", "tags": OURS}, True),  # whoever says so means it
        ({"started_at_ms": 1, "tags": OURS}, False),
        ({"started_at_ms": 1}, True),  # Dubbo for Java and Go
        ({"methods": ("say",)}, True),
        ({"tags": {"service": "a.B"}}, True),  # Dubbo for Python
    ],
)
def test_what_an_entry_tells(facts: dict[str, Any], expected: bool) -> None:
    assert is_foreign(Node(interface="a.B", host="h", port=1, **facts)) is expected
