"""The concurrency limit in front of a queue whose truth is known, in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.queueing import SHAPES, run

from steelyard.errors import ConfigError
from steelyard.guard import ConcurrencyLimit, ConcurrencySettings, Ending


def known(servers: int) -> ConcurrencyLimit:
    """As the provider makes it for a pool of threads."""
    return ConcurrencyLimit(ConcurrencySettings(start=max(100, 4 * (servers + 6)), least=servers, servers=servers))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("servers", [1, 4, 64])
def test_at_three_times_the_capacity_all_of_it_is_used_and_the_wait_is_bounded(servers: int, shape: str) -> None:
    seconds = 8.0 if servers < 64 else 3.0
    found = run(known(servers), servers=servers, load=lambda _: 3.0, shape=shape, is_run_known=True, seconds=seconds)
    assert found.goodput > 0.95
    # beta calls wait, `servers` of them at a time, or SLACK_S (ten services here), and then the call itself runs.
    assert found.p50 < max(12 / servers, 10) + 1.5
    assert found.limits[1] <= servers + max(24, 16 * servers)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("servers", [1, 4, 64])
def test_it_finds_the_capacity_without_knowing_how_long_calls_run(servers: int, shape: str) -> None:
    seconds = 8.0 if servers < 64 else 3.0
    found = run(ConcurrencyLimit(), servers=servers, load=lambda _: 3.0, shape=shape, seconds=seconds)
    assert found.goodput > 0.9
    assert found.p50 < 2 * (max(12 / servers, 10) + 1.5), "a probe's own queue passes for a service"


@pytest.mark.parametrize("is_run_known", [True, False])
@pytest.mark.parametrize("servers", [4, 64])
def test_with_capacity_left_nobody_is_refused_for_the_laws_own_sake(servers: int, is_run_known: bool) -> None:
    limit = known(servers) if is_run_known else ConcurrencyLimit()
    found = run(limit, servers=servers, load=lambda _: 0.6, is_run_known=is_run_known, seconds=6.0)
    assert found.refused < 0.005, "only in the first moments, while 64 servers are still held to 20 calls"
    assert found.goodput > 0.57


def test_the_important_are_not_lost_while_the_others_are_shed() -> None:
    for servers in (1, 4):
        found = run(known(servers), servers=servers, load=lambda _: 3.0, is_run_known=True, important=0.1)
        assert found.lost[0] < 0.001
        assert found.lost[2] > 0.5


def test_the_more_important_of_two_is_never_refused_where_the_other_is_let_in() -> None:
    limit = ConcurrencyLimit()
    for _ in range(60):
        admitted = [limit.admits(priority) for priority in (0, 1, 2, 200)]
        assert admitted == sorted(admitted, reverse=True)
        limit.began(1)
    assert limit.admits(0)
    for _ in range(80):
        limit.began(0)
    assert not limit.admits(0), "class 0 has a bound too"


def test_after_an_overload_everybody_is_let_in_again() -> None:
    limit = known(4)
    run(limit, servers=4, load=lambda _: 3.0, is_run_known=True, seconds=5.0)
    limit.in_flight = limit._first_class = 0  # what was under way when that ended
    before = limit.refused
    calm = run(limit, servers=4, load=lambda _: 0.5, is_run_known=True, seconds=5.0)
    assert (limit.refused - before) / (limit.admitted + 1) < 0.002
    assert calm.p99 < 12


class Gradient2:
    """Netflix's Gradient2Limit with its defaults, for comparison (concurrency-limits, Apache-2.0; written anew)."""

    def __init__(self) -> None:
        self.limit = 20.0
        self._long_s: float | None = None
        self._count = 0

    def sample(self, rtt_s: float, in_flight: int) -> None:
        self._count += 1
        factor = 2.0 / 601 if self._count > 10 else 1.0 / self._count
        self._long_s = rtt_s if self._long_s is None else self._long_s + factor * (rtt_s - self._long_s)
        if self._long_s / rtt_s > 2:
            self._long_s *= 0.95
        if in_flight < self.limit / 2:
            return
        gradient = max(0.5, min(1.0, 1.5 * self._long_s / rtt_s))
        self.limit = max(20.0, min(200.0, self.limit * 0.8 + 0.2 * (self.limit * gradient + 4)))


def test_why_not_gradient2() -> None:
    """Under a steady overload of four servers its latency is its limit's, and its limit grows to its bound."""
    other, own = Gradient2(), known(4)
    for _ in range(4000):
        other.sample(0.005 * max(1.0, other.limit / 4), int(other.limit))
    run(own, servers=4, load=lambda _: 3.0, is_run_known=True, seconds=5.0)
    assert other.limit > 150
    assert own.limit < 60


def test_an_overload_of_a_quiet_node_does_not_begin_with_the_starting_limit_in_line() -> None:
    limit = known(4)
    assert limit.limit == 100
    limit.ended(limit.began(), Ending.SUCCESS, 0.04, 1.0, ran_s=0.04)
    assert limit.limit == 4 + 12
    fast = known(4)
    fast.ended(fast.began(), Ending.SUCCESS, 0.001, 1.0, ran_s=0.001)
    assert fast.limit == 100, "of calls of 1 ms 200 are served within the slack"


def test_drops_lower_the_limit_and_it_never_leaves_its_bounds() -> None:
    limit = ConcurrencyLimit(ConcurrencySettings(start=100, least=10, most=200))
    for number in range(5000):
        limit.ended(limit.began(), Ending.DROPPED, 0.1, number * 0.01)
    assert limit.limit == 10


def test_what_says_nothing_changes_nothing() -> None:
    limit = ConcurrencyLimit()
    for number in range(200):
        limit.ended(limit.began(), Ending.IGNORED, 5.0, number * 0.01)
    assert (limit.limit, limit.in_flight, limit.statistics().latency_s) == (20, 0, None)


def test_the_hint_is_the_present_latency_within_bounds() -> None:
    limit = known(1)
    assert limit.retry_after_s() == 0.05
    for number in range(40):
        limit.ended(limit.began(), Ending.SUCCESS, 0.2, number * 0.2, ran_s=0.2)
    assert limit.retry_after_s() == pytest.approx(0.2)
    for number in range(40):
        limit.ended(limit.began(), Ending.SUCCESS, 30.0, 100 + number * 30.0, ran_s=30.0)
    assert limit.retry_after_s() == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"start": 0},
        {"start": True},
        {"least": 5, "start": 4},
        {"most": 10},
        {"alpha": 0},
        {"servers": 0},
        {"alpha": 7, "beta": 6},
        {"beta": float("inf")},
    ],
)
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="ConcurrencySettings"):
        ConcurrencySettings(**wrong)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "end"]),
            st.sampled_from(list(Ending)),
            st.floats(0, 100),
            st.one_of(st.none(), st.floats(0, 100)),
        ),
        max_size=400,
    )
)
def test_whatever_happens_the_books_are_right(steps: list[tuple[str, Ending, float, float | None]]) -> None:
    limit = ConcurrencyLimit(ConcurrencySettings(start=5, least=2, most=50))
    marks: list[int] = []
    now = 0.0
    for step, ending, latency_s, ran_s in steps:
        now += latency_s
        if step == "begin" and limit.admits(1):
            marks.append(limit.began())
        elif step == "end" and marks:
            limit.ended(marks.pop(0), ending, latency_s, now, ran_s=ran_s)
        assert limit.in_flight == len(marks)
        assert 2 <= limit.limit <= 50
        assert limit.statistics().queue >= 0
