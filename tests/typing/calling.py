"""Checked by mypy (test_typing.py), never run: the lines of the README, and that ``refer`` gives what was declared."""

from collections.abc import AsyncIterator
from typing import Protocol, assert_type

import numpy as np

from steelyard import BlockingConsumer, Consumer, Provider, method, service, with_options


@service("ads.Ctr", version="1.0.0")
class Ctr(Protocol):
    @method(timeout_s=0.2, idempotent=True, hash_key="user_id")
    async def predict(self, user_id: int, features: np.ndarray) -> np.ndarray: ...

    @method
    async def explain(self, user_id: int) -> AsyncIterator[str]: ...

    @method
    def reasons(self, user_id: int) -> AsyncIterator[str]: ...


@service
class Model:
    """A contract that is its own implementation, and needs arguments to be made."""

    def __init__(self, path: str) -> None:
        self.path = path

    @method
    async def size(self) -> int:
        return len(self.path)


async def a_protocol_is_referred_to_as_itself() -> None:
    async with Consumer(registry="memory://x") as consumer:
        ctr = consumer.refer(Ctr)
        assert_type(ctr, Ctr)
        assert_type(await ctr.predict(7, np.zeros(3)), np.ndarray)
        async for text in await ctr.explain(7):
            assert_type(text, str)
        async for text in ctr.reasons(7):
            assert_type(text, str)
        assert_type(with_options(ctr, timeout_s=0.1, attachments={"tenant": "a"}, priority=0), Ctr)
        await ctr.predict("7", np.zeros(3))  # type: ignore[arg-type]
        await ctr.predikt(7, np.zeros(3))  # type: ignore[attr-defined]
        with_options(ctr, timeout=0.1)  # type: ignore[call-arg]
        consumer.refer(Ctr, retry=1)  # type: ignore[call-arg]


async def so_is_a_class_with_code() -> None:
    async with Consumer() as consumer:
        assert_type(await consumer.refer(Model).size(), int)
    async with Provider() as provider:
        await provider.export(Model("path"))


def the_blocking_twin_takes_the_same_settings() -> None:
    with BlockingConsumer("memory://x", timeout_s=1.0) as consumer:
        consumer.refer(Ctr).predict(7, np.zeros(3))
        consumer.refer(Model, where="zone == 'a'").size()
    BlockingConsumer(timeout=1.0)  # type: ignore[call-arg]
