"""Four times the usual load while a quarter of the nodes fails: less is let in, and what is let in succeeds.

A node of this fleet serves 80 calls/s, eight of them 640, six 480. Usual are 150 calls/s, so that the spike asks for
600. The bars (issue 3): what is admitted succeeds to 99.9 %, low
priority is degraded first, full service within 30 s of the end, at most two changes of level each way.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import pytest
from support.sickbay import SickFleet, SickNode, Tally, Ward, drive

from steelyard import Consumer, with_options
from steelyard.guard import Level, ProtectionEvent, ProtectionSettings

PRIORITIES = (0, 1, 1, 2, 2)
TIMEOUT_S = 1.0
FAULTS: dict[str, Callable[[SickNode], None]] = {
    "fails-fast": lambda node: node.set(fail=1.0, fail_fast=True),
    "fails-half": lambda node: node.set(fail=0.5),
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SickFleet]:
    fleet = SickFleet(tmp_path_factory.mktemp("fleet"), beds=2, work_s=0.025)
    yield fleet
    fleet.end()


@dataclass
class Story:
    """What the spike did. ``full_after_s``: from its end until a second began in which, and in all after it, every call
    was answered; None if that never came."""

    spike: Tally
    full_after_s: float | None
    events: tuple[ProtectionEvent, ...]
    level: Level

    def changes(self, up: bool) -> int:
        return sum((event.level > event.before) is up for event in self.events)


async def live_through(
    fleet: SickFleet,
    fault: str,
    *,
    usual: float,
    spike_s: float,
    after_s: int,
    settings: ProtectionSettings | None,
) -> Story:
    await asyncio.to_thread(fleet.heal)
    async with Consumer(fleet.registry) as consumer:
        ward = consumer.refer(Ward, protection=settings)
        await consumer.ready(ward, nodes=len(fleet.nodes), wait_s=30)
        proxies = {priority: with_options(ward, timeout_s=TIMEOUT_S, priority=priority) for priority in PRIORITIES}

        def call(number: int, priority: int) -> Awaitable[str]:
            return proxies[priority].read(number)

        await drive(call, usual, 2.0, priorities=PRIORITIES)
        for node in fleet.nodes[: len(fleet.nodes) // 4]:
            FAULTS[fault](node)
        spike = await drive(call, 4 * usual, spike_s, priorities=PRIORITIES)
        await asyncio.to_thread(fleet.heal)
        ended_s, full_after_s = time.monotonic(), None
        for _ in range(after_s):
            began_s = time.monotonic()
            second = await drive(call, usual, 1.0, priorities=PRIORITIES)
            if second.ok.total() < second.calls:
                full_after_s = None
            elif full_after_s is None:
                full_after_s = began_s - ended_s
        protection = consumer.statistics(ward).protection
    if protection is None:
        return Story(spike, full_after_s, (), Level.NONE)
    return Story(spike, full_after_s, protection.events, protection.level)


def check(story: Story, success: float) -> None:
    spike = story.spike
    assert spike.success >= success, spike.errors
    assert spike.degraded.total() > 0.05 * spike.calls
    assert spike.degraded_part(0) <= spike.degraded_part(1) <= spike.degraded_part(2)
    assert spike.degraded_part(2) > 2 * spike.degraded_part(0)
    assert story.changes(up=True) <= 2
    assert story.changes(up=False) <= 2


# One failed call of a short run's two thousand is all that the bar allows. A machine that gives this process no time
# for so long (a queue's worth) makes more of them: such a run says nothing about the law, and is made again.
STILL_S = 0.25


@pytest.mark.timeout(120)
async def test_a_spike_with_a_quarter_of_the_nodes_failing(fleet: SickFleet) -> None:
    # Half the long windows of calm, so that a run of seconds sees the way down begin as well.
    settings = ProtectionSettings(good_periods=2)
    for _ in range(3):
        story = await live_through(fleet, "fails-fast", usual=150, spike_s=4, after_s=5, settings=settings)
        if story.spike.success >= 0.999 or story.spike.stood_still_s < STILL_S:
            break
    check(story, 0.999)
    assert story.full_after_s is not None
    assert story.events[0].level is Level.DEGRADE
    assert story.level < Level.DEGRADE


@pytest.mark.slow
async def test_without_protection_the_same_spike_drowns_all(fleet: SickFleet) -> None:
    """What the other test would not notice if the fleet were simply large enough."""
    story = await live_through(fleet, "fails-fast", usual=200, spike_s=3, after_s=0, settings=None)
    assert story.spike.success < 0.97
    assert story.spike.degraded.total() == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_long_spike_and_full_service_within_thirty_seconds(fleet: SickFleet, fault: str) -> None:
    story = await live_through(fleet, fault, usual=150, spike_s=15, after_s=31, settings=ProtectionSettings())
    check(story, 0.999)
    assert story.full_after_s is not None
    assert story.full_after_s <= 30
    assert story.level is Level.NONE
    for before, event in itertools.pairwise(story.events):
        assert event.before is before.level
