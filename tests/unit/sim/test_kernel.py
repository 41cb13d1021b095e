"""The event loop: order, ties, arrivals merged with events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steelyard.sim.kernel import Kernel

MOMENTS = st.lists(st.floats(min_value=0.0, max_value=100.0), max_size=40)


@given(events=MOMENTS, arrivals=MOMENTS)
def test_everything_happens_once_and_in_order(events: list[float], arrivals: list[float]) -> None:
    kernel = Kernel()
    seen: list[tuple[float, str]] = []
    for moment in events:
        kernel.at(moment, lambda _: seen.append((kernel.now_s, "event")))
    kernel.run(100.0, sorted(arrivals), lambda _: seen.append((kernel.now_s, "arrival")))
    assert [at_s for at_s, _ in seen] == sorted([*events, *arrivals])


def test_events_of_one_moment_happen_in_the_order_in_which_they_were_scheduled() -> None:
    kernel = Kernel()
    seen: list[int] = []
    for number in range(5):
        kernel.at(1.0, seen.append, number)
    kernel.run(2.0, (), lambda _: None)
    assert seen == [0, 1, 2, 3, 4]


def test_a_run_can_be_continued() -> None:
    kernel = Kernel()
    seen: list[int] = []
    kernel.run(1.5, (1.0, 2.0), seen.append)
    assert (seen, kernel.now_s) == ([0], 1.5)
    kernel.run(3.0, (1.0, 2.0), seen.append)
    assert seen == [0, 1]


def test_every_does_not_drift() -> None:
    kernel = Kernel()
    moments: list[float] = []
    kernel.every(0.5, 0.25, lambda: moments.append(kernel.now_s))
    kernel.run(2.0, (), lambda _: None)
    assert moments == [0.25, 0.75, 1.25, 1.75]
