"""python -m examples.security.consumer FOLDER"""

import asyncio
import sys
from pathlib import Path

from steelyard import Consumer, Credentials, RpcError

from .contract import Ledger


async def call_as(party: str, folder: Path) -> None:
    credentials = Credentials(
        ca=folder / "ca.pem", certificate=folder / f"{party}.pem", key=folder / f"{party}.key.pem"
    )
    async with Consumer(credentials=credentials) as consumer:
        ledger = consumer.refer(Ledger)
        await consumer.ready(ledger)
        print(f"{party}: balance {await ledger.balance('coffee')}")
        try:
            print(f"{party}: balance {await ledger.transfer('coffee', 100)} after a transfer")
        except RpcError as error:
            print(f"{party}: {error.status.name}: {error.message}")


async def main(folder: Path) -> None:
    await call_as("desk.bank.example", folder)
    await call_as("visitor.example", folder)
    async with Consumer() as consumer:
        ledger = consumer.refer(Ledger)
        await consumer.ready(ledger)
        try:
            await ledger.balance("coffee")
        except RpcError as error:
            print(f"nobody: {error.message.split(',')[0]}")


if len(sys.argv) != 2:
    sys.exit(__doc__)
asyncio.run(main(Path(sys.argv[1])))
