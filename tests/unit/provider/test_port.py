"""A port that somebody has is found out before gRPC's core finds out, and writes past every logger."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from support.shop import ShopModel

from steelyard.errors import ListenError
from steelyard.provider.port import require_free
from steelyard.testing import LocalCluster


@pytest.fixture(params=["127.0.0.1", "::1"])
def listening(request: pytest.FixtureRequest) -> Iterator[tuple[str, int, socket.socket]]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as listener:
        try:
            listener.bind((request.param, 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        listener.listen()
        yield request.param, listener.getsockname()[1], listener


def test_a_port_with_a_listener_is_taken(listening: tuple[str, int, socket.socket]) -> None:
    host, port, listener = listening
    with pytest.raises(ListenError, match=rf"cannot listen on \[?{host}\]?:{port}: another process"):
        require_free(host, port)
    listener.close()
    require_free(host, port)


def test_a_port_is_free_again_while_its_last_connections_still_close() -> None:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC's do
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        caller = socket.create_connection(("127.0.0.1", port))
        served, _ = listener.accept()
        served.close()  # first, so the wait for late packets is on this side
        caller.close()
    require_free("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_what_else_is_wrong_is_the_listeners_to_say(host: str) -> None:
    require_free(host, 20880)


async def test_nothing_is_written_past_the_error(capfd: pytest.CaptureFixture[str]) -> None:
    async with LocalCluster() as cluster:
        first = await cluster.provide(ShopModel())
        port = int(first.address.rpartition(":")[2])
        with pytest.raises(ListenError, match="another process"):
            await cluster.provide(ShopModel(), port=port)
    assert capfd.readouterr().err == ""
