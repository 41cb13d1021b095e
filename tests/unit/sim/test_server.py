"""Servers against what queueing theory and arithmetic say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from unit.sim.worlds import run

from steelyard.sim.call import Call, Ending
from steelyard.sim.kernel import Kernel
from steelyard.sim.measure import measure
from steelyard.sim.sampling import stream
from steelyard.sim.scenario import NodeGroup
from steelyard.sim.server import Server


@dataclass
class Listener:
    """Stands for a client: notes when which answer left the server."""

    kernel: Kernel
    answers: list[tuple[float, Ending]] = field(default_factory=list)

    def answered(self, call: Call, ending: Ending, in_flight: int | None) -> None:
        self.answers.append((round(self.kernel.now_s, 9), ending))

    def moments(self) -> list[float]:
        return [at_s for at_s, _ in self.answers]


def bench(**facts: Any) -> tuple[Kernel, Server, Listener]:
    kernel = Kernel()
    group = msgspec.convert({"name": "node", **facts}, NodeGroup)
    server = Server(kernel, group, 0, stream(1, "test").random)
    return kernel, server, Listener(kernel)


def send(kernel: Kernel, server: Server, listener: Listener, at_s: float, work_s: float, key: int = -1) -> Call:
    call = Call(listener, at_s, at_s, work_s, key, None, 1)  # type: ignore[arg-type]
    kernel.at(at_s, server.accept, call)
    return call


def go(kernel: Kernel, until_s: float = 100.0) -> None:
    kernel.run(until_s, (), lambda _: None)


def test_first_in_first_out_takes_turns() -> None:
    kernel, server, listener = bench()
    for at_s, work_s in ((0.0, 1.0), (0.1, 0.2), (0.2, 0.3)):
        send(kernel, server, listener, at_s, work_s)
    go(kernel)
    assert listener.moments() == [1.0, 1.2, 1.5]


def test_two_cores_serve_two_at_a_time() -> None:
    kernel, server, listener = bench(cores=2)
    for _ in range(4):
        send(kernel, server, listener, 0.0, 1.0)
    go(kernel)
    assert listener.moments() == [1.0, 1.0, 2.0, 2.0]


def test_sharing_divides_the_core_and_the_short_one_overtakes() -> None:
    kernel, server, listener = bench(discipline="sharing")
    send(kernel, server, listener, 0.0, 1.0)
    send(kernel, server, listener, 0.5, 0.1)
    go(kernel)
    # From 0.5 on both run at half speed; the short one needs 0.2 s, the long one is done at 1.1 s in all.
    assert listener.moments() == [0.7, 1.1]


def test_a_batch_is_cheaper_than_its_calls_alone() -> None:
    kernel, server, listener = bench(discipline="batching", slots=4, marginal=0.1)
    for _ in range(4):
        send(kernel, server, listener, 0.0, 1.0)
    go(kernel)
    assert listener.moments() == pytest.approx([1.3] * 4)


def test_a_full_queue_turns_away() -> None:
    kernel, server, listener = bench(queue_limit=1)
    for _ in range(3):
        send(kernel, server, listener, 0.0, 1.0)
    go(kernel)
    assert listener.answers[0] == (0.0, Ending.OVERLOAD)
    assert listener.moments() == [0.0, 1.0, 2.0]


def test_a_quota_lets_a_call_run_in_slices() -> None:
    kernel, server, listener = bench(quota=0.5)
    send(kernel, server, listener, 0.0, 1.0)
    go(kernel)
    # Half of each 100 ms: two seconds, give or take where in a period the call came.
    assert listener.moments() == [pytest.approx(2.0, abs=0.11)]
    assert server.busy_until_now() == pytest.approx(2.0, rel=0.06)


def test_a_slower_server_takes_longer_from_that_moment() -> None:
    kernel, server, listener = bench()
    send(kernel, server, listener, 0.0, 1.0)

    def slow(_: object) -> None:
        server.slowness = 4.0
        server.changed()

    kernel.at(0.5, slow)
    go(kernel)
    assert listener.moments() == [2.5]


def test_a_pause_delays_what_runs_and_what_comes() -> None:
    kernel, server, listener = bench(cores=2)
    send(kernel, server, listener, 0.0, 1.0)
    send(kernel, server, listener, 1.0, 1.0)

    def pause(is_paused: bool) -> None:
        server.is_paused = is_paused
        server.changed()

    kernel.at(0.5, pause, True)
    kernel.at(10.5, pause, False)
    go(kernel)
    assert listener.moments() == [11.0, 11.5]


def test_a_crash_loses_what_there_was_and_refuses_until_restart() -> None:
    kernel, server, listener = bench(cache_keys=10)
    send(kernel, server, listener, 0.0, 1.0, key=1)
    kernel.at(0.5, lambda _: server.crash())
    send(kernel, server, listener, 0.6, 1.0)
    kernel.at(0.7, lambda _: server.restart())
    send(kernel, server, listener, 0.8, 1.0, key=1)
    go(kernel)
    assert listener.answers == [(0.5, Ending.TRANSPORT), (0.6, Ending.TRANSPORT), (1.8, Ending.OK)]
    assert server.in_flight == 0
    assert server.misses == 2


def test_nobody_works_for_a_caller_who_has_left() -> None:
    kernel, server, listener = bench()
    send(kernel, server, listener, 0.0, 1.0)
    late = send(kernel, server, listener, 0.1, 1.0)
    kernel.at(0.5, lambda _: setattr(late, "is_over", True))
    send(kernel, server, listener, 0.2, 1.0)
    go(kernel)
    assert listener.moments() == [1.0, 2.0]
    assert server.in_flight == 0


def test_the_least_recently_used_key_goes() -> None:
    kernel, server, listener = bench(cache_keys=2)
    server.hit_cost = 0.0
    for number, key in enumerate((1, 2, 1, 3, 1, 2)):
        send(kernel, server, listener, number * 2.0, 1.0, key=key)
    go(kernel)
    assert (server.hits, server.misses) == (2, 4)


def test_failing_costs_what_it_costs() -> None:
    kernel, server, listener = bench()
    server.fail_rate, server.fail_cost = 1.0, 0.1
    send(kernel, server, listener, 0.0, 1.0)
    go(kernel)
    assert listener.answers == [(0.1, Ending.ERROR)]


def test_an_m_m_1_queue_waits_as_long_as_theory_says() -> None:
    """Mean sojourn 1 / (mu - lambda): the whole chain of arrivals, queue and clock, against Erlang."""
    world = run(
        nodes=[{"name": "node"}],
        work={"mean_s": 0.01, "distribution": "exponential"},
        traffic={"load": 0.7},
        consumers={"count": 1, "timeout_s": 100.0},
        seconds=400,
    )
    latency = sum(world.recorder.latency_s) / world.calls
    assert latency == pytest.approx(0.01 / (1 - 0.7), rel=0.08)
    assert measure(world)["load_mean"] == pytest.approx(0.7, abs=0.02)


def test_processor_sharing_does_not_mind_the_distribution() -> None:
    """M/G/1-PS: the mean sojourn depends on the mean of the work only."""
    means = []
    for distribution, shape in (("constant", 1.0), ("lognormal", 1.2)):
        world = run(
            nodes=[{"name": "node", "discipline": "sharing"}],
            work={"mean_s": 0.01, "distribution": distribution, "shape": shape},
            traffic={"load": 0.6},
            consumers={"count": 1, "timeout_s": 100.0},
            seconds=400,
        )
        means.append(sum(world.recorder.latency_s) / world.calls)
    assert means[0] == pytest.approx(0.01 / (1 - 0.6), rel=0.06)
    assert means[1] == pytest.approx(means[0], rel=0.12)
