"""python -m examples.ctr.provider"""

import asyncio

from steelyard import Provider

from .model import CtrModel


async def main() -> None:
    async with Provider(tags={"pool": "ads"}) as provider:
        await provider.export(CtrModel())
        print(f"ads.Ctr at {provider.address}", flush=True)
        await provider.serve()


asyncio.run(main())
