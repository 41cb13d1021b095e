"""Who has to go when too many have connected and said nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steelyard.wire.strangers import Strangers


def test_the_oldest_goes_when_it_has_had_its_time() -> None:
    strangers: Strangers[str] = Strangers(2, 1.0)
    assert strangers.add("a", 0.0) is None
    assert strangers.add("b", 0.5) is None
    assert strangers.add("c", 1.0) == "a"
    assert list(strangers) == ["b", "c"]


def test_the_newest_goes_while_all_have_only_come() -> None:
    strangers: Strangers[str] = Strangers(2, 1.0)
    for name in "ab":
        strangers.add(name, 0.0)
    assert strangers.add("c", 0.9) == "c"
    assert list(strangers) == ["a", "b"]


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.floats(0, 2))), st.integers(1, 5))
def test_there_are_never_more_and_nobody_else_goes(steps: list[tuple[int, bool, float]], most: int) -> None:
    strangers: Strangers[int] = Strangers(most, 1.0)
    here: set[int] = set()
    now_s = 0.0
    for name, comes, wait_s in steps:
        now_s += wait_s
        if comes and name not in here:
            leaves = strangers.add(name, now_s)
            here.add(name)
            here.discard(leaves)  # type: ignore[arg-type]
        elif not comes:
            strangers.discard(name)
            here.discard(name)
        assert set(strangers) == here
        assert len(strangers) <= most
