"""What a provider listens on, and what it says that others should connect to."""

from __future__ import annotations

import pytest

from steelyard.provider.announce import hosts


@pytest.mark.parametrize(
    ("host", "listens", "advertises"),
    [
        (None, "127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0", "127.0.0.1"),
        ("::", "::", "127.0.0.1"),
        ("10.1.2.3", "10.1.2.3", "10.1.2.3"),
        ("node-7.example", "node-7.example", "node-7.example"),
    ],
)
def test_only_an_address_that_others_can_connect_to_is_advertised(
    host: str | None, listens: str, advertises: str
) -> None:
    assert hosts(host, "memory://any") == (listens, advertises)
    assert hosts(host, "zookeeper://127.0.0.1:2181") == (listens, advertises)
