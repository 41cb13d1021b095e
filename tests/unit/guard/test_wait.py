"""A queue is seen while it grows; a slow method, a burst and a node that answers nothing are none."""

from __future__ import annotations

import heapq

from steelyard.guard.protection.wait import MethodWait


class Backend:
    """So many workers, one line, in virtual time. Calls arrive evenly at ``rate``."""

    def __init__(self, workers: int, work_s: float) -> None:
        self.wait = MethodWait()
        self.free = [0.0] * workers
        self.work_s = work_s
        self.now_s = 0.0
        self.ends: list[tuple[float, float]] = []

    def run(
        self,
        rate: float,
        seconds: float,
        *,
        remaining_s: float = 1.0,
        patience: float = 0.5,
        stuck_part: float = 0.0,
        refuses: bool = True,
    ) -> tuple[int, int, float]:
        """(calls, refused, longest latency) of *seconds*."""
        calls = refused = 0
        longest_s = 0.0
        end_s, next_s, period_s = self.now_s + seconds, self.now_s, self.now_s + 1.0
        while next_s < end_s:
            while self.ends and self.ends[0][0] <= next_s:
                ended_s, latency_s = heapq.heappop(self.ends)
                self.wait.in_flight -= 1
                self.wait.answered(ended_s, latency_s)
                longest_s = max(longest_s, latency_s)
            if next_s >= period_s:
                self.wait.advance(next_s)
                self.wait.close_period(is_base=not refused)
                period_s += 1.0
            self.now_s = next_s
            self.wait.advance(next_s)
            calls += 1
            if self.wait.in_flight >= 8 and self.wait.is_too_long(remaining_s, patience):
                refused += 1
                if refuses:
                    next_s += 1 / rate
                    continue
            self.wait.in_flight += 1
            if stuck_part and calls % round(1 / stuck_part) == 0:
                pass  # goes to a node that never answers
            else:
                begin_s = max(next_s, heapq.heappop(self.free))
                heapq.heappush(self.free, begin_s + self.work_s)
                heapq.heappush(self.ends, (begin_s + self.work_s, begin_s + self.work_s - next_s))
            next_s += 1 / rate
        return calls, refused, longest_s


def test_below_saturation_nothing_waits() -> None:
    assert Backend(16, 0.025).run(500, 20)[1] == 0  # 78 % of 640/s


def test_overload_is_refused_before_any_call_is_late() -> None:
    backend = Backend(12, 0.025)  # 480/s
    backend.run(150, 5)
    calls, refused, longest_s = backend.run(600, 20)
    assert longest_s < 1.0
    assert 0.15 <= refused / calls <= 0.3  # 20 % are too many
    assert backend.run(150, 5)[1] <= 15  # what was under way at the end; then nothing


def test_four_times_the_capacity_too() -> None:
    backend = Backend(12, 0.025)
    backend.run(150, 5)
    calls, refused, longest_s = backend.run(1920, 5)
    assert longest_s < 1.0
    assert 0.7 <= refused / calls <= 0.8


def test_less_patience_is_refused_first() -> None:
    impatient = Backend(12, 0.025).run(600, 2, patience=0.3)
    patient = Backend(12, 0.025).run(600, 2, patience=0.8)
    assert impatient[1] > 0
    assert patient[1] == 0  # its limit is not reached within two seconds


def test_a_slow_method_is_no_queue() -> None:
    assert Backend(1000, 0.8).run(100, 20)[1] == 0  # 0.8 s of its 1 s, always, and 80 under way


def test_a_burst_is_no_queue() -> None:
    wait = MethodWait()
    for second in range(10):  # five calls a second, each by itself
        for call in range(5):
            now_s = second + call / 5
            wait.in_flight += 1
            wait.in_flight -= 1
            wait.answered(now_s + 0.01, 0.01)
        wait.close_period(is_base=True)
    wait.in_flight = 200  # then two hundred at once, to a cluster that has room for them
    wait.advance(10.05)
    assert not wait.is_too_long(1.0, 0.3)


def test_a_node_that_answers_nothing_is_no_queue() -> None:
    assert Backend(64, 0.01).run(500, 4, stuck_part=0.125)[1] == 0


def test_a_standstill_of_this_process_is_no_queue() -> None:
    backend = Backend(16, 0.025)
    backend.run(500, 5)
    wait, now_s = backend.wait, backend.now_s + 0.6  # nothing of ours ran
    for _ in range(10):
        wait.in_flight -= 1
        wait.answered(now_s, 0.62)  # answers that lay here
    wait.in_flight += 300  # and the calls of that time, all at once
    wait.advance(now_s + 0.06)
    assert wait.expected_s() is not None
    assert wait.expected_s() > 0.9  # type: ignore[operator]
    assert not wait.is_too_long(1.0, 0.5)
    for step in range(2, 20):  # still late after a second of looking: then it is one
        wait.answered(now_s + step * 0.06, 0.62)
        wait.advance(now_s + step * 0.06)
    assert wait.is_too_long(1.0, 0.5)


def test_without_a_deadline_or_an_answer_there_is_no_verdict() -> None:
    wait = MethodWait()
    wait.in_flight = 1000
    assert wait.expected_s() is None
    assert not wait.is_too_long(1.0, 0.3)
    backend = Backend(1, 0.1)
    backend.run(100, 5, refuses=False)
    assert backend.wait.is_too_long(1.0, 0.3)
    assert not backend.wait.is_too_long(float("inf"), 0.3)
    assert not backend.wait.is_too_long(0.01, 0.3)  # shorter than the work itself: not a matter of waiting
