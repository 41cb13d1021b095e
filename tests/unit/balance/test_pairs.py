"""Two nodes, one of which times out from the first call on: the smallest fleet, and the first that people try."""

from __future__ import annotations

import heapq
import random

import pytest

from steelyard.balance import Candidate, hash_key, make_policy
from steelyard.model import LoadReport, Outcome
from steelyard_registry import Node

TIMEOUT_S = 0.5


def sick_share(seed: int, *, is_keyed: bool) -> float:
    """The share of the calls that the sick one of two nodes gets from the tenth second on."""
    rnd = random.Random(seed)
    ports = rnd.sample(range(1024, 65536), 2)
    policy = make_policy("dual")
    policy.set_nodes([Node(interface="a", host="127.0.0.1", port=port) for port in ports], 0.0)
    waiting: list[tuple[float, float, Candidate]] = []
    sent = dict.fromkeys(ports, 0)
    now_s, tick_s = 0.0, 1.0
    while now_s < 20.0:
        now_s += 0.011
        while waiting and waiting[0][0] <= now_s:
            at_s, _, candidate = heapq.heappop(waiting)
            policy.ended(candidate, Outcome.FAILED, at_s, latency_s=TIMEOUT_S)
        while tick_s <= now_s:
            for port in ports:
                report = LoadReport(utilization={"cpu": 0.1 + 0.02 * rnd.random()}, in_flight=0)
                policy.report(f"127.0.0.1:{port}", report, tick_s)
            policy.tick(tick_s)
            tick_s += 1.0
        candidate = policy.pick(now_s, rnd.random, hash_key(rnd.randrange(200)) if is_keyed else None)
        assert candidate is not None
        policy.started(candidate, now_s)
        if now_s > 10.0:
            sent[candidate.node.port] += 1
        if candidate.node.port == ports[0]:
            heapq.heappush(waiting, (now_s + TIMEOUT_S, rnd.random(), candidate))
        else:
            policy.ended(candidate, Outcome.OK, now_s + 0.01, latency_s=0.01, in_flight=0)
    return sent[ports[0]] / sum(sent.values())


@pytest.mark.parametrize("is_keyed", [True, False], ids=["keyed", "keyless"])
def test_the_sick_one_of_two_is_left_whatever_its_port(is_keyed: bool) -> None:
    shares = [sick_share(seed, is_keyed=is_keyed) for seed in range(12)]
    assert max(shares) <= 0.05, [round(share, 3) for share in shares]
