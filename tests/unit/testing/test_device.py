from __future__ import annotations

import asyncio
import time

import pytest

from steelyard.testing.device import DutyCycle, EmulatedDevice


class Hands:
    """A clock and a CPU counter, moved by hand; sleeping moves the clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.used_s = 5.0
        self.slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        self.now_s += seconds

    def duty(self, quota: float) -> DutyCycle:
        return DutyCycle(quota, burst_s=0.02, used_s=lambda: self.used_s, clock=lambda: self.now_s, sleep=self.sleep)

    def work(self, cpu_s: float) -> None:
        self.used_s += cpu_s
        self.now_s += cpu_s


def test_a_duty_cycle_pays_what_it_used() -> None:
    hands = Hands()
    duty = hands.duty(0.1)
    for _ in range(50):
        hands.work(0.004)
        duty.rest()
    elapsed_s = hands.now_s - 100.0
    assert 50 * 0.004 / elapsed_s == pytest.approx(0.1, rel=0.01)


def test_idle_time_is_not_saved_up() -> None:
    hands = Hands()
    duty = hands.duty(0.1)
    hands.now_s += 60.0
    duty.rest()
    hands.work(0.01)
    duty.rest()
    # 10 ms of work cost 100 ms at a tenth: less the burst of 20 ms and the 10 ms that it took.
    assert hands.slept_s == pytest.approx(0.1 - 0.02 - 0.01)


def test_a_duty_cycle_tells_how_busy_it_is() -> None:
    hands = Hands()
    duty = hands.duty(0.2)
    hands.used_s += 0.1
    hands.now_s += 1.0
    assert duty.busy_share() == pytest.approx(0.5)
    assert duty.busy_share() == 0.0


def test_a_busy_share_counts_work_that_is_done_and_not_what_is_promised() -> None:
    async def queue_three() -> None:
        now = 10.0
        device = EmulatedDevice(0.1, clock=lambda: now)
        calls = [asyncio.ensure_future(device.run()) for _ in range(3)]
        await asyncio.sleep(0)
        assert device.busy_s == pytest.approx(0.0)
        now = 10.15
        assert device.busy_s == pytest.approx(0.15)
        now = 11.0
        assert device.busy_s == pytest.approx(0.3)
        assert device.busy_share() == pytest.approx(0.3)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(queue_three())


async def test_a_device_serves_one_call_after_another() -> None:
    device = EmulatedDevice(0.03)
    started_at = time.monotonic()
    await asyncio.gather(*(device.run() for _ in range(4)))
    assert time.monotonic() - started_at >= 0.119
