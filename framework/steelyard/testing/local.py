"""A cluster in this process: real providers on loopback ports, a real consumer, and a registry in memory.

async with LocalCluster() as cluster:
    await cluster.provide(CtrModel())
    ctr = cluster.consumer.refer(Ctr)
    assert await ctr.predict(7, x) == ...
"""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from steelyard.consumer import Consumer
from steelyard.provider import Provider


class LocalCluster:
    """Everything ends with the ``async with``: consumer first, so that no call is cut off by a test's own end."""

    def __init__(self, **consumer_settings: Any) -> None:
        self.registry_url = f"memory://{uuid.uuid4().hex}"
        self.providers: list[Provider] = []
        self.consumer = Consumer(self.registry_url, **consumer_settings)
        self._stack = AsyncExitStack()

    async def provide(self, *implementations: Any, **settings: Any) -> Provider:
        """Starts one more provider that exports *implementations*; *settings* are Provider's."""
        provider = await self._stack.enter_async_context(Provider(self.registry_url, **{"drain_s": 1.0, **settings}))
        for implementation in implementations:
            await provider.export(implementation)
        self.providers.append(provider)
        return provider

    async def __aenter__(self) -> Self:
        await self.consumer.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.consumer.close()
        finally:
            await self._stack.aclose()
