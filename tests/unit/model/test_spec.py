"""A service's key is the one that its nodes carry."""

from __future__ import annotations

import dataclasses

import pytest

from steelyard.model import ServiceSpec
from steelyard_registry.node import Node, ServiceKey


@pytest.mark.parametrize(
    ("version", "group", "key"),
    [("", "", "a.B"), ("1.0", "", "a.B:1.0"), ("", "g", "g/a.B"), ("1.0", "g", "g/a.B:1.0")],
)
def test_the_key_is_that_of_a_node(version: str, group: str, key: str) -> None:
    spec = ServiceSpec(name="a.B", version=version, group=group)
    node = Node(interface="a.B", version=version, group=group, host="h", port=1)
    assert spec.key == key == node.service_key == str(ServiceKey.parse(key))
    assert dataclasses.replace(spec, version="2.0").key == ServiceSpec(name="a.B", version="2.0", group=group).key
