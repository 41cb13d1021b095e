"""Services for tests of ``steelyard serve``, as a user would write them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import numpy as np

from steelyard import method, service


@service("test.Sums", version="1.0.0")
class Sums:
    """The contract is the implementation."""

    @method(idempotent=True)
    async def total(self, user_id: int, values: np.ndarray, scale: float = 1.0) -> float:
        return float(values.sum()) * scale + user_id

    @method
    async def count(self, n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    @method
    async def slow(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    @method(idempotent=True)
    async def process(self) -> int:
        return os.getpid()

    @method
    async def raw(self) -> bytes:
        return b"\x00\xff"

    @method
    async def broken(self) -> None:
        raise ValueError("boom")


@service("test.Other")
class Other:
    @method
    async def ping(self) -> str:
        return "pong"


def make_other() -> Other:
    return Other()
