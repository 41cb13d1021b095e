"""recover sees what is sent, and tells protection how it ended."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from steelyard.errors import InvalidArgument, RemoteError, Unavailable
from steelyard.filter import recover
from steelyard.guard import Protection
from steelyard.model import Invocation, Reply
from steelyard.testing import ManualClock


class Watched(Protection):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[bool | None, float]] = []

    def ended(self, method: str, now_s: float, *, is_ok: bool | None, latency_s: float) -> None:
        self.seen.append((is_ok, latency_s))
        super().ended(method, now_s, is_ok=is_ok, latency_s=latency_s)


CALL = Invocation("ads.Ctr", "predict", (7,), b"question")


async def ended(error: BaseException | None) -> Watched:
    protection, clock = Watched(), ManualClock()

    async def cluster(invocation: Invocation) -> Reply:
        assert protection.statistics(clock()).waits["predict"].in_flight == 1
        clock.advance(0.25)
        if error is not None:
            raise error
        return Reply(body=b"good")

    with contextlib.suppress(BaseException):
        await recover(protection, clock)(CALL, cluster)
    assert protection.statistics(clock()).waits["predict"].in_flight == 0
    return protection


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (None, True),
        (Unavailable("gone"), False),
        (RemoteError("ValueError: x"), False),
        (RemoteError("NoSuchUser: 7", details=b"declared"), None),
        (InvalidArgument("bad"), None),
        (asyncio.CancelledError(), None),
        (RuntimeError("a bug of ours"), None),
    ],
    ids=str,
)
async def test_every_ending_is_told_once(error: BaseException | None, says: bool | None) -> None:
    assert (await ended(error)).seen == [(says, 0.25)]
