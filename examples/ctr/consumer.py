"""python -m examples.ctr.consumer"""

import asyncio

import numpy as np

from steelyard import Consumer

from .contract import Ctr


async def main() -> None:
    async with Consumer() as consumer:
        ctr = consumer.refer(Ctr)
        x = np.array([[0.0, 1.0, 0.5, 0.9], [3.0, 0.2, 0.1, 0.4]])
        print("clicks:", (await ctr.predict(7, x)).round(3))
        async for line in ctr.explain(7):
            print("  ", line)


asyncio.run(main())
