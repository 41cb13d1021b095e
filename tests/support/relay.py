"""A service that calls another one."""

from typing import Protocol

from steelyard import method, service

from .shop import Shop


@service("test.Relay")
class Relay(Protocol):
    @method
    async def relay(self, seconds: float) -> float: ...


class RelayModel(Relay):
    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    async def relay(self, seconds: float) -> float:
        return await self._shop.slow(seconds)
