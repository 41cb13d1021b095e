"""Client and bidirectional streams, and the carriers, through the whole pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from support.wires import until

from steelyard import BlockingConsumer, Consumer, Provider, method, service
from steelyard.errors import ContractError, InvalidArgument, Unavailable
from steelyard.wire import CARRIERS, ChannelState


@service("test.Ledger")
class Ledger(Protocol):
    @method()
    async def total(self, start: int, amounts: AsyncIterator[int]) -> int: ...

    @method()
    def running(self, amounts: AsyncIterator[int], factor: int = 1) -> AsyncIterator[int]: ...

    @method()
    async def first(self, amounts: AsyncIterator[int]) -> int: ...

    @method(raises=(LookupError,))
    async def refuse(self, amounts: AsyncIterator[int]) -> int: ...


class LedgerModel(Ledger):
    def __init__(self) -> None:
        self.cancelled = 0

    async def total(self, start: int, amounts: AsyncIterator[int]) -> int:
        try:
            async for amount in amounts:
                start += amount
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return start

    async def running(self, amounts: AsyncIterator[int], factor: int = 1) -> AsyncIterator[int]:
        so_far = 0
        try:
            async for amount in amounts:
                so_far += amount * factor
                yield so_far
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def first(self, amounts: AsyncIterator[int]) -> int:
        return await anext(amounts)

    async def refuse(self, amounts: AsyncIterator[int]) -> int:
        raise LookupError("no")


class Amounts:
    """1, 2, 3, ... for ever or up to *last*."""

    def __init__(self, last: int = 10**9, pause_s: float = 0.0) -> None:
        self.last, self.pause_s = last, pause_s
        self.is_closed = False

    async def stream(self) -> AsyncIterator[int]:
        try:
            for number in range(1, self.last + 1):
                yield number
                if self.pause_s:
                    await asyncio.sleep(self.pause_s)
        finally:
            self.is_closed = True


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded://{tmp_path}/registry.db"


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_all_four_shapes_over_every_carrier(url: str, carrier: str) -> None:
    model = LedgerModel()
    async with Provider(url) as provider, Consumer(url, carrier=carrier) as consumer:
        await provider.export(model)
        ledger = consumer.refer(Ledger)
        await consumer.ready(ledger)
        assert await ledger.total(5, Amounts(100).stream()) == 5 + 5050
        assert await ledger.total(0, [1, 2, 3]) == 6  # type: ignore[arg-type]
        assert [each async for each in ledger.running(Amounts(4).stream(), factor=2)] == [2, 6, 12, 20]
        endless = Amounts(pause_s=0.001)
        assert await ledger.first(endless.stream()) == 1
        await until(lambda: endless.is_closed)
        with pytest.raises(LookupError, match="no"):
            await ledger.refuse(Amounts(pause_s=0.001).stream())
        await until(lambda: provider.in_flight == 0)


async def test_cancelling_reaches_both_ends(url: str, carrier: str) -> None:
    model = LedgerModel()
    async with Provider(url) as provider, Consumer(url, carrier=carrier) as consumer:
        await provider.export(model)
        ledger = consumer.refer(Ledger)
        await consumer.ready(ledger)
        endless = Amounts(pause_s=0.001)
        task = asyncio.ensure_future(ledger.total(0, endless.stream()))
        await until(lambda: provider.in_flight == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: endless.is_closed and model.cancelled == 1)
        both_ways = Amounts(pause_s=0.001)
        answers: Any = ledger.running(both_ways.stream())
        assert await anext(answers) == 1
        await answers.aclose()
        await until(lambda: both_ways.is_closed and provider.in_flight == 0)


async def test_a_wrong_item_is_its_callers_fault(url: str) -> None:
    async with Provider(url) as provider, Consumer(url) as consumer:
        await provider.export(LedgerModel())
        ledger: Any = consumer.refer(Ledger)
        await consumer.ready(ledger)
        with pytest.raises(InvalidArgument, match="an item of the caller's stream"):
            await ledger.total(0, ["one"])
        with pytest.raises(InvalidArgument, match="cannot be sent"):
            await ledger.total(0, [object()])
        with pytest.raises(InvalidArgument, match="'amounts' is a stream"):
            await ledger.total(0, 7)
        assert await ledger.total(0, []) == 0


async def test_a_stream_that_was_begun_is_not_sent_twice(url: str) -> None:
    taken = 0

    async def amounts() -> AsyncIterator[int]:
        nonlocal taken
        for number in range(10**9):
            taken += 1
            yield number
            await asyncio.sleep(0.001)

    async with Consumer(url) as consumer:
        async with Provider(url, drain_s=0) as provider:
            await provider.export(LedgerModel())
            ledger = consumer.refer(Ledger)
            await consumer.ready(ledger)
            call = asyncio.ensure_future(ledger.total(0, amounts()))
            await until(lambda: taken > 5)
        with pytest.raises(Unavailable):
            await call
        before = taken
        await asyncio.sleep(0.05)
        assert taken == before


def test_a_blocking_consumer_gives_any_iterable(url: str) -> None:
    def amounts() -> Iterator[int]:
        yield from range(5)

    started: asyncio.Future[None] | Any = None

    async def serve(stop: asyncio.Event) -> None:
        async with Provider(url) as provider:
            await provider.export(LedgerModel())
            started.set()
            await stop.wait()

    import threading

    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(stop)))
    thread.start()
    try:
        assert started.wait(20)
        with BlockingConsumer(url) as consumer:
            ledger: Any = consumer.refer(Ledger)
            consumer.ready(ledger)
            assert ledger.total(1, amounts()) == 11
            assert list(ledger.running([1, 2, 3])) == [1, 3, 6]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def test_an_implementation_that_blocks_cannot_take_a_stream(url: str) -> None:
    class Blocking(LedgerModel):
        def total(self, start: int, amounts: Any) -> int:  # type: ignore[override]
            return start

    async with Provider(url) as provider:
        with pytest.raises(ContractError, match=r"takes a stream and so has to be asynchronous|it is unary"):
            await provider.export(Blocking())


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_a_node_that_is_known_is_connected_before_it_is_called(url: str, carrier: str) -> None:
    async with Provider(url) as provider, Consumer(url, carrier=carrier) as consumer:
        await provider.export(LedgerModel())
        await consumer.ready(consumer.refer(Ledger))
        assert consumer._channels is not None
        channels = consumer._channels
        await until(lambda: list(channels.states().values()) == [ChannelState.READY], within_s=60)
        assert provider.in_flight == 0


async def test_the_lane_is_taken_and_can_be_switched_off(url: str) -> None:
    async with Provider(url) as provider, Consumer(url) as consumer:
        node = await provider.export(LedgerModel())
        assert "tcp:" in node.tags["lane"]
        ledger = consumer.refer(Ledger)
        await consumer.ready(ledger)
        assert await ledger.total(0, [1]) == 1  # type: ignore[arg-type]
        assert consumer._channels is not None
        assert set(consumer._channels.carriers().values()) <= {"uds", "tcp"}
    async with Provider(url, lane_port=None) as provider, Consumer(url) as consumer:
        node = await provider.export(LedgerModel())
        assert "lane" not in node.tags
        ledger = consumer.refer(Ledger)
        await consumer.ready(ledger)
        assert await ledger.total(0, [1]) == 1  # type: ignore[arg-type]
        assert consumer._channels is not None
        assert set(consumer._channels.carriers().values()) == {"grpc"}


async def test_a_lane_that_cannot_be_taken_costs_no_call(url: str) -> None:
    """The tag names a port where nobody listens, and one where somebody listens who never answers."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        for lane in ("tcp:1", "uds:/nowhere/x.sock", "tcp:nonsense", "pigeon:7", f"tcp:{port}"):
            async with Provider(url, tags={"lane": lane}) as provider, Consumer(url) as consumer:
                await provider.export(LedgerModel())
                ledger = consumer.refer(Ledger)
                await consumer.ready(ledger)
                assert await ledger.total(0, [1]) == 1, lane  # type: ignore[arg-type]
                assert consumer._channels is not None
                assert set(consumer._channels.carriers().values()) == {"grpc"}
    finally:
        server.close()


async def test_a_lane_that_leads_to_another_provider_is_not_taken(url: str) -> None:
    async with Provider(url) as other:
        await other.export(LedgerModel())
        lane = other.nodes[0].tags["lane"]
        async with Provider(url, tags={"lane": lane}) as provider, Consumer(url) as consumer:
            node = await provider.export(LedgerModel())
            ledger = consumer.refer(Ledger, where=f"port == {node.port}")
            await consumer.ready(ledger)
            assert await ledger.total(0, [1]) == 1  # type: ignore[arg-type]
            assert consumer._channels is not None
            assert consumer._channels.carriers() == {node.address: "grpc"}
