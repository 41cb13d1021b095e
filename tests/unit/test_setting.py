"""What users set is checked where they set it, and never fails with an error of Python's own from further down."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from support.shop import Shop, ShopModel

from steelyard import ConfigError, Consumer, Provider, method, with_options
from steelyard.model import MethodSpec
from steelyard.setting import LONGEST_S, checked, seconds, text, texts, timeout, whole_number
from steelyard.testing import LocalCluster

HALF_A_PAIR = "\ud800"
NO_NUMBERS: tuple[Any, ...] = ("1", b"1", [1], {}, object(), None, True, math.nan, 1j)
NO_TEXT: tuple[Any, ...] = (1, b"x", ["x"], {}, object(), HALF_A_PAIR)
NO_TEXTS: tuple[Any, ...] = (1, "ab", ["a"], {1: "a"}, {"a": 1}, {"a": None}, {"a": HALF_A_PAIR}, object())
NO_FUNCTION: tuple[Any, ...] = (1, "x", [1], {}, object())


@pytest.mark.parametrize("value", [*NO_NUMBERS, -1, 11, 1.0, 10**400])
def test_whole_numbers(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^port: a whole number from 0 to 10 \(any\), not "):
        whole_number("port", value, 0, 10, "any")


@pytest.mark.parametrize("value", [*NO_NUMBERS, -1, -0.1, 1e10, 10**400])
def test_times(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^drain_s: 0 or more seconds, not "):
        seconds("drain_s", value)
    with pytest.raises(ConfigError, match=r"^timeout_s: more than 0 seconds, not "):
        timeout("timeout_s", value)


def test_the_edges() -> None:
    assert whole_number("n", 0, 0, 10) == 0
    assert whole_number("n", 10, 0, 10) == 10
    assert (seconds("s", 0), seconds("s", LONGEST_S)) == (0, LONGEST_S)
    assert (timeout("s", 1e-9), timeout("s", math.inf)) == (1e-9, math.inf)
    for wrong in (0, 0.0, -math.inf):
        with pytest.raises(ConfigError):
            timeout("s", wrong)
    with pytest.raises(ConfigError):
        seconds("s", math.inf)
    assert text("t", "é") == "é"
    assert texts("t", {"a": "b"}) == {"a": "b"}


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(ConfigError) as caught:
        checked("x", "y" * 10_000, False, "short")
    assert len(str(caught.value)) < 120


def _settings(*rows: tuple[str, tuple[Any, ...]]) -> list[tuple[str, Any]]:
    return [(name, value) for name, values in rows for value in values]


@pytest.mark.parametrize(
    ("name", "value"),
    _settings(
        ("registry", (1, b"x", [1], [], ["memory://", 1])),
        ("host", (*NO_TEXT, "")),
        ("port", (*NO_NUMBERS, -1, 65536, 1.5)),
        ("application", NO_TEXT),
        ("tags", NO_TEXTS),
        ("hardware", NO_TEXTS),
        ("zone", NO_TEXT),
        ("weight", (*NO_NUMBERS, -1, 1.5, 10**30)),
        ("threads", (*NO_NUMBERS[:5], True, 0, math.inf)),
        ("queue", (*NO_NUMBERS, -1, math.inf)),
        ("utilization", (1, "ab", ["a"], {1: len}, {"gpu": 1}, {"gpu": None})),
        ("limits", (1, "x", {})),
        ("telemetry", (1, "x", [1])),
        ("registry_wait_s", (*NO_NUMBERS[:5], math.nan, -1)),
        ("drain_s", (*NO_NUMBERS, -1, math.inf)),
        ("stack", NO_FUNCTION),
    ),
)
def test_a_provider(name: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        Provider(**{"registry": "memory://", name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    _settings(
        ("registry", (1, b"x", [1], [], ["memory://", 1])),
        ("application", NO_TEXT),
        ("timeout_s", (*NO_NUMBERS, 0, -1, 1e10)),
        ("registry_wait_s", (*NO_NUMBERS[:5], math.nan, -1)),
        ("limits", (1, "x", {})),
        ("telemetry", (1, "x", [1])),
    ),
)
def test_a_consumer(name: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        Consumer(**{"registry": "memory://", name: value})


NO_OPTIONS = _settings(
    ("timeout_s", (*NO_NUMBERS[:5], math.nan, True, 0, -1, 1e10)),
    ("priority", (*NO_NUMBERS[:5], math.nan, True, -1, 256, 1.5)),
    ("attachments", (*NO_TEXTS, None)),
)
NO_REFERENCE = _settings(
    ("where", (1, b"x", [1], math.nan, HALF_A_PAIR, "(")),
    ("policy", (*NO_TEXT, None, "nonsense")),
    ("timeout_s", (*NO_NUMBERS[:5], math.nan, True, 0, -1, 1e10)),
    ("retries", (*NO_NUMBERS, -1, 17, 1.5)),
    ("version", NO_TEXT),
    ("group", NO_TEXT),
    ("stack", NO_FUNCTION),
)


async def test_a_reference() -> None:
    async with LocalCluster() as cluster:
        consumer = cluster.consumer
        shop = consumer.refer(Shop)

        async def export(weight: Any) -> None:
            async with Provider("memory://", host="127.0.0.1") as provider:
                await provider.export(ShopModel(), weight=weight)

        for name, value in NO_REFERENCE:
            _refused(lambda name=name, value=value: consumer.refer(Shop, **{name: value}), name, value)  # type: ignore[misc]
        for name, value in NO_OPTIONS:
            _refused(lambda name=name, value=value: with_options(shop, **{name: value}), name, value)  # type: ignore[misc]
        for value in NO_TEXT:
            _refused(lambda value=value: consumer.generic(value, []), "service", value)  # type: ignore[misc]
        for value in (1, None, ["x"], [None], [MethodSpec(name="_with")], [MethodSpec(name="")]):
            _refused(lambda value=value: consumer.generic("a.B", value), "methods", value)  # type: ignore[misc]
        for wrong in ({"nodes": "x"}, {"nodes": -1}, {"nodes": math.nan}, {"wait_s": "x"}, {"wait_s": math.nan}):
            with pytest.raises(ConfigError):
                await consumer.ready(shop, **wrong)
        for value in ("x", [1], object(), 1.5, -1, math.nan):
            with pytest.raises(ConfigError, match="weight"):
                await export(value)


def _refused(do: Callable[[], Any], name: str, value: Any) -> None:
    try:
        do()
    except ConfigError:
        return
    raise AssertionError(f"{name}={value!r} was taken")


@pytest.mark.parametrize("value", [*NO_NUMBERS[:5], True, math.nan, 0, -1, math.inf, 1e10, 10**400])
def test_a_methods_timeout(value: Any) -> None:
    with pytest.raises(ConfigError, match="timeout_s must be a number of seconds greater than 0"):
        method(timeout_s=value)
