from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steelyard.wire.mux import Deadlines

moments = st.floats(0, 100, allow_nan=False)


def test_deadlines_come_in_order_and_only_once() -> None:
    live = {1: None, 2: None, 3: None}
    deadlines = Deadlines(live)
    for key, at_s in ((1, 3.0), (2, 1.0), (3, 2.0)):
        deadlines.add(at_s, key)
    assert deadlines.next_at() == 1.0
    assert deadlines.expired(0.999) == []
    assert deadlines.expired(2.0) == [2, 3]
    assert deadlines.expired(2.0) == []
    assert deadlines.next_at() == 3.0


@given(st.lists(st.tuples(moments, st.booleans()), max_size=60), moments)
def test_what_expires_is_what_is_live_and_due(entries: list[tuple[float, bool]], now_s: float) -> None:
    live = dict.fromkeys(range(len(entries)))
    deadlines = Deadlines(live)
    for key, (at_s, _) in enumerate(entries):
        deadlines.add(at_s, key)
    for key, (_, stays) in enumerate(entries):
        if not stays:
            del live[key]
    later = [at_s for key, (at_s, _) in enumerate(entries) if key in live and at_s > now_s]
    assert set(deadlines.expired(now_s)) == {key for key in live if entries[key][0] <= now_s}
    assert deadlines.next_at() == (min(later) if later else None)


def test_many_calls_that_ended_in_time_leave_little_behind() -> None:
    live: dict[int, None] = {}
    deadlines = Deadlines(live)
    for key in range(100_000):
        live[key] = None
        deadlines.add(3600.0 + key, key)
        del live[key]
    assert len(deadlines) <= 1025
