from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from steelyard.errors import ConfigError
from steelyard.wire import WireLimits


def test_the_defaults_are_within_their_ranges() -> None:
    assert WireLimits().message_bytes == 16 * 1024 * 1024


@pytest.mark.parametrize("name", [field.name for field in fields(WireLimits)])
@pytest.mark.parametrize("value", [-1, 10**15, "7", None, True, float("nan"), float("inf")])
def test_every_field_refuses_nonsense_and_names_itself_and_the_value(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as raised:
        WireLimits(**{name: value})  # type: ignore[arg-type]
    assert f"WireLimits.{name} must be" in str(raised.value)
    assert repr(value) in str(raised.value)


def test_a_fraction_of_a_byte_is_refused() -> None:
    with pytest.raises(ConfigError, match="message_bytes must be a whole number"):
        WireLimits(message_bytes=4096.5)  # type: ignore[arg-type]


def test_whole_seconds_are_fine() -> None:
    assert WireLimits(heartbeat_interval_s=2).heartbeat_interval_s == 2


def test_back_off_cannot_shrink() -> None:
    with pytest.raises(ConfigError, match="backoff_max_s must be at least backoff_base_s"):
        WireLimits(backoff_base_s=2.0, backoff_max_s=1.0)


def test_limits_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        WireLimits().in_flight = 1  # type: ignore[misc]
