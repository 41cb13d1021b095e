"""Unlike machines, a neighbour beside one of them: ``./dev bench fleet``'s bar, in virtual time."""

from __future__ import annotations

import pytest
from support.unlike import loads

from steelyard.balance import make_policy


@pytest.mark.parametrize("seed", [1, 2])
def test_unlike_machines_come_to_carry_like_loads(seed: int) -> None:
    """.14 and more while a moment's count of calls was taken for how long calls take."""
    found = loads(lambda: make_policy("dual"), seed)
    assert max(found.values()) - min(found.values()) <= 0.08, found


def test_by_chance_they_do_not() -> None:
    found = loads(lambda: make_policy("random"), 1)
    assert max(found.values()) - min(found.values()) > 0.4, found
