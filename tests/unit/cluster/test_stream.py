"""A stream is accounted once, however it ends, and always on the loop that accounts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from steelyard.balance import Candidate
from steelyard.cluster.stream import AccountedStream
from steelyard.errors import Unavailable
from steelyard.model import Outcome
from steelyard_registry import Node


class Account:
    """What was accounted, and in which thread."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.threads: list[threading.Thread] = []

    def __call__(self, candidate: Candidate, outcome: Outcome, started_s: float, *, is_transport: bool = False) -> None:
        self.outcomes.append(outcome)
        self.threads.append(threading.current_thread())


async def items(error: Exception | None = None) -> AsyncIterator[int]:
    yield 1
    if error is not None:
        raise error


def stream(account: Account, error: Exception | None = None) -> AccountedStream:
    candidate = Candidate(Node(interface="test.S", host="h", port=1), 0.0)
    return AccountedStream(items(error), account, candidate, 0.0)


def in_another_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


async def test_the_end_counts_as_success() -> None:
    account = Account()
    assert [item async for item in stream(account)] == [1]
    assert account.outcomes == [Outcome.OK]


async def test_an_error_counts_against_the_node() -> None:
    account = Account()
    with pytest.raises(Unavailable):
        _ = [item async for item in stream(account, Unavailable("gone", is_remote=True))]
    assert len(account.outcomes) == 1
    assert account.outcomes != [Outcome.OK]


async def test_what_is_dropped_in_another_thread_is_accounted_on_the_loop() -> None:
    account = Account()
    held = [stream(account)]
    in_another_thread(held.clear)
    assert account.outcomes == []  # not there and then: the policy has no locks
    await asyncio.sleep(0)
    assert account.outcomes == [Outcome.IGNORED]
    assert account.threads == [threading.current_thread()]


async def test_what_has_ended_is_not_accounted_again_when_it_is_dropped() -> None:
    account = Account()
    held = [stream(account)]
    await held[0].aclose()
    in_another_thread(held.clear)
    await asyncio.sleep(0)
    assert account.outcomes == [Outcome.IGNORED]


def test_what_outlives_its_loop_is_dropped_in_silence(recwarn: pytest.WarningsRecorder) -> None:
    account = Account()
    held: list[AccountedStream] = []

    async def begin() -> None:
        held.append(stream(account))

    asyncio.run(begin())
    held.clear()
    assert account.outcomes == []
    assert not [warning for warning in recwarn if "unraisable" in str(warning.category).lower()]


def test_outside_of_a_loop_there_is_none_to_be_made() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        AccountedStream(items(), Account(), Candidate(Node(interface="test.S", host="h", port=1), 0.0), 0.0)
