"""From the name that came over the wire to the service that is meant, or to words that say what there is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from support.otel import Recorder

from steelyard import ConfigError, Unimplemented, method, service
from steelyard.model import Invocation
from steelyard.provider.dispatch import Dispatcher
from steelyard.provider.pool import HandlerPool
from steelyard.service import bind, service_spec
from steelyard.telemetry import Telemetry


@service("t.One", version="1.0.0")
class One:
    @method
    async def which(self) -> str:
        return type(self).__name__


@service("t.One", version="2.0.0", group="g")
class Two:
    @method
    async def which(self) -> str:
        return type(self).__name__


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    pool = HandlerPool(1, 1, time.monotonic)
    yield Dispatcher(Telemetry(), pool, time.monotonic, lambda: "host:1")
    pool.close()


def add(dispatcher: Dispatcher, *contracts: type) -> None:
    for contract in contracts:
        dispatcher.add(service_spec(contract), bind(service_spec(contract), contract()))


async def ask(dispatcher: Dispatcher, service: str, method: str = "which") -> bytes | None:
    return (await dispatcher(Invocation(service, method, body=b"\x90"))).body


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        ("t.One:1.0.0", b"\xa3One"),
        ("g/t.One:2.0.0", b"\xa3Two"),
        ("t.One:*", b"\xa3One"),
        ("g/t.One:*", b"\xa3Two"),
        ("*/t.One:2.0.0", b"\xa3Two"),
        ("*/t.One:*", b"\xa3One"),
    ],
)
async def test_versions_and_groups_are_told_apart_and_a_star_takes_any(
    dispatcher: Dispatcher, asked: str, answers: bytes
) -> None:
    add(dispatcher, One, Two)
    assert await ask(dispatcher, asked) == answers


async def test_the_interface_alone_is_enough_while_it_is_the_only_one(dispatcher: Dispatcher) -> None:
    add(dispatcher, Two)
    assert await ask(dispatcher, "t.One") == b"\xa3Two"
    add(dispatcher, One)
    with pytest.raises(Unimplemented, match=r"'t.One' is exported as g/t.One:2.0.0, t.One:1.0.0; name the version"):
        await ask(dispatcher, "t.One")
    dispatcher.remove(service_spec(Two))
    assert await ask(dispatcher, "t.One") == b"\xa3One"


@pytest.mark.parametrize("asked", ["t.One:3", "x/t.One:*", "t.Two", "", "*", "/:", "*/*:*"])
async def test_what_is_not_there_is_answered_with_what_is(dispatcher: Dispatcher, asked: str) -> None:
    with pytest.raises(Unimplemented, match="exported: nothing"):
        await ask(dispatcher, asked)
    add(dispatcher, One, Two)
    with pytest.raises(Unimplemented, match=r"exported: g/t.One:2.0.0, t.One:1.0.0"):
        await ask(dispatcher, asked)


async def test_an_unknown_method_and_a_second_export(dispatcher: Dispatcher) -> None:
    add(dispatcher, One)
    with pytest.raises(Unimplemented, match=r"t.One:1.0.0 has no method 'what'; it has: which"):
        await ask(dispatcher, "t.One:1.0.0", "what")
    with pytest.raises(ConfigError, match=r"t.One:1.0.0 is exported already"):
        add(dispatcher, One)


class Blocking:
    def which(self) -> str:
        return "a thread's"


async def test_nothing_of_a_removed_service_meets_the_next_one_of_its_name(dispatcher: Dispatcher) -> None:
    spec = service_spec(One)
    dispatcher.add(spec, bind(spec, Blocking()))
    assert (spec.key, "which") in dispatcher.limits
    dispatcher.remove(spec)
    add(dispatcher, One)
    assert dispatcher.limits == {}, "a coroutine has no limit by default"


@pytest.mark.parametrize(("service", "method"), [("t.One:1.0.0", "nothing"), ("t.Nobody", "which")])
async def test_what_is_unknown_has_a_span_like_others(service: str, method: str) -> None:
    recorder, pool = Recorder(), HandlerPool(1, 1, time.monotonic)
    dispatcher = Dispatcher(recorder.telemetry, pool, time.monotonic, lambda: "host:1")
    add(dispatcher, One)
    with pytest.raises(Unimplemented):
        await ask(dispatcher, service, method)
    pool.close()
    span = recorder.span()
    assert span.name == f"{service.partition(':')[0]}/{method}"
    assert (span.attributes or {})["rpc.response.status_code"] == "UNIMPLEMENTED"
    assert span.status.is_ok is False
