"""prices.proto as a contract: its names, and its messages as types. Bodies are protobuf's then, as in all of gRPC."""

from collections.abc import AsyncIterator
from typing import Protocol

from steelyard import method, service

from .messages import Price, PriceRequest


@service("shop.Prices")
class Prices(Protocol):
    @method(timeout_s=1.0, idempotent=True)
    async def Get(self, request: PriceRequest) -> Price: ...  # noqa: N802

    @method(timeout_s=5.0)
    def Follow(self, request: PriceRequest) -> AsyncIterator[Price]: ...  # noqa: N802
