"""Service keys: written, read, matched."""

from __future__ import annotations

import pytest

from steelyard_registry import Node, ServiceKey


@pytest.mark.parametrize("text", ["ads.Ctr", "ads.Ctr:1.0.0", "blue/ads.Ctr", "blue/ads.Ctr:1.0.0"])
def test_a_service_key_reads_what_it_writes(text: str) -> None:
    assert str(ServiceKey.parse(text)) == text


def test_version_and_group_must_match_and_a_star_takes_any() -> None:
    node = Node(interface="ads.Ctr", host="h", port=1, version="1.0", group="blue")
    assert ServiceKey(interface="ads.Ctr", version="1.0", group="blue").accepts(node)
    assert ServiceKey(interface="ads.Ctr", version="*", group="*").accepts(node)
    assert not ServiceKey(interface="ads.Ctr", version="1.0").accepts(node)
    assert not ServiceKey(interface="ads.Ctr", group="blue").accepts(node)
    assert not ServiceKey(interface="ads.Other", version="*", group="*").accepts(node)


def test_identity_is_service_key_and_address() -> None:
    node = Node(interface="ads.Ctr", host="fd00::1", port=1, version="1.0", group="blue")
    assert node.identity == "blue/ads.Ctr:1.0@[fd00::1]:1"
