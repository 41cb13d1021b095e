"""python -m examples.interop.provider PORT: ours, for any gRPC client"""

import asyncio
import sys
from collections.abc import AsyncIterator

from steelyard import InvalidArgument, Provider

from .contract import Prices
from .messages import Price, PriceRequest

CENTS = {"tea": 450, "coffee": 990}


class PriceList(Prices):
    async def Get(self, request: PriceRequest) -> Price:  # noqa: N802
        if request.sku not in CENTS:
            raise InvalidArgument(f"there is no {request.sku!r} here")
        return Price(sku=request.sku, cents=CENTS[request.sku])

    async def Follow(self, request: PriceRequest) -> AsyncIterator[Price]:  # noqa: N802
        for day in range(3):
            yield Price(sku=request.sku, cents=CENTS[request.sku] + day)


async def main(port: int) -> None:
    async with Provider(port=port) as provider:
        await provider.export(PriceList())
        print(f"shop.Prices at {provider.address}", flush=True)
        await provider.serve()


if len(sys.argv) != 2:
    sys.exit(__doc__)
asyncio.run(main(int(sys.argv[1])))
