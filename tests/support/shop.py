"""One service that has every kind of method, for tests of the whole way of a call."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import enum
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from steelyard import LAST_GOOD_REPLY, InvalidArgument, current_call, method, service


class NoSuchUser(Exception):
    """Declared by the service."""


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Item:
    name: str
    price: decimal.Decimal
    colour: Colour = Colour.RED
    tags: list[str] = field(default_factory=list)


@service("test.Shop", version="1.0.0")
class Shop(Protocol):
    @method(timeout_s=5.0, idempotent=True, hash_key="key")
    async def echo(self, key: int, body: bytes) -> bytes:
        """What came in."""
        ...

    @method(idempotent=True)
    async def scale(self, features: np.ndarray, by: float = 2.0) -> np.ndarray: ...

    @method
    async def order(
        self, item: Item, at: datetime.datetime, number: uuid.UUID, notes: dict[str, list[int]] | None = None
    ) -> Item: ...

    @method
    def blocking(self, seconds: float) -> str: ...

    @method
    async def count(self, n: int) -> AsyncIterator[int]: ...

    @method
    def blocking_count(self, n: int) -> Iterator[int]: ...

    @method(raises=(NoSuchUser,))
    async def user(self, user_id: int) -> str: ...

    @method
    async def broken(self) -> None: ...

    @method
    async def refuses(self) -> None: ...

    @method(timeout_s=0.2)
    async def slow(self, seconds: float) -> float: ...

    @method(fallback=-1)
    async def with_value(self, fails: bool) -> int: ...

    @method(fallback=LAST_GOOD_REPLY)
    async def remembered(self, question: str) -> int: ...

    @method
    async def attachments(self) -> dict[str, str]: ...

    @method
    async def unsendable(self) -> bytes: ...


class ShopModel(Shop):
    """The implementation; it counts what it did."""

    def __init__(self, name: str = "shop") -> None:
        self.name = name
        self.calls = 0
        self.cancelled = 0
        self.closed_streams = 0
        self.is_failing = False

    async def echo(self, key: int, body: bytes) -> bytes:
        self.calls += 1
        if self.is_failing:
            raise RuntimeError("this node is sick")
        return body

    async def scale(self, features: np.ndarray, by: float = 2.0) -> np.ndarray:
        return features * by

    async def order(
        self, item: Item, at: datetime.datetime, number: uuid.UUID, notes: dict[str, list[int]] | None = None
    ) -> Item:
        assert isinstance(item, Item)
        assert isinstance(at, datetime.datetime)
        assert isinstance(number, uuid.UUID)
        return Item(item.name.upper(), item.price * 2, Colour.BLUE, [*item.tags, *(notes or {})])

    def blocking(self, seconds: float) -> str:
        time.sleep(seconds)
        return self.name

    async def count(self, n: int) -> AsyncIterator[int]:
        try:
            for number in range(n):
                yield number
                await asyncio.sleep(0)
        finally:
            self.closed_streams += 1

    def blocking_count(self, n: int) -> Iterator[int]:
        yield from range(n)

    async def user(self, user_id: int) -> str:
        if user_id == 7:
            return "seven"
        raise NoSuchUser(user_id)

    async def broken(self) -> None:
        raise ValueError("boom")

    async def refuses(self) -> None:
        raise InvalidArgument("not on a Sunday")

    async def slow(self, seconds: float) -> float:
        self.calls += 1
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return seconds

    async def with_value(self, fails: bool) -> int:
        if fails:
            raise RuntimeError("cannot")
        return 1

    async def remembered(self, question: str) -> int:
        if self.is_failing:
            raise RuntimeError("cannot")
        return len(question)

    async def attachments(self) -> dict[str, str]:
        call = current_call()
        assert call is not None
        return dict(call.attachments)

    async def unsendable(self) -> bytes:
        return object()  # type: ignore[return-value]
