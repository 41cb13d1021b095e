"""The waiting line against a plain list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steelyard.provider.line import PATIENCE_S, Line

INF = float("inf")


def test_the_important_then_the_urgent_then_the_early() -> None:
    line = Line()
    for item, priority, deadline_at in (("a", 1, 9.0), ("b", 0, 50.0), ("c", 1, 3.0), ("d", 1, 9.0), ("e", 1, INF)):
        line.join(item, priority=priority, deadline_at=deadline_at, now_s=0.0)
    taken = []
    while (item := line.next()) is not None:
        taken.append(item)
    assert taken == ["b", "c", "a", "d", "e"]


def test_who_has_no_deadline_does_not_wait_for_ever() -> None:
    line = Line()
    line.join("patient", priority=1, deadline_at=INF, now_s=0.0)
    line.join("later", priority=1, deadline_at=PATIENCE_S + 0.1, now_s=5.0)
    assert line.next() == "patient"


def test_room_is_made_by_the_least_important_who_came_last() -> None:
    line = Line()
    for item, priority in (("a", 2), ("b", 3), ("c", 3), ("d", 2)):
        line.join(item, priority=priority, deadline_at=1.0, now_s=0.0)
    left = [line.worse_than(1) for _ in range(4)]
    assert left == ["c", "b", "d", "a"]
    line.join("equal", priority=1, deadline_at=1.0, now_s=0.0)
    assert line.worse_than(1) is None, "equals do not push one another out"
    assert len(line) == 1


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("join"), st.integers(0, 3), st.one_of(st.floats(0, 20), st.just(INF))),
            st.tuples(st.just("next"), st.none(), st.none()),
            st.tuples(st.just("leave"), st.integers(0, 200), st.none()),
            st.tuples(st.just("worse"), st.integers(0, 3), st.none()),
        ),
        max_size=300,
    )
)
def test_against_a_list(steps: list[tuple[str, int | None, float | None]]) -> None:
    line, places, model = Line(), [], []
    for number, (step, value, deadline_at) in enumerate(steps):
        if step == "join":
            assert value is not None
            assert deadline_at is not None
            places.append((line.join(number, priority=value, deadline_at=deadline_at, now_s=0.0), number))
            model.append((value, min(deadline_at, PATIENCE_S) if deadline_at == INF else deadline_at, number))
        elif step == "next":
            expected = min(model, default=None)
            assert line.next() == (None if expected is None else expected[2])
            model = [each for each in model if each != expected]
        elif step == "leave" and places:
            assert value is not None
            place, item = places[value % len(places)]
            line.leave(place)
            assert place.item is None, "nothing of it is kept"
            model = [each for each in model if each[2] != item]
        elif step == "worse":
            assert value is not None
            worse = [each for each in model if each[0] > value]
            expected = max(worse, key=lambda each: (each[0], each[2]), default=None)
            assert line.worse_than(value) == (None if expected is None else expected[2])
            model = [each for each in model if each != expected]
        assert len(line) == len(model)
        assert len(line._best) <= 2 * len(model) + 65
        assert len(line._worst) <= 2 * len(model) + 65
