"""The control loop: once a period, outcomes and load reports become a new plan. Calls never wait for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from steelyard.balance import Policy
from steelyard.guard import Protection

from .probing import Prober

log = logging.getLogger(__name__)

# The law's period (BALANCING: T). Providers report once a second; a shorter period would act on the same report twice.
PERIOD_S = 1.0


async def control_loop(
    policy: Policy,
    *,
    clock: Callable[[], float],
    dice: Callable[[], float],
    period_s: float = PERIOD_S,
    protection: Protection | None = None,
    prober: Prober | None = None,
) -> None:
    """Ticks *policy* until cancelled, and *protection* before it; *prober* asks once a period, calls or no calls. The
    phase is random, so that a fleet of consumers does not act at one moment."""
    await asyncio.sleep(period_s * dice())
    due_s = clock()
    while True:
        try:
            if protection is not None:
                protection.tick(clock())
                _hold(policy, protection.diversion)
            if prober is not None:
                prober.ask()
            policy.tick(clock())
        except Exception:  # a law that fails once must not end balancing for ever
            log.exception("control tick failed; the last plan stays")
        due_s = max(due_s + period_s, clock())
        await asyncio.sleep(due_s - clock())


def _hold(policy: Policy, diversion: float | None) -> None:
    """Protection's first level, for policies that divert by availability (``hold_diversion``); others have none."""
    hold = getattr(policy, "hold_diversion", None)
    if hold is not None:
        hold(diversion)
