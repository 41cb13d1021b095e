"""python -m examples.interop.consumer HOST:PORT[,HOST:PORT...]: ours, of servers that may know nothing of us"""

import asyncio
import sys

from steelyard import Consumer, RpcError

from .contract import Prices
from .messages import PriceRequest


async def main(addresses: str) -> None:
    async with Consumer(f"static://{addresses}") as consumer:
        prices = consumer.refer(Prices)
        answer = await prices.Get(PriceRequest(sku="tea"))
        print(f"{answer.sku} costs {answer.cents} cents")
        print("next days:", [answer.cents async for answer in prices.Follow(PriceRequest(sku="tea"))])
        try:
            await prices.Get(PriceRequest(sku="milk"))
        except RpcError as error:
            print(f"{error.status.name}: {error.message}")


if len(sys.argv) != 2:
    sys.exit(__doc__)
asyncio.run(main(sys.argv[1]))
