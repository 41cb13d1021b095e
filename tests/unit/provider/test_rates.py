from __future__ import annotations

import pytest

from steelyard.provider.rates import Rates


def test_rates_are_those_since_the_last_question() -> None:
    rates = Rates(10.0)
    assert rates.since(0, 0, 10.0) is None
    assert rates.since(30, 3, 12.0) == pytest.approx((15.0, 1.5))
    assert rates.since(30, 3, 13.0) == (0.0, 0.0)
    assert rates.since(31, 4, 13.0) is None
    assert rates.since(31, 4, 13.5) == pytest.approx((2.0, 2.0)), "what came in between is not lost"
